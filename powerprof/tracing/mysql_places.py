# SPDX-License-Identifier: Apache-2.0
"""Find the places to probe in MariaDB and MySQL, and the place of statement texts in their memory.

Every packet of every client goes through one function. It has had one name since MySQL 4.1 and three lists of
parameters, which its mangled name shows. Plugins need its neighbours, so servers export their functions: a stripped
server has it in .dynsym.

The text of the statement that a thread executes is found through the program, without a login. It is in an object of
each connection (THD), and plugins need both: a function or thread-local variable has the thread's connection, and a
function returns the text of a connection. Both functions have a few instructions, from which the offsets are read, on
x86-64 and arm64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from powerprof.stacks.effects import decode_instructions
from powerprof.stacks.elf import Elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import AARCH64, X86_64, Machine
from powerprof.system.errors import CapabilityError
from powerprof.tracing import arm64_code
from powerprof.tracing.statement_places import Dispatch, TextPlace, find_probe_offsets, open_program, skip_landing_mark
from powerprof.tracing.symbols import find_file_offset, find_thread_offset, is_stepped, read_function_symbols
from powerprof.tracing.waits import find_wait_sites

_DISPATCH = "_Z16dispatch_command"
_WAITS = "_Z10do_commandP3THD"
# CALL and events execute a procedure. An event has no packet before it.
_PROCEDURE, AT_PROCEDURE = "_ZN7sp_head17execute_procedureEP3THD", "uprobe__procedure"
# The parameters by mangled name, and the LAYOUT of queries.bpf.c.
LAYOUTS = {"19enum_server_commandP3THDPc": 0, "P3THDPK8COM_DATA19enum_server_command": 1}
EXPORTING = "a build that exports its functions"


# MariaDB's function since 5.1 and MySQL's until 5.6, and MySQL's variable since 5.7.
_CONNECTIONS, _CONNECTION = ("_current_thd", "_Z12_current_thdv", "_Z11current_thdv"), "current_thd"
_TEXTS = ("thd_query_string", "thd_query_unsafe", "_Z16thd_query_unsafeP3THD")
# Tests two bits of a connection's sql_mode, whose place is known thereby.
_STRICT = ("thd_is_strict_mode", "_Z18thd_is_strict_modePK3THD", "_Z18thd_is_strict_modeP3THD")
_STRICT_BITS = (("qword", "0x600000", 0), ("dword", "0x600000", 0), ("byte", "0x60", 2))
_MOST_BYTES, _MOST_INSTRUCTIONS = 64, 16
_FRAME = frozenset(("endbr64", "push", "pop", "nop"))
_OFFSET = r"(?: ([+-]) (0x[0-9a-f]+|\d+))?\]"

Code = Sequence[tuple[str, str]]
"""Words and operands of instructions."""


def find_dispatch(image: ProcessImage) -> Dispatch:
    """Return the places to probe in MariaDB or MySQL. Raises CapabilityError if the function is missing or unknown."""
    with open_program(image, EXPORTING) as (elf, mapping):
        return _find_dispatch(elf, mapping)


def _find_dispatch(elf: Elf, mapping: Mapping) -> Dispatch:
    symbols, _ = read_function_symbols(elf)
    waits = next((vaddr for vaddr, name in symbols if name.startswith(_WAITS) and "." not in name), None)
    others = []
    for vaddr, name in symbols:
        if not name.startswith(_DISPATCH):
            continue
        layout = next(
            (number for mangled, number in LAYOUTS.items() if name[len(_DISPATCH) :].startswith(mangled)), None
        )
        offset = find_file_offset(elf, vaddr)
        # The parameters of a clone (.constprop, .isra, .part) differ from its name.
        if layout is None or offset is None or "." in name:
            others.append(name)
            continue
        offset = skip_landing_mark(elf, offset)
        waits_offset = None if waits is None else find_file_offset(elf, waits)
        return Dispatch(
            mapping=mapping,
            symbol=name,
            offset=offset,
            layout=layout,
            waits_offset=None if waits_offset is None else skip_landing_mark(elf, waits_offset),
            stepped=is_stepped(elf.read(offset, 2)),
            waits=find_wait_sites(elf, symbols),
            within=find_probe_offsets(
                elf, {AT_PROCEDURE: next((at for at, name in symbols if name.startswith(_PROCEDURE)), None)}
            ),
        )
    if others:
        raise CapabilityError(f"{mapping.module} passes its commands in an unknown way ({others[0][:80]})", EXPORTING)
    raise CapabilityError(f"{mapping.module} has no symbol of dispatch_command, where statements begin", EXPORTING)


def find_text(image: ProcessImage) -> TextPlace:
    """Return the place of statement texts. Raises CapabilityError if the program does not show it."""
    with open_program(image, EXPORTING) as (elf, mapping):
        return _find_text(elf, mapping)


def _find_text(elf: Elf, mapping: Mapping) -> TextPlace:
    symbols = {name: vaddr for vaddr, name in read_function_symbols(elf)[0]}
    text = next(
        (at for code in _read_code(elf, symbols, _TEXTS) if (at := find_text_offset(code, elf.machine)) is not None),
        None,
    )
    client = find_thread_offset(elf, _CONNECTION)
    if client is None:
        found = (find_connection_offset(code, elf.machine) for code in _read_code(elf, symbols, _CONNECTIONS))
        client = next((at for at in found if at is not None), None)
    if text is None or client is None:
        what = "a connection has its text" if text is None else "a thread has its connection"
        raise CapabilityError(f"{mapping.module} does not show where {what}", EXPORTING)
    modes = (find_mode_offset(code) for code in _read_code(elf, symbols, _STRICT))
    return TextPlace(text, client, next((at for at in modes if at is not None), 0))


def _read_code(elf: Elf, symbols: dict[str, int], names: Sequence[str]) -> Iterator[Code]:
    """Yield the instructions of the present functions, up to their return."""
    for name in names:
        offset = find_file_offset(elf, symbols[name]) if name in symbols else None
        if offset is None:
            continue
        code = elf.read(offset, min(_MOST_BYTES, elf.size - offset))
        found = []
        for _, _, words, operands in decode_instructions(code, symbols[name], _MOST_INSTRUCTIONS, elf.machine):
            found.append((words[-1], operands))
            if words[-1] == "ret":
                yield found
                break


def find_text_offset(code: Code, machine: Machine = X86_64) -> int | None:
    """Return the offset of the text in the argument: `lea rax, [rdi + N]`, or text and length are returned."""
    if machine is AARCH64:
        return _find_arm64_text_offset(code)
    body = _skip_frame(code)
    if len(body) == 1:
        return _read_offset(body[0], "lea", "rax", r"\[rdi")
    if len(body) == 2:
        text, length = (
            _read_offset(one, "mov", into, r"qword ptr \[rdi") for one, into in zip(body, ("rax", "rdx"), strict=True)
        )
        return text if text is not None and length == text + 8 else None
    return None


def _find_arm64_text_offset(code: Code) -> int | None:
    """Return N if `argument + N` or the two words at that address are returned, else None."""
    registers = arm64_code.find_returned_registers(code)
    name, offset = registers.get("x0", ("", 0))
    if name == arm64_code.ARGUMENT:
        return offset
    found = re.fullmatch(rf"\[{arm64_code.ARGUMENT} (-?\d+)\]", name)
    if found is None or offset or registers.get("x1") != (f"[{arm64_code.ARGUMENT} {int(found[1]) + 8}]", 0):
        return None
    return int(found[1])


def find_connection_offset(code: Code, machine: Machine = X86_64) -> int | None:
    """Return the connection's offset from the thread pointer: `mov rax, fs:[0]; mov rax, [rax - N]`, or in one step."""
    if machine is AARCH64:
        return _find_arm64_connection_offset(code)
    body = _skip_frame(code)
    if len(body) == 1:
        found = re.fullmatch(r"rax, qword ptr fs:\[(0x[0-9a-f]+|\d+)\]", body[0][1]) if body[0][0] == "mov" else None
        return None if found is None else _to_signed(int(found[1], 0))
    if len(body) == 2 and body[0] == ("mov", "rax, qword ptr fs:[0]"):
        return _read_offset(body[1], "mov", "rax", r"qword ptr \[rax")
    return None


