# SPDX-License-Identifier: Apache-2.0
"""Read the names of kernel functions and interrupts."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from powerprof.system.errors import CapabilityError, reason_of
from powerprof.system.files import try_text
from powerprof.system.paths import is_this_host, procfs
from powerprof.tracing.bpf.kernel_functions import find_function_address, read_function_texts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

KERNEL_MAX_SYMBOLS = 2_000_000
# kallsyms has no sizes. A function ends at the next symbol, and the last one of a module is at most this long.
MAX_FUNCTION_BYTES = 1 << 20


class KernelSymbols(msgspec.Struct, frozen=True):
    """Sorted symbols of kernel text by /proc/kallsyms; `modules[i]` is "" for the kernel itself."""

    addresses: tuple[int, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]

    def lookup(self, address: int) -> tuple[str, str, int] | None:
        """Return (name, module, start) of the function at an address, or None outside of known text."""
        at = bisect_right(self.addresses, address) - 1
        if at < 0 or at + 1 >= len(self.addresses):
            return None
        if address - self.addresses[at] >= MAX_FUNCTION_BYTES or not self.names[at]:
            return None
        return self.names[at], self.modules[at] or "vmlinux", self.addresses[at]


def read_kernel_symbols() -> KernelSymbols:
    """Return the running kernel's functions. Raises CapabilityError if it has or shows none."""
    path = procfs() / "kallsyms"
    rows: list[tuple[int, str, str]] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                parts = line.split()
                # Data symbols mark the end of the text before them. They get no name.
                if len(parts) < 3 or len(rows) >= KERNEL_MAX_SYMBOLS:
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


_CHUNK = 1 << 18


def find_kernel_address(names: Sequence[str]) -> int:
    """Return the address of the first of these names that the kernel itself has, or 0 if unknown or hidden.

    kallsyms is long and is made while it is read. Reading ends at the first name, or at the first module. Clang's
    link-time optimisation adds a suffix to the names of static functions.
    """
    wanted = re.compile(rb"^([0-9a-f]+) \w (%s)(?:\.llvm\.\d+)?$" % "|".join(names).encode(), re.MULTILINE)
    found: dict[str, int] = {}
    for lines in _symbols():
        for match in wanted.finditer(lines):
            found.setdefault(match[2].decode(), int(match[1], 16))
        if names[0] in found or b"\t[" in lines:
            break
    return next((found[name] for name in names if name in found), 0)


# The hrtimer function of the scheduler tick: until 6.7, in 6.8, since 6.9. Before 6.8 tick_nohz_handler was a handler
# for clocks without high resolution, which no hrtimer calls.
TICK_HANDLERS = ("tick_sched_timer", "tick_nohz_highres_handler", "tick_nohz_handler")


def find_tick_handler() -> int:
    """Return the address of the function that the tick's hrtimer calls, or 0 if unknown."""
    if is_this_host() and (address := find_function_address(*TICK_HANDLERS)):
        return address
    # Kernels that cannot be queried, and those with suffixes of a compiler.
    return find_kernel_address(TICK_HANDLERS)


def _symbols() -> Iterator[bytes]:
    """Yield kallsyms in pieces of whole lines; nothing if it cannot be read."""
    rest = b""
    try:
        with (procfs() / "kallsyms").open("rb", buffering=0) as file:
            while data := file.read(_CHUNK):
                lines, _, rest = (rest + data).rpartition(b"\n")
                yield lines
    except OSError:
        return
    if rest:
        yield rest


# Name, offset, size and module of an address: printf's %pS (core-api/printk-formats.rst).
_FUNCTION = re.compile(r"(\S+)\+0x([0-9a-f]+)/0x[0-9a-f]+(?: \[(.+)\])?")


def locate_kernel_addresses(addresses: Collection[int]) -> dict[int, tuple[str, str, int]]:
    """Return (function, module, start of the function) by address; the kernel's own module is `vmlinux`.

    Addresses without a name are left out. Raises CapabilityError if the kernel gives no names at all.
    """
    texts = read_function_texts(addresses) if addresses and is_this_host() else None
    if texts is None:
        symbols = read_kernel_symbols() if addresses else None
        found = {address: symbols.lookup(address) for address in addresses} if symbols is not None else {}
        return {address: place for address, place in found.items() if place is not None}
    return {
        address: (named[1], named[3] or "vmlinux", address - int(named[2], 16))
        for address, text in texts.items()
        if (named := _FUNCTION.fullmatch(text))
    }


def name_kernel_functions(addresses: Collection[int]) -> dict[int, str]:
    """Return the names of functions that begin at these addresses. Empty if the kernel gives none."""
    try:
        places = locate_kernel_addresses(addresses)
    except CapabilityError:
        return {}
    return {address: name for address, (name, _, start) in places.items() if start == address}


def read_interrupt_names() -> dict[int, str]:
    """Return device names by interrupt number, from the last column of /proc/interrupts."""
    names: dict[int, str] = {}
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        number, _, rest = line.partition(":")
        words = rest.split()
        if number.strip().isdigit() and words:
            names[int(number)] = words[-1]
    return names


class InterruptNames:
    """Names of interrupts, read again when an unknown number appears."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._met: set[int] = set()

    def of(self, causes: npt.NDArray[np.void]) -> dict[int, str]:
        """Return the names, including all interrupts of these causes (CAUSE)."""
        numbers = {*causes["irq"].tolist(), *causes["waker_irq"].tolist()}
        if not numbers <= self._met:
            self._met |= numbers
            self._names = read_interrupt_names()
        return self._names
