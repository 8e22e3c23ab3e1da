# SPDX-License-Identifier: Apache-2.0
"""Find the instructions that leave a function: `ret`, and jumps that are tail calls.

A probe on the `ret` changes no stack, unlike a return probe (uretprobe). The places are found by decoding the function
from its first byte to its last, which is sound for compiled code. They are used only if every byte decodes and no
branch leads into the middle of an instruction, because a probe there would break the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from powerprof.stacks.effects import branch_target, decode_instructions
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.store import open_module
from powerprof.system.reader_process import Opened
from powerprof.tracing.symbols import ModuleFunctions

MAX_CODE_BYTES = 1 << 18


def find_exits(code: bytes, vaddr: int, is_function: Callable[[int], bool]) -> tuple[int, ...] | str:
    """Return the offsets in `code` (x86-64) of the instructions that leave the function, or the reason if unknown.

    `is_function` returns whether a function begins at a link-time address: a jump there is a tail call. A jump to
    another place outside (a `.cold` part) comes back. Jumps by a register cannot be distinguished from switches and are
    left out, conditional tail calls too: such a call ends at the next probe of its thread.
    """
    if not code or len(code) > MAX_CODE_BYTES:
        return f"its code is {len(code):,} bytes long"
    starts: set[int] = set()
    targets: set[int] = set()
    addresses: list[int] = []
    at = 0
    for address, size, words, operands in decode_instructions(code):
        starts.add(address)
        at = address + size
        if words[-1] in ("ret", "retf", "iretq"):
            addresses.append(address)
        elif words[-1].startswith(("j", "loop", "xbegin")):
            target = branch_target(operands)
            if target is not None and 0 <= target < len(code):
                targets.add(target)
            elif words[-1] != "jmp":
                continue
            elif is_function(vaddr + target) if target is not None else _is_through_memory(words, operands):
                addresses.append(address)
    if at != len(code):
        return "its code cannot be decoded"
    if not targets <= starts:
        return "its code has branches into the middle of instructions"
    return tuple(addresses)


def _is_through_memory(words: list[str], operands: str) -> bool:
    """Return whether an indirect jump takes its target from a table of functions (vtable, GOT), not of a switch."""
    inside = operands.partition("[")[2]
    return bool(inside) and "*" not in inside and "notrack" not in words


def read_exits(image: ProcessImage, module: ModuleFunctions) -> dict[int, tuple[int, ...] | str]:
    """Return the exit offsets of each function by its link-time address, or the reason if unknown."""
    opened = open_module(image, module.mapping)
    if not isinstance(opened, Opened):
        return {function.vaddr: opened for function in module.functions}
    exits_by_start: dict[int, tuple[int, ...] | str] = {}
    with opened:
        for function in module.functions:
            code = os.pread(opened.fd, min(function.size_bytes, MAX_CODE_BYTES + 1), function.offset)
            exits_by_start[function.vaddr] = find_exits(code, function.vaddr, module.starts.__contains__)
    return exits_by_start
