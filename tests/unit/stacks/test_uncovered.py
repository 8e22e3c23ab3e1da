# SPDX-License-Identifier: Apache-2.0
"""Functions without unwind tables: their callers by their code, checked, and nothing guessed."""

from __future__ import annotations

import random
import struct

import pytest

from powerprof.stacks.caller_candidates import (
    MAX_INSTRUCTIONS,
    FunctionBounds,
    find_candidates,
    follows_call,
    is_restorer,
)
from powerprof.stacks.effects import Value
from powerprof.stacks.image import snapshot
from powerprof.stacks.registers import AARCH64, X86_64, SavedStack
from powerprof.stacks.symbolizer import Symbolizer
from powerprof.stacks.unwind import Unwinder
from tests.programs.ground_truth import running
from tests.unit.stacks.test_unwind import C_NAMES, expected, own, saved

BASE = 0x1000


def read_of(code: bytes):
    return lambda at, size: code[at - BASE : at - BASE + size] if at >= BASE else b""


def leave(code: bytes, pc: int, start: int | None = None, *, end: int = 1 << 64, machine=X86_64, ends=()):
    return find_candidates(pc, read_of(code), FunctionBounds(start, end, lambda address: address in ends), machine)


@pytest.mark.parametrize(
    "program", ["sleepers-musl", "sleepers-musl-static", "sleepers-musl-O0", "sleepers-musl-no-eh"]
)
def test_musl_stacks_are_complete(built, program):
    with running(built(program)) as info:
        image = snapshot(info["pid"])
        unwinder = Unwinder()
        symbolizer = Symbolizer(image, unwinder.store, inline=False)
        for name in C_NAMES:
            result = unwinder.unwind(image, saved(info["pid"], info["threads"][name]["tid"]))
            frames = [frame.label for frame in symbolizer.stack(result)]
            assert (result.complete, result.reason) == (True, None)
            at = frames.index(expected(name)[0])
            assert frames[at : at + 4] == expected(name)
        main = unwinder.unwind(image, saved(info["pid"], info["pid"]))
        assert main.complete
        assert "main" in own(symbolizer.stack(main), program)


