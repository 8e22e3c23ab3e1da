# SPDX-License-Identifier: Apache-2.0
"""Names of what the kernel knows by numbers: its functions and its interrupts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from powerprof.files import try_text
from powerprof.paths import procfs

_FIELDS = 3  # address, kind, name
_CHUNK = 1 << 18


def address_of(names: Sequence[str]) -> int:
    """Where the kernel has a function of one of these names; 0 where it has none, or kallsyms is hidden.

    The list is long and made while it is read, the kernel's own functions first: no more is read than is needed.
    """
    wanted = re.compile(rb"^([0-9a-f]+) \w (?:%s)$" % "|".join(names).encode(), re.MULTILINE)
    rest = b""
    try:
        with (procfs() / "kallsyms").open("rb", buffering=0) as file:
            while data := file.read(_CHUNK):
                lines, _, rest = (rest + data).rpartition(b"\n")
                if match := wanted.search(lines):
                    return int(match[1], 16)
    except OSError:
        return 0
    return 0


def kernel_functions(wanted: Mapping[int, object] | set[int]) -> dict[int, str]:
    """Names of exactly these kernel addresses, from kallsyms. Empty where it is hidden (kptr_restrict)."""
    functions: dict[int, str] = {}
    try:
        # A hundred thousand lines: looked through as bytes, for making lines of them takes half a second.
        table = b"\n" + (procfs() / "kallsyms").read_bytes()
        places = [table.find(b"\n%016x " % address) for address in wanted if address]
        for place in places:
            parts = table[place + 1 : table.find(b"\n", place + 1)].decode("ascii", "replace").split()
            if place >= 0 and len(parts) >= _FIELDS and int(parts[0], 16):
                functions.setdefault(int(parts[0], 16), parts[2])
    except (OSError, ValueError):
        return functions
    return functions


def interrupt_names() -> dict[int, str]:
    """Device name by interrupt number, from /proc/interrupts: the last column, as people know it."""
    names: dict[int, str] = {}
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        number, _, rest = line.partition(":")
        words = rest.split()
        if number.strip().isdigit() and words:
            names[int(number)] = words[-1]
    return names
