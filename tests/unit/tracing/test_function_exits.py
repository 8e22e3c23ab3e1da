# SPDX-License-Identifier: Apache-2.0
"""Exits of machine code."""

from __future__ import annotations

import pytest

from powerprof.tracing.function_exits import find_exits
from tests.unit.tracing.test_functions import ELSEWHERE


def found(code: str) -> tuple[int, ...] | str:
    """Exits of code at 0x1000; functions begin at 0x2000 only."""
    return find_exits(bytes.fromhex(code), 0x1000, lambda vaddr: vaddr == ELSEWHERE)


@pytest.mark.parametrize(
    ("code", "where"),
    [
        ("535bc3", (2,)),  # push rbx; pop rbx; ret
        ("f3c3", (0,)),  # repz ret: from the prefix on
        ("c21000", (0,)),  # ret 16
        ("85ff7401c3c3", (4, 5)),  # test; je +1; ret; ret
        ("e9fb0f0000", (0,)),  # jmp to 0x2000: a tail call
        ("e9fb0e0000", ()),  # jmp to where no function begins: a part of this one
        ("0f84fa0f0000c3", (6,)),  # a conditional tail call is left out
        ("ebfe", ()),  # jmp to itself
        ("ff6010", (0,)),  # jmp [rax+0x10]: by a vtable
        ("ff2500100000", (0,)),  # jmp [rip+0x1000]: by the GOT
        ("ff24c500204000", ()),  # jmp [rax*8+0x402000]: a switch
        ("ffe0", ()),  # jmp rax: either
        ("3effe0", ()),  # notrack jmp rax: a switch
        ("3eff6010", ()),  # notrack jmp [rax+0x10]: a switch
        ("b8c3c3c3c3c3", (5,)),  # mov eax, 0xc3c3c3c3; ret
    ],
)
def test_returns_and_tail_calls_are_exits(code: str, where: tuple[int, ...]) -> None:
    assert found(code) == where


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "0 bytes long"),
        ("06c3", "cannot be decoded"),  # push es: not in 64-bit mode
        ("b8c3", "cannot be decoded"),  # cut in the middle
        ("eb01b8c3c3c3c3c3", "into the middle of instructions"),  # jmp into the mov
        ("90" * ((1 << 18) + 1), "262,145 bytes long"),
    ],
)
def test_uncertain_code_is_refused(code: str, why: str) -> None:
    said = found(code)
    assert isinstance(said, str)
    assert why in said


def test_jump_behind_the_last_instruction_is_a_tail_call() -> None:
    """The next function begins there; without a function the jump stays in this one."""
    code = bytes.fromhex("90eb00")  # nop; jmp to the byte behind
    assert find_exits(code, 0x1000, lambda vaddr: vaddr == 0x1003) == (1,)
    assert find_exits(code, 0x1000, lambda vaddr: False) == ()
