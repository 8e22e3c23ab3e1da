# SPDX-License-Identifier: Apache-2.0
"""The effects of single instructions on the registers that lead to a caller."""

from __future__ import annotations

import pytest

from powerprof.stacks.effects import ARM, X86, State, Value, apply_arm, apply_x86, branch_target, decode_instructions
from powerprof.stacks.registers import X86_64


def x86(code: str, state: State | None = None) -> State:
    """Return the state after the machine code."""
    state = state or X86.begin()
    for _, _, words, operands in decode_instructions(bytes.fromhex(code), machine=X86_64):
        apply_x86(state, words, operands)
    return state


RSP, RBX, RBP = Value("rsp", 0), Value("rbx", 0), Value("rbp", 0)


def moved(offset: int, register: str = "rsp", *, loaded: bool = False) -> Value:
    return Value(register, offset, loaded)


@pytest.mark.parametrize(
    ("code", "registers"),
    [
        ("53", {"rsp": moved(-8), "rbx": RBX}),  # push rbx
        ("5b", {"rsp": moved(8), "rbx": moved(0, loaded=True)}),  # pop rbx
        ("535b", {"rsp": RSP, "rbx": RBX}),
        ("53554154 415c5d5b", {"rsp": RSP, "rbx": RBX, "rbp": RBP}),
        ("4883ec28", {"rsp": moved(-0x28)}),  # sub rsp, 0x28
        ("4883c428", {"rsp": moved(0x28)}),  # add rsp, 0x28
        ("554889e5", {"rsp": moved(-8), "rbp": moved(-8)}),  # push rbp; mov rbp, rsp
        ("554889e54883ec20c9", {"rsp": RSP, "rbp": RBP}),  # … sub rsp, 0x20; leave
        ("c9", {"rsp": moved(8, "rbp"), "rbp": moved(0, "rbp", loaded=True)}),  # leave
        ("48895c24f8", {"rsp": RSP, "rbx": RBX}),  # mov [rsp - 8], rbx
        ("48895c24f8488b6c24f8", {"rbp": RBX}),  # …; mov rbp, [rsp - 8]
        ("488b5c24f8", {"rbx": moved(-8, loaded=True)}),  # mov rbx, [rsp - 8]
        ("488d6c24f0", {"rbp": moved(-16)}),  # lea rbp, [rsp - 0x10]
        ("488d6c2410", {"rbp": moved(16)}),
        ("4893", {"rbx": None}),  # xchg rbx, rax
        ("31db", {"rbx": None}),  # xor ebx, ebx
        ("9c", {"rsp": moved(-8)}),  # pushfq
        ("9d", {"rsp": moved(8)}),  # popfq
        ("c8100000", {"rsp": None}),  # enter
        ("4839d8", {"rbx": RBX}),  # cmp rax, rbx
    ],
)
def test_x86_instructions(code: str, registers: dict[str, Value | None]) -> None:
    state = x86(code)
    assert {name: state.registers.get(name) for name in registers} == registers


@pytest.mark.parametrize(
    ("code", "exits"),
    [
        ("b83c000000", True),  # mov eax, 60: exit
        ("b8e7000000", True),  # mov eax, 231: exit_group
        ("b801000000", False),  # write
        ("b83c00000089d8", False),  # mov eax, ebx
        ("31c0", False),
    ],
)
def test_x86_system_calls_that_end_a_thread(code: str, exits: bool) -> None:
    state = x86(code)
    flow = apply_x86(state, ["syscall"], "")
    assert (flow.exits, flow.on, state.number if flow.on else None) == (exits, not exits, None)


