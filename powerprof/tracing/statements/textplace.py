# SPDX-License-Identifier: Apache-2.0
"""Where a server's memory has the text of the statement that a thread executes: found in its program, without a login.

PostgreSQL exports it: debug_query_string, set while a process executes something. MariaDB and MySQL keep it in an
object of each connection (THD), and plugins have to come by both: there is a function that returns the thread's
connection, or a variable of the thread (thread_local), and one that returns where a connection has its text. Both are
a few instructions long, and what they add to an address is read there, on x86-64 and arm64.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from powerprof.errors import CapabilityError
from powerprof.stacks.decoding import instructions
from powerprof.stacks.elf import Elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import AARCH64, X86_64, Machine
from powerprof.statements.identity import Family
from powerprof.tracing.statements import armcode
from powerprof.tracing.statements.dispatch import EXPORTING, own_program
from powerprof.tracing.symbols.file_functions import object_address, own_symbols, thread_offset
from powerprof.tracing.symbols.patterns import file_offset

POSTGRESQL_TEXT, POSTGRESQL_CLIENT = "debug_query_string", "MyProcPort"
# MariaDB's function and MySQL's variable; MariaDB's since 5.1 and MySQL's to 5.6, MySQL's since 5.7.
_CONNECTIONS, _CONNECTION = ("_current_thd", "_Z12_current_thdv", "_Z11current_thdv"), "current_thd"
_TEXTS = ("thd_query_string", "thd_query_unsafe", "_Z16thd_query_unsafeP3THD")
_MOST_BYTES, _MOST_INSTRUCTIONS = 64, 16
_FRAME = frozenset(("endbr64", "push", "pop", "nop"))
_OFFSET = r"(?: ([+-]) (0x[0-9a-f]+|\d+))?\]"

Code = Sequence[tuple[str, str]]
"""Words and operands of instructions."""


@dataclass(frozen=True)
class TextPlace:
    """`text` and `client` are those of struct place in place.bpf.h; numbers below zero count backwards."""

    text: int
    client: int


_PLACE = struct.Struct("<2Q")


def packed(place: TextPlace) -> bytes:
    """As the programs in the kernel have it."""
    return _PLACE.pack(place.text % (1 << 64), place.client % (1 << 64))


def find_text(image: ProcessImage, family: Family) -> TextPlace:
    """Raises CapabilityError where the program does not tell."""
    with own_program(image, EXPORTING) as (elf, mapping):
        return _postgresql(elf, mapping) if family == "postgresql" else _mysql(elf, mapping)


def _postgresql(elf: Elf, mapping: Mapping) -> TextPlace:
    text, client = (object_address(elf, name) for name in (POSTGRESQL_TEXT, POSTGRESQL_CLIENT))
    if text is None:
        raise CapabilityError(
            f"{mapping.module} has no symbol of {POSTGRESQL_TEXT}, where statements are",
            "a build that exports its variables, as PostgreSQL's own makefiles do",
        )
    return TextPlace(mapping.in_memory(text), 0 if client is None else mapping.in_memory(client))


def _mysql(elf: Elf, mapping: Mapping) -> TextPlace:
    symbols = {name: vaddr for vaddr, name in own_symbols(elf)[0]}
    text = next(
        (at for code in _code_of(elf, symbols, _TEXTS) if (at := text_offset(code, elf.machine)) is not None), None
    )
    client = thread_offset(elf, _CONNECTION)
    if client is None:
        found = (connection_offset(code, elf.machine) for code in _code_of(elf, symbols, _CONNECTIONS))
        client = next((at for at in found if at is not None), None)
    if text is None or client is None:
        what = "a connection has its text" if text is None else "a thread has its connection"
        raise CapabilityError(f"{mapping.module} does not show where {what}", EXPORTING)
    return TextPlace(text, client)


def _code_of(elf: Elf, symbols: dict[str, int], names: Sequence[str]) -> Iterator[Code]:
    """The instructions of those functions that there are, to where they return."""
    for name in names:
        offset = file_offset(elf, symbols[name]) if name in symbols else None
        if offset is None:
            continue
        code = elf.read(offset, min(_MOST_BYTES, elf.size - offset))
        found = []
        for _, _, words, operands in instructions(code, symbols[name], _MOST_INSTRUCTIONS, elf.machine):
            found.append((words[-1], operands))
            if words[-1] == "ret":
                yield found
                break


def text_offset(code: Code, machine: Machine = X86_64) -> int | None:
    """Of the text's address, the length behind it, in what is passed: `lea rax, [rdi + N]`, or both are returned."""
    if machine is AARCH64:
        return armcode.text_offset(code)
    body = _body(code)
    if len(body) == 1:
        return _offset(body[0], "lea", "rax", r"\[rdi")
    if len(body) == 2:
        text, length = (
            _offset(one, "mov", into, r"qword ptr \[rdi") for one, into in zip(body, ("rax", "rdx"), strict=True)
        )
        return text if text is not None and length == text + 8 else None
    return None


def connection_offset(code: Code, machine: Machine = X86_64) -> int | None:
    """Of the connection's address from the thread's pointer on: `mov rax, fs:[0]; mov rax, [rax - N]`, or at once."""
    if machine is AARCH64:
        return armcode.connection_offset(code)
    body = _body(code)
    if len(body) == 1:
        found = re.fullmatch(r"rax, qword ptr fs:\[(0x[0-9a-f]+|\d+)\]", body[0][1]) if body[0][0] == "mov" else None
        return None if found is None else _signed(int(found[1], 0))
    if len(body) == 2 and body[0] == ("mov", "rax, qword ptr fs:[0]"):
        return _offset(body[1], "mov", "rax", r"qword ptr \[rax")
    return None


def _body(code: Code) -> Code:
    """Without what makes and removes a frame."""
    return [
        (word, operands)
        for word, operands in code
        if word not in _FRAME and word != "ret" and (word, operands) != ("mov", "rbp, rsp")
    ]


def _offset(instruction: tuple[str, str], word: str, into: str, source: str) -> int | None:
    found = re.fullmatch(rf"{into}, {source}{_OFFSET}", instruction[1]) if instruction[0] == word else None
    if found is None:
        return None
    return int(found[2] or "0", 0) * (-1 if found[1] == "-" else 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
