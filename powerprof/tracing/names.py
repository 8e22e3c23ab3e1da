# SPDX-License-Identifier: Apache-2.0
"""Names of what the kernel knows by numbers: its functions and its interrupts."""

from __future__ import annotations

from collections.abc import Mapping

from powerprof.files import try_text
from powerprof.paths import procfs


def kernel_functions(wanted: Mapping[int, object] | set[int], names: tuple[str, ...] = ()) -> dict[int, str]:
    """Names of exactly these kernel addresses, and the addresses of these names, from kallsyms in one pass.

    Empty where kallsyms is hidden (kptr_restrict).
    """
    found: dict[int, str] = {}
    try:
        with (procfs() / "kallsyms").open() as file:
            for line in file:
                parts = line.split(maxsplit=3)
                if len(parts) < 3:
                    continue
                address = int(parts[0], 16)
                if address and (address in wanted or parts[2] in names):
                    found.setdefault(address, parts[2])
    except (OSError, ValueError):
        return found
    return found


def interrupt_names() -> dict[int, str]:
    """Device name by interrupt number, from /proc/interrupts: the last column, as people know it."""
    names: dict[int, str] = {}
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        number, _, rest = line.partition(":")
        words = rest.split()
        if number.strip().isdigit() and words:
            names[int(number)] = words[-1]
    return names