@pytest.mark.parametrize(
    ("word", "operands", "flow"),
    [
        ("ret", "", (False, None, None, True)),
        ("retf", "", (False, None, None, False)),
        ("call", "0x1234", (True, None, 0x1234, False)),
        ("call", "rax", (True, None, None, False)),
        ("jmp", "0x40", (False, 0x40, None, False)),
        ("je", "0x40", (True, 0x40, None, False)),
        ("hlt", "", (False, None, None, False)),
        ("nop", "", (True, None, None, False)),
    ],
)
def test_x86_flow(word: str, operands: str, flow: tuple[bool, int | None, int | None, bool]) -> None:
    found = apply_x86(X86.begin(), [word], operands)
    assert (found.on, found.jump, found.call, found.returns) == flow


def test_targets_before_zero_are_negative() -> None:
    assert [branch_target(word) for word in ("0x40", "0xfffffffffffffff0", "rax", "qword ptr [rip]")] == [
        0x40,
        -16,
        None,
        None,
    ]


def arm(*instructions: tuple[str, str]) -> State:
    state = ARM.begin()
    for word, operands in instructions:
        apply_arm(state, [word], operands)
    return state


SP, X19, X30 = Value("sp", 0), Value("x19", 0), Value("x30", 0)


@pytest.mark.parametrize(
    ("instructions", "registers"),
    [
        ([("sub", "sp, sp, #0x20")], {"sp": moved(-0x20, "sp")}),
        ([("add", "sp, sp, #0x20")], {"sp": moved(0x20, "sp")}),
        ([("sub", "sp, sp, #1, lsl #12")], {"sp": moved(-0x1000, "sp")}),
        ([("add", "x29, sp, #2, lsl #12")], {"x29": moved(0x2000, "sp")}),
        ([("stp", "x29, x30, [sp, #-0x20]!")], {"sp": moved(-0x20, "sp")}),
        ([("ldp", "x29, x30, [sp], #0x20")], {"sp": moved(0x20, "sp"), "x30": moved(8, "sp", loaded=True)}),
        (
            [("ldp", "x29, x30, [sp, #0x10]")],
            {"x29": moved(16, "sp", loaded=True), "x30": moved(24, "sp", loaded=True)},
        ),
        (
            [("stp", "x19, x30, [sp, #-0x10]!"), ("mov", "x19, x0"), ("ldp", "x19, x30, [sp], #0x10")],
            {"sp": SP, "x19": X19, "x30": X30},
        ),
        ([("str", "x19, [sp, #8]"), ("ldr", "x20, [sp, #8]")], {"x20": X19}),
        ([("bl", "#0x40")], {"x30": None, "x19": X19}),
        ([("blr", "x8")], {"x30": None}),
        ([("mov", "x29, sp")], {"x29": SP}),
        ([("ldrb", "w19, [sp]")], {"x19": None}),
        ([("cmp", "x19, #1"), ("paciasp", "")], {"x19": X19, "x30": X30}),
    ],
)
def test_arm64_instructions(instructions: list[tuple[str, str]], registers: dict[str, Value | None]) -> None:
    state = arm(*instructions)
    assert {name: state.registers.get(name) for name in registers} == registers


@pytest.mark.parametrize(("number", "exits"), [(93, True), (94, True), (64, False)])
def test_arm64_system_calls_that_end_a_thread(number: int, exits: bool) -> None:
    assert apply_arm(arm(("mov", f"x8, #{number:#x}")), ["svc"], "#0").exits is exits


@pytest.mark.parametrize(
    ("word", "operands", "flow"),
    [
        ("ret", "", (False, None, None, True)),
        ("ret", "x1", (False, None, None, False)),
        ("bl", "#0x40", (True, None, 0x40, False)),
        ("b", "#0x40", (False, 0x40, None, False)),
        ("b.eq", "#0x40", (True, 0x40, None, False)),
        ("cbz", "x0, #0x40", (True, 0x40, None, False)),
        ("tbnz", "w0, #3, #0x40", (True, 0x40, None, False)),
        ("br", "x8", (False, None, None, False)),
    ],
)
def test_arm64_flow(word: str, operands: str, flow: tuple[bool, int | None, int | None, bool]) -> None:
    found = apply_arm(ARM.begin(), [word], operands)
    assert (found.on, found.jump, found.call, found.returns) == flow
