# SPDX-License-Identifier: Apache-2.0
"""Instructions of x86-64 and arm64: the only user of capstone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from powerprof.stacks.registers import X86_64, Machine

LONGEST_BYTES = 15


@cache
def _decoder(machine: Machine) -> Any:
    import capstone

    if machine is X86_64:
        return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    return capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)


def instructions(
    code: bytes, vaddr: int = 0, most: int = 0, machine: Machine = X86_64
) -> Iterator[tuple[int, int, list[str], str]]:
    """(address, bytes, words such as ["notrack", "jmp"], operands) from the first on, until one does not decode.

    `most`: end after as many; 0: all.
    """
    for address, size, mnemonic, operands in _decoder(machine).disasm_lite(code, vaddr, most):
        yield address, size, mnemonic.split(), operands


def target(operands: str) -> int | None:
    """Where a branch leads; None where it goes by a register or by memory."""
    try:
        address = int(operands, 0)
    except ValueError:
        return None
    return address - (1 << 64) if address >> 63 else address
