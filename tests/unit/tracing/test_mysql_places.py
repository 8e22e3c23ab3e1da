# SPDX-License-Identifier: Apache-2.0
"""The places of statement texts in the memory of MariaDB and MySQL, by the code of real builds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.stacks.effects import decode_instructions
from powerprof.stacks.elf import PT_TLS, parse_elf
from powerprof.stacks.registers import AARCH64, X86_64, Machine
from powerprof.tracing.mysql_places import Code, find_connection_offset, find_mode_offset, find_text_offset
from powerprof.tracing.symbols import find_thread_offset
from tests.unit.stacks.elves import Part, make, symbol


def code(data: str) -> Code:
    return [(words[-1], operands) for _, _, words, operands in decode_instructions(bytes.fromhex(data))]


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        ("488d4768c3", 0x68),  # MariaDB 10.5 to 11.8: lea rax, [rdi + 0x68]; ret
        ("f30f1efa488d4768c3", 0x68),  # ... with a landing mark
        ("554889e5488d4768 5dc3", 0x68),  # ... with a frame
        ("f30f1efa488b8710050000488b9718050000c3", 0x510),  # MySQL 9.7: both are returned
        ("488b8710050000488b9720050000c3", None),  # the second is no length of the first
        ("488d4668c3", None),  # of what is passed second
        ("e800000000c3", None),  # calls another one
        ("c3", None),
    ],
)
def test_where_a_connection_has_its_text(data: str, offset: int | None) -> None:
    assert find_text_offset(code(data)) == offset


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        # MariaDB: mov rax, fs:[0] with prefixes; pop rbp; mov rax, [rax - 0x68]
        ("554889e566666664488b0425000000005d488b8098ffffffc3", -0x68),
        ("64488b042598ffffffc3", -0x68),  # at once
        ("64488b042510000000488b8098ffffffc3", None),  # from something else than the thread's pointer
        ("8b3dd2c5a100e96bfbfdff", None),  # MySQL 5.5 asks pthread_getspecific
    ],
)
def test_where_a_thread_has_its_connection(data: str, offset: int | None) -> None:
    assert find_connection_offset(code(data)) == offset


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        # MariaDB 10.11: test qword ptr [rdi + 0x898], 0x600000; setne al; ret
        ("48f7879808000000006000 0f95c0c3", 0x898),
        ("f30f1efa48f7879808000000006000 0f95c0c3", 0x898),  # with a landing mark
        ("f7879808000000006000 0f95c0c3", 0x898),  # four bytes
        ("f6879a08000060 0f95c0c3", 0x898),  # the byte that has them
        ("48f7879808000000004000 0f95c0c3", None),  # one bit alone
        ("48f7869808000000006000 0f95c0c3", None),  # of what is passed second
        ("488b8798080000c3", None),
        ("c3", None),
    ],
)
def test_where_a_connection_has_its_mode(data: str, offset: int | None) -> None:
    assert find_mode_offset(code(data)) == offset


def arm_code(data: str) -> Code:
    return [
        (words[-1], operands) for _, _, words, operands in decode_instructions(bytes.fromhex(data), machine=AARCH64)
    ]


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        ("00a00191c0035fd6", 0x68),  # Debian's MariaDB 10.11: add x0, x0, #0x68; ret
        ("5f2403d500a00191c0035fd6", 0x68),  # 11.8: with a landing mark
        ("fd7bbfa9fd03009100a00191fd7bc1a8c0035fd6", 0x68),  # with a frame
        ("0004409100a00191c0035fd6", 0x1068),  # in two steps: add x0, x0, #1, lsl #12
        ("020890d20000028bc0035fd6", 0x8040),  # mov x2, #0x8040; add x0, x0, x2
        ("000451a9c0035fd6", 0x110),  # ldp x0, x1, [x0, #0x110]: both are returned
        ("018c40f9008840f9c0035fd6", 0x110),  # ldr x1, [x0, #0x118]; ldr x0, [x0, #0x110]
        ("019040f9008840f9c0035fd6", None),  # the second is no length of the first
        ("008840f9c0035fd6", None),  # only one
        ("20a00191c0035fd6", None),  # of what is passed second
        ("00a00111c0035fd6", None),  # of half a register: add w0, w0, #0x68
        ("0000009400a00191c0035fd6", None),  # calls another one
        ("00a0019180025fd6", None),  # returns to somewhere else
        ("00a00191", None),  # does not return
        ("c0035fd6", 0),  # what is passed is where the text lies
    ],
)
def test_where_a_connection_has_its_text_on_arm64(data: str, offset: int | None) -> None:
    assert find_text_offset(arm_code(data), AARCH64) == offset


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        # Debian's MariaDB 10.11: mrs x1, tpidr_el0; movz x0, #0, lsl #16; movk x0, #0x10; ldr x0, [x1, x0]
        ("fd7bbfa941d03bd5fd0300910000a0d2000280f21f2003d51f2003d5206860f8fd7bc1a8c0035fd6", 0x10),
        # 11.8: with its return address signed
        ("3f2303d5fd7bbfa9fd0300910000a0d2000280f21f2003d51f2003d541d03bd5fd7bc1a8bf2303d5206860f8c0035fd6", 0x10),
        ("40d03bd500004091000c40f9c0035fd6", 0x18),  # mrs x0; add x0, x0, #0, lsl #12; ldr x0, [x0, #0x18]
        ("40d03bd5000440d1000c40f9c0035fd6", 0x18 - 0x1000),  # before it
        ("40d03bd5c0035fd6", None),  # the pointer itself
        ("000c40f9c0035fd6", None),  # from something else than the thread's pointer
        ("40d03bd5000c40f9000c40f9c0035fd6", None),  # what lies behind another address
        ("41d03bd5206860f8c0035fd6", None),  # by what is passed
        ("c0035fd6", None),
    ],
)
def test_where_a_thread_has_its_connection_on_arm64(data: str, offset: int | None) -> None:
    assert find_connection_offset(arm_code(data), AARCH64) == offset


@pytest.mark.parametrize(("machine", "offset"), [(X86_64, 0x20 - 0x70), (AARCH64, 0x20 + 0x10)])
def test_where_a_thread_has_a_variable_of_its_own(machine: Machine, offset: int) -> None:
    rows = symbol(0, 0, 0) + symbol(1, 0x20, 8, info=0x16)
    parts = [Part(".symtab", 2, rows, link=2, entry_bytes=24), Part(".strtab", 3, b"\0current_thd\0")]
    elf = parse_elf(make(parts, machine=machine.elf_machine), "server")
    block = replace(elf.segments[0], kind=PT_TLS, memory_bytes=0x68, align=0x10)
    assert find_thread_offset(replace(elf, segments=(block,)), "current_thd") == offset
