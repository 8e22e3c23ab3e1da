# SPDX-License-Identifier: Apache-2.0
"""Names of what the kernel knows by numbers: its functions and its interrupts."""

from __future__ import annotations

from collections.abc import Mapping

from powerprof.files import try_text
from powerprof.paths import procfs

_FIELDS = 3  # address, kind, name


def kernel_functions(wanted: Mapping[int, object] | set[int], names: tuple[str, ...] = ()) -> dict[int, str]:
    """Names of exactly these kernel addresses, and the addresses of these names, from kallsyms.

    Empty where kallsyms is hidden (kptr_restrict).
    """
    found: dict[int, str] = {}
    try:
        # A hundred thousand lines: looked through as bytes, for making lines of them takes half a second.
        table = b"\n" + (procfs() / "kallsyms").read_bytes()
        places = [table.find(b"\n%016x " % address) for address in wanted if address]
        for name in names:
            for end in (b"\n", b"\t"):
                at = table.find(b" " + name.encode() + end)
                places.append(table.rfind(b"\n", 0, at) if at >= 0 else -1)
        for place in places:
            parts = table[place + 1 : table.find(b"\n", place + 1)].decode("ascii", "replace").split()
            if place >= 0 and len(parts) >= _FIELDS and int(parts[0], 16):
                found.setdefault(int(parts[0], 16), parts[2])
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
