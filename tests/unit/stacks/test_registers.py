# SPDX-License-Identifier: Apache-2.0
"""Stacks of arm64 with signed return addresses, unwound on any machine."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import AARCH64, X86_64, Machine, SavedStack, machine_of
from powerprof.stacks.store import TableStore
from powerprof.stacks.uncovered import Caller, CodeUnwinder
from powerprof.stacks.unwind import Unwinder
from tests.unit.stacks.elves import Part, eh_frame, image_of, make, note

SIGNED = 0x2A << 48
BASE = 0x10000


# A frame of 32 bytes: advance 4; CFA = sp + 32; x29 at CFA − 32, x30 at CFA − 24; the return address is signed.
FRAMED = b"\x2d\x44\x0e\x20\x9d\x04\x9e\x03"
ARM_CIE = b"\x01zR\0\x01\x78\x1e\x01\x1b\x0c\x1f\x00" + b"\0" * 3


@pytest.fixture
def image(tmp_path: Path) -> ProcessImage:
    """A function at 0x1000 with a frame, called by the start of the thread at 0x1100."""
    table = eh_frame((0x1000, 0x40, FRAMED), (0x1100, 0x40, b"\x07\x1e"), common=ARM_CIE)
    data = bytearray(make([Part(".eh_frame", 1, table, flags=2, vaddr=0x8000), note()]))
    struct.pack_into("<H", data, 18, AARCH64.elf_machine)
    (tmp_path / "program").write_bytes(data)
    return image_of(tmp_path / "program")


@pytest.mark.parametrize("signature", [0, SIGNED])
def test_signed_return_address_is_followed(image: ProcessImage, signature: int) -> None:
    caller = BASE + 0x1110
    stack = struct.pack("<4Q", 0, caller | signature, 0, 0) + bytes(64)
    registers = AARCH64.pack({"pc": BASE + 0x1020, "sp": 0x7000_0000, "x30": 0xDEAD})
    result = Unwinder(TableStore(use_cache=False)).unwind(image, SavedStack(1, 1, registers, stack))
    assert result.pcs == (BASE + 0x1020, caller)
    assert result.complete


def test_machine_is_recognised_by_register_size() -> None:
    assert machine_of(X86_64.pack({"ip": 1})) is X86_64
    assert machine_of(AARCH64.pack({"pc": 1})) is AARCH64
    assert (X86_64.register_bytes, AARCH64.register_bytes) == (168, 272)


def test_signature_is_stripped_from_link_register_only() -> None:
    registers = AARCH64.pack({"x30": SIGNED | 0x1234, "x19": SIGNED | 0x1234, "pc": 0x10})
    values = AARCH64.words(AARCH64.strip_signatures(registers))
    assert (values[30], values[19], values[32]) == (0x1234, SIGNED | 0x1234, 0x10)


# x86-64: generated code without a file calls a function whose last instruction is a call.

JIT = 0x7000_0000
SP = 0x7F00


@pytest.fixture
def jit_image(tmp_path: Path) -> ProcessImage:
    text = bytearray(0x1300)
    text[0x1205 - 0x78 : 0x1207 - 0x78] = b"\xc9\xc3"  # leave; ret, which no entry covers
    for end in (0x1040, 0x1120, 0x1205):
        text[end - 5 - 0x78] = 0xE8  # the first part is at 0x78, and the segment begins at 0
    # A function of 0x40 bytes with a frame of 32 bytes, and the start of the thread.
    table = eh_frame((0x1000, 0x40, b"\x44\x0e\x20"), (0x1100, 0x40, b"\x07\x10"))
    parts = [Part(".text", 1, bytes(text), flags=6, vaddr=0x78), Part(".eh_frame", 1, table, flags=2, vaddr=0x8000)]
    (tmp_path / "program").write_bytes(make([*parts, note(b"\1\2\3\5")]))
    code = Mapping(start=JIT, end=JIT + 0x1000, offset=0, path="", device="0:0", inode=0)
    return image_of(tmp_path / "program", code, build_id="01020305")


REGISTERS = X86_64.pack({"ip": JIT + 0x10, "sp": SP, "bp": SP + 0x10})
# The frame of the generated code, and 32 bytes of its caller's with the return address at their end.
STACK = struct.pack("<9Q", 1, 2, 0, BASE + 0x1040, 3, 4, 5, BASE + 0x1120, 6)


def test_return_address_at_the_end_of_a_function_is_in_it(jit_image: ProcessImage) -> None:
    """The byte before a return address belongs to the caller; the next function may have another frame."""
    unwound = Unwinder(TableStore(use_cache=False)).unwind(jit_image, SavedStack(1, 1, REGISTERS, STACK))
    assert unwound.pcs == (JIT + 0x10, BASE + 0x1040, BASE + 0x1120)
    assert (unwound.complete, unwound.exact) == (True, (True, False, False))


def test_longer_copy_of_a_stack_leads_further(jit_image: ProcessImage) -> None:
    unwinder = Unwinder(TableStore(use_cache=False))
    short = unwinder.unwind(jit_image, SavedStack(1, 1, REGISTERS, STACK[:40]))
    assert (len(short.pcs), short.complete, short.reason) == (2, False, "the copied stack ends after 40 bytes")
    assert len(unwinder.unwind(jit_image, SavedStack(1, 1, REGISTERS, STACK)).pcs) == 3
    assert unwinder.walks_count == 2
    # The same words at the same distance, in a longer copy: known.
    assert len(unwinder.unwind(jit_image, SavedStack(1, 1, REGISTERS, STACK + bytes(8))).pcs) == 3
    assert unwinder.walks_count == 2
    below = STACK[:16] + struct.pack("<Q", 0) + STACK[24:]
    assert unwinder.unwind(jit_image, SavedStack(1, 1, REGISTERS, below)).complete


@pytest.mark.parametrize(
    ("bp", "word", "pcs"),
    [
        (SP + 0x10, BASE + 0x1040, 3),
        (SP + 0x14, BASE + 0x1040, 1),  # not a multiple of a word
        (SP - 0x10, BASE + 0x1040, 1),  # below the stack pointer
        (SP + 0x10, BASE + 0x1044, 1),  # follows no call
        (SP + 0x10, 5, 1),  # is in no mapping
    ],
)
def test_frame_pointers_are_checked(jit_image: ProcessImage, bp: int, word: int, pcs: int) -> None:
    registers = X86_64.pack({"ip": JIT + 0x10, "sp": SP, "bp": bp})
    stack = STACK[:24] + struct.pack("<Q", word) + STACK[32:]
    assert len(Unwinder(TableStore(use_cache=False)).unwind(jit_image, SavedStack(1, 1, registers, stack)).pcs) == pcs


def test_registers_that_decide_a_stack() -> None:
    """Results and arguments differ between two sleeps at one place."""
    names = X86_64.names
    values = tuple(range(100, 100 + len(names)))
    stable = X86_64.stable(values)
    volatile = {"ax", "orig_ax", "dx", "si", "flags"}
    assert stable == tuple(value for value, name in zip(values, names, strict=True) if name not in volatile)
    packed = X86_64.pack(dict(zip(names, values, strict=True)))
    named = X86_64.by_name(packed)
    assert (named["pc"], named["rsp"], named["rbp"], named["r12"]) == tuple(
        100 + names.index(name) for name in ("ip", "sp", "bp", "r12")
    )
    assert X86_64.pack_names(named) == packed and X86_64.strip_signatures(packed) == packed
    assert (values[X86_64.ip], values[X86_64.sp]) == (named["pc"], named["rsp"])


@pytest.mark.parametrize(("saved", "pcs"), [(SP + 0x30, 3), (SP, 2)])
def test_stack_pointers_only_grow(jit_image: ProcessImage, saved: int, pcs: int) -> None:
    """A function with `leave` has its caller's frame pointer, which may not point into frames that are done."""
    words = [0, BASE + 0x1120, 0, saved, BASE + 0x1205, 5, 0, BASE + 0x1120]
    registers = X86_64.pack({"ip": JIT + 0x10, "sp": SP, "bp": SP + 0x18})
    stack = struct.pack("<9Q", *words, 7)
    unwound = Unwinder(TableStore(use_cache=False)).unwind(jit_image, SavedStack(1, 1, registers, stack))
    assert (len(unwound.pcs), unwound.complete) == (pcs, pcs == 3)