def _find_arm64_connection_offset(code: Code) -> int | None:
    """Return N if the word at the thread pointer + N is returned, else None."""
    name, offset = arm64_code.find_returned_registers(code).get("x0", ("", 0))
    found = re.fullmatch(rf"\[{arm64_code.THREAD} (-?\d+)\]", name)
    return int(found[1]) if found and not offset else None


def find_mode_offset(code: Code) -> int | None:
    """Return the offset of sql_mode in a connection: `test qword ptr [rdi + N], 0x600000`, or the byte of these bits.

    Other code, such as that of arm64, shows none.
    """
    for word, operands in _skip_frame(code)[:1]:
        for size, bits, shift in _STRICT_BITS:
            found = re.fullmatch(rf"{size} ptr \[rdi{_OFFSET}, {bits}", operands) if word == "test" else None
            if found is not None and found[1] == "+":
                return int(found[2], 0) - shift
    return None


def _skip_frame(code: Code) -> Code:
    """Return the code without instructions that make and remove a frame."""
    return [
        (word, operands)
        for word, operands in code
        if word not in _FRAME and word != "ret" and (word, operands) != ("mov", "rbp, rsp")
    ]


def _read_offset(instruction: tuple[str, str], word: str, into: str, source: str) -> int | None:
    found = re.fullmatch(rf"{into}, {source}{_OFFSET}", instruction[1]) if instruction[0] == word else None
    if found is None:
        return None
    return int(found[2] or "0", 0) * (-1 if found[1] == "-" else 1)


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
