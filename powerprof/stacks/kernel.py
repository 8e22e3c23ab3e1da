# SPDX-License-Identifier: Apache-2.0
"""Kernel addresses → function names by /proc/kallsyms, where the kernel shows it and cannot be asked (before 5.13)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from powerprof.errors import CapabilityError
from powerprof.files import reason_of
from powerprof.paths import procfs

MAX_SYMBOLS = 2_000_000
# kallsyms has no sizes: a function ends at the next symbol, and the last one of a module is no longer than this.
MAX_FUNCTION_BYTES = 1 << 20


@dataclass(frozen=True)
class KernelSymbols:
    """Sorted symbols of kernel text; `modules[i]` is "" for the kernel itself."""

    addresses: tuple[int, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]

    def lookup(self, address: int) -> tuple[str, str, int] | None:
        """(name, module, start) of the function at an address; None outside of known text."""
        at = bisect_right(self.addresses, address) - 1
        if at < 0 or at + 1 >= len(self.addresses):
            return None
        if address - self.addresses[at] >= MAX_FUNCTION_BYTES or not self.names[at]:
            return None
        return self.names[at], self.modules[at] or "vmlinux", self.addresses[at]


def kernel_symbols() -> KernelSymbols:
    """The running kernel's functions. Raises CapabilityError where it has or shows none."""
    path = procfs() / "kallsyms"
    rows: list[tuple[int, str, str]] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                parts = line.split()
                # Data symbols are kept as ends of the text before them, without a name of their own.
                if len(parts) < 3 or len(rows) >= MAX_SYMBOLS:
                    continue
                try:
                    address = int(parts[0], 16)
                except ValueError:
                    continue
                if address:
                    name = parts[2] if parts[1] in "tTwW" else ""
                    rows.append((address, name, parts[3].strip("[]") if len(parts) > 3 else ""))
    except OSError as error:
        raise CapabilityError(
            f"no kernel function names: {path} cannot be read ({reason_of(error)})",
            "a kernel with CONFIG_KALLSYMS, and root",
        ) from error
    if not rows:
        raise CapabilityError(
            f"no kernel function names: {path} shows no addresses", "run as root, or: sysctl kernel.kptr_restrict=0"
        )
    best: dict[int, tuple[str, str]] = {}
    for address, name, module in rows:
        known = best.get(address)
        if known is None or not known[0] or (name and len(name) < len(known[0])):
            best[address] = (name, module)
    order = sorted(best)
    return KernelSymbols(tuple(order), tuple(best[at][0] for at in order), tuple(best[at][1] for at in order))