def test_code_of_the_vdso_is_that_of_its_place() -> None:
    code = bytes(number % 251 for number in range(0x5000))
    start = 0x7FFF_0000_1000
    vdso = Mapping(start=start, end=start + len(code), offset=0, path="[vdso]", device="0:0", inode=0, bias=start)
    image = ProcessImage(pid=1, started_ticks=1, executable="/x", mappings=(vdso,), vdso=code)
    unwinder = CodeUnwinder(image, TableStore(use_cache=False), X86_64)
    for at, size in ((0, 16), (0x2FF8, 16), (0x3100, 8), (0x4FFC, 4)):
        assert unwinder._read_code(start + at, size) == code[at : at + size]
    assert unwinder._read_code(start + 0x4FFC, 8) == code[-4:] and unwinder._read_code(start - 1, 8) == b""


@pytest.mark.parametrize(
    ("machine", "restorer", "first", "names"),
    [
        # struct rt_sigframe: uc_flags, uc_link and uc_stack take 40 bytes; then the registers.
        (X86_64, "48c7c00f0000000f05", 40, {"r8": 0, "r15": 7, "rbp": 10, "rsp": 15, "pc": 16}),
        # siginfo of 128 bytes, 176 bytes to uc_mcontext, and the fault address before the registers.
        (AARCH64, "681180d2010000d4", 128 + 176 + 8, {"x0": 0, "x29": 29, "x30": 30, "sp": 31, "pc": 32}),
    ],
)
def test_interrupted_registers_are_those_of_the_signal_frame(
    machine: Machine, restorer: str, first: int, names: dict[str, int]
) -> None:
    start = 0x7000_0000
    code = bytes.fromhex(restorer).ljust(64, b"\0")
    vdso = Mapping(start=start, end=start + 0x100_0000, offset=0, path="[vdso]", device="0:0", inode=0, bias=start)
    image = ProcessImage(pid=1, started_ticks=1, executable="/x", mappings=(vdso,), vdso=code)
    caller = CodeUnwinder(image, TableStore(use_cache=False), machine).caller(
        start, False, {"rsp": 0x5000, "sp": 0x5000}, lambda at: start + at
    )
    assert isinstance(caller, Caller) and caller.exact
    assert {name: caller.registers[name] for name in names} == {
        name: start + 0x5000 + first + 8 * number for name, number in names.items()
    }
