# SPDX-License-Identifier: Apache-2.0
"""Where a function's own code leaves it: its `ret` instructions, and the jumps that are tail calls.

A return probe of the kernel (uretprobe) puts an address of its own in place of the return address, and a C++ exception
that passes it ends the process: the unwinder finds no frame there. A probe on the `ret` itself changes no stack. The
places are found by decoding the function from its first byte to its last, which is sound for what compilers write, and
taken only where every byte decodes and no branch leads into the middle of an instruction: a probe there would break
the program.
"""

from __future__ import annotations

from collections.abc import Callable

from powerprof.stacks.decoding import instructions
from powerprof.stacks.decoding import target as target_of

MAX_CODE_BYTES = 1 << 18


def exits(code: bytes, vaddr: int, is_function: Callable[[int], bool]) -> tuple[int, ...] | str:
    """Offsets within `code` (x86-64) of the instructions that leave the function; or why they are unknown.

    `is_function` says whether a function begins at a link-time address: a jump there is a tail call, one to elsewhere
    outside (a `.cold` part) comes back. Jumps by a register cannot be distinguished from switches and are left
    out, conditional tail calls too: a call that ends by one is seen to be over at the next probe of its thread.
    """
    if not code or len(code) > MAX_CODE_BYTES:
        return f"its code is {len(code):,} bytes long"
    starts: set[int] = set()
    targets: set[int] = set()
    addresses: list[int] = []
    at = 0
    for address, size, words, operands in instructions(code):
        starts.add(address)
        at = address + size
        if words[-1] in ("ret", "retf", "iretq"):
            addresses.append(address)
        elif words[-1].startswith(("j", "loop", "xbegin")):
            target = target_of(operands)
            if target is not None and 0 <= target < len(code):
                targets.add(target)
            elif words[-1] != "jmp":
                continue
            elif is_function(vaddr + target) if target is not None else _through_memory(words, operands):
                addresses.append(address)
    if at != len(code):
        return "its code cannot be decoded"
    if not targets <= starts:
        return "its code has branches into the middle of instructions"
    return tuple(addresses)


def _through_memory(words: list[str], operands: str) -> bool:
    """Whether an indirect jump takes its target from a table of functions (vtable, GOT), not of a switch."""
    inside = operands.partition("[")[2]
    return bool(inside) and "*" not in inside and "notrack" not in words