def test_random_stack_is_not_followed(built):
    with running(built("sleepers-no-eh")) as info:
        image = snapshot(info["pid"])
        stack = saved(info["pid"], info["threads"]["nanosleep"]["tid"])
        mapping = next(one for one in image.mappings if one.module == "sleepers-no-eh")
        unwinder = Unwinder()
        whole = unwinder.unwind(image, stack)
        # libc has a table; what it leads to is the program's, which has none.
        depth = next(number for number, pc in enumerate(whole.pcs) if mapping.start <= pc < mapping.end)
        inside = whole.pcs[depth]
        words = struct.unpack(f"<{len(stack.stack) // 8}Q", stack.stack[: len(stack.stack) // 8 * 8])
        at = words.index(inside) + 1
        for other in (mapping.start + 1, mapping.start, 0, 1, 0xFFFF_FFFF_FFFF_FFFF):
            junk = struct.pack("<Q", other) * (len(words) - at)
            damaged = SavedStack(stack.pid, stack.tid, stack.registers, stack.stack[: 8 * at] + junk)
            result = unwinder.unwind(image, damaged)
            assert result.pcs == whole.pcs[: depth + 1]
            assert "sleepers-no-eh: no .eh_frame" in result.reason


def test_caller_is_found_from_pops_before_the_return():
    # syscall; pop %rbx; mov 8(%rsp), %rbp; add $0x18, %rsp; pop %r12; ret
    code = bytes.fromhex("0f05 5b 488b6c2408 4883c418 415c c3")
    (step,) = leave(code, BASE).steps
    assert step.pc == Value("rsp", 0x28, True)
    assert step.registers["rsp"] == Value("rsp", 0x30)
    assert step.registers["rbx"] == Value("rsp", 0, True)
    assert step.registers["rbp"] == Value("rsp", 0x10, True)
    assert step.registers["r12"] == Value("rsp", 0x20, True)
    assert step.registers["r13"] == Value("r13", 0)


def test_registers_pushed_since_entry_are_restored():
    # push $1; push %rbx; pop %rbx; pop %rdx; leave; ret
    (step,) = leave(bytes.fromhex("6a01 53 5b 5a c9 c3"), BASE).steps
    assert (step.pc, step.registers["rsp"]) == (Value("rbp", 8, True), Value("rbp", 16))
    assert step.registers["rbx"] == Value("rbx", 0)
    assert step.registers["rbp"] == Value("rbp", 0, True)


def test_function_without_return_is_read_from_its_start():
    # push %rbp; mov %rsp, %rbp; push %rbx; sub $0x88, %rsp; and $-64, %rsp; L: call L; jmp L
    code = bytes.fromhex("55 4889e5 53 4881ec88000000 4883e4c0 e8fbffffff ebf9")
    assert leave(code, BASE + 21).steps == ()
    (step,) = leave(code, BASE + 21, BASE).steps
    assert step.pc == Value("rbp", 8, True)
    assert step.registers["rbx"] == Value("rbp", -8, True)
    assert step.registers["rbp"] == Value("rbp", 0, True)


def test_call_of_exit_is_the_bottom():
    # mov %eax, %edi; call exit; then another function: ret
    code = bytes.fromhex("89c7 e800100000 c3")
    assert leave(code, BASE, ends={BASE + 0x1007}).is_bottom
    assert not leave(code, BASE).is_bottom
    # mov %eax, %edi; xor %eax, %eax; mov $60, %al; syscall; hlt
    assert leave(bytes.fromhex("89c7 31c0 b03c 0f05 f4"), BASE).is_bottom
    # getpid does not end anything.
    assert not leave(bytes.fromhex("b827000000 0f05 c3"), BASE).is_bottom


def test_reading_stops_at_the_next_symbol():
    # call abort, at the end of its function; the next one: add $0x100, %rsp; ret
    code = bytes.fromhex("e8fb0f0000 4881c400010000 c3")
    assert leave(code, BASE, end=BASE + 5).steps == ()


def test_arm64_caller_is_found():
    # svc #0; ldp x19, x20, [sp, #0x10]; ldp x29, x30, [sp], #0x20; ret
    code = bytes.fromhex("010000d4 f35341a9 fd7bc2a8 c0035fd6")
    (step,) = leave(code, BASE, machine=AARCH64).steps
    assert step.pc == Value("sp", 8, True)
    assert step.registers["x19"] == Value("sp", 0x10, True)
    assert (step.registers["x29"], step.registers["sp"]) == (Value("sp", 0, True), Value("sp", 0x20))
    # stp x29, x30, [sp, #-0x20]!; mov x29, sp; str x19, [sp, #0x10]; L: bl L; b L
    code = bytes.fromhex("fd7bbea9 fd030091 f30b00f9 00000094 ffffff17")
    (step,) = leave(code, BASE + 16, BASE, machine=AARCH64).steps
    assert step.pc == Value("sp", 8, True)
    assert step.registers["x19"] == Value("sp", 0x10, True)
    # A leaf that slept: svc #0; ret
    (step,) = leave(bytes.fromhex("010000d4 c0035fd6"), BASE, machine=AARCH64).steps
    assert step.pc == Value("x30", 0)
    # mov x8, #93; svc #0
    assert leave(bytes.fromhex("a80b80d2 010000d4 c0035fd6"), BASE, machine=AARCH64).is_bottom


@pytest.mark.parametrize(
    ("code", "is_call"),
    [
        ("e800000000", True),  # call f
        ("ffd0", True),  # call *%rax
        ("41ffd4", True),  # call *%r12
        ("ff10", True),  # call *(%rax)
        ("ff5008", True),  # call *8(%rax)
        ("ff542408", True),  # call *8(%rsp)
        ("ff90e8000000", True),  # call *0xe8(%rax)
        ("ff1500000000", True),  # call *f@GOTPCREL(%rip)
        ("ff9424e8000000", True),  # call *0xe8(%rsp)
        ("ffe0", False),  # jmp *%rax
        ("90909090", False),
        ("c3", False),
    ],
)
def test_calls_are_recognised_before_a_return_address(code, is_call):
    assert follows_call(bytes.fromhex(code).rjust(8, b"\x90"), X86_64) == is_call


def test_arm64_calls_and_signal_returns_are_recognised():
    assert follows_call(bytes.fromhex("1f2003d5 00000094"), AARCH64)
    assert follows_call(bytes.fromhex("1f2003d5 00003fd6"), AARCH64)
    assert not follows_call(bytes.fromhex("1f2003d5 c0035fd6"), AARCH64)
    assert is_restorer(bytes.fromhex("681180d2010000d4"), AARCH64)
    assert not is_restorer(bytes.fromhex("681180d2010000d4"), X86_64)


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_reading_of_random_bytes_is_bounded(machine):
    draw = random.Random(20_000)
    pieces = [bytes.fromhex(word) for word in ("4883ec08", "c3", "75f0", "ebfe", "fd7bc2a8", "c0035fd6", "ffffff17")]
    asked = 0
    for _ in range(2_000):
        code = b"".join(draw.choice([draw.randbytes(4), *pieces]) for _ in range(draw.randrange(1, 60)))

        def read(at: int, size: int, code: bytes = code) -> bytes:
            nonlocal asked
            asked += 1
            return code[at - BASE : at - BASE + size] if at >= BASE else b""

        found = find_candidates(
            BASE + draw.randrange(len(code)), read, FunctionBounds(BASE, 1 << 64, lambda _: False), machine
        )
        assert len(found.steps) <= 9
    # No reading of any took more blocks than instructions are allowed.
    assert asked <= 2_000 * 2 * MAX_INSTRUCTIONS
