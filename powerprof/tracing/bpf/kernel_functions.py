# SPDX-License-Identifier: Apache-2.0
"""Query the names and addresses of the kernel's functions by programs that the kernel runs once (kernel.bpf.c).

The kernel answers in microseconds, under the rules of kallsyms (kptr_restrict). Reading kallsyms takes a third of a
second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from powerprof.system.errors import PowerprofError
from powerprof.tracing.bpf.kernel_memory import load_kernel_program

_NAME, _FIND = "called__name_function", "sleepable__find_function"


def read_function_texts(addresses: Iterable[int]) -> dict[int, str] | None:
    """Return the kernel's text for each address: `name+0x10/0x20` with ` [module]`, or a number if it is unknown.

    Returns None if the kernel cannot be queried (before Linux 5.13, or not permitted).
    """
    found = {}
    try:
        with load_kernel_program("NAMES_FUNCTIONS") as program:
            if not program.has(_NAME):
                return None
            for address in addresses:
                program.run(_NAME, address)
                found[address] = program.get("answer", 0).split(b"\0", 1)[0].decode("ascii", "replace")
    except (OSError, PowerprofError):
        return None
    return found


def find_function_address(*names: str) -> int | None:
    """Return the address of the first of these functions that the kernel has, 0 if it has none or hides addresses.

    None if the kernel cannot be queried (before Linux 5.16, or not permitted).
    """
    try:
        with load_kernel_program("FINDS_FUNCTIONS") as program:
            if not program.has(_FIND):
                return None
            for name in names:
                program.put("answer", 0, name.encode().ljust(program.value_bytes("answer"), b"\0"))
                program.run(_FIND, 0)
                if address := int.from_bytes(program.get("answer", 0)[:8], sys.byteorder):
                    return address
    except (OSError, PowerprofError):
        return None
    return 0
