# SPDX-License-Identifier: Apache-2.0
"""Stacks of arm64 with signed return addresses, unwound on any machine."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import AARCH64, X86_64, SavedStack, machine_of
from powerprof.stacks.store import TableStore
from powerprof.stacks.unwind import Unwinder
from tests.unit.stacks.elves import Part, make

SIGNED = 0x2A << 48
BASE = 0x10000


def unwind_table() -> bytes:
    """A function at 0x1000 with a frame of 32 bytes (x29 and x30 lowest), called by the thread's start at 0x1100."""
    cie = struct.pack("<I", 0) + b"\x01zR\0\x01\x78\x1e\x01\x1b\x0c\x1f\x00" + b"\0" * 3
    table = struct.pack("<I", len(cie)) + cie
    # advance 4; CFA = sp + 32; x29 at CFA − 32, x30 at CFA − 24; the return address is signed (negate_ra_state).
    framed = b"\x2d\x44\x0e\x20\x9d\x04\x9e\x03"
    bottom = b"\x07\x1e"
    for start, size, code in ((0x1000, 0x40, framed), (0x1100, 0x40, bottom)):
        code += b"\0" * (-len(code) % 4)
        at = len(table)
        body = struct.pack("<IiIB", at + 4, start - (0x8000 + at + 8), size, 0) + code
        body += b"\0" * (-len(body) % 4)
        table += struct.pack("<I", len(body)) + body
    return table


@pytest.fixture
def image(tmp_path: Path) -> ProcessImage:
    note = struct.pack("<III", 4, 4, 3) + b"GNU\0" + b"\x01\x02\x03\x04"
    data = bytearray(make([Part(".eh_frame", 1, unwind_table(), flags=2, vaddr=0x8000), Part(".note", 7, note)]))
    struct.pack_into("<H", data, 18, AARCH64.elf_machine)
    path = tmp_path / "program"
    path.write_bytes(data)
    status = path.stat()
    mapping = Mapping(
        start=BASE,
        end=2 * BASE,
        offset=0,
        path=str(path),
        device="0:0",
        inode=status.st_ino,
        bias=BASE,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        build_id="01020304",
    )
    return ProcessImage(pid=4194303, started_ticks=1, executable=str(path), mappings=(mapping,))


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
