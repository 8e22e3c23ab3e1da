# SPDX-License-Identifier: Apache-2.0
"""Names of what the kernel knows by numbers: its functions and its interrupts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from powerprof.errors import CapabilityError
from powerprof.files import try_text
from powerprof.paths import is_this_host, procfs
from powerprof.stacks.kernel import kernel_symbols
from powerprof.tracing.bpf.asking import function_texts, tick_function
from powerprof.tracing.bpf.btf import Btf

_CHUNK = 1 << 18


def address_of(names: Sequence[str]) -> int:
    """Where the kernel itself has the first of these names that it has; 0 where it has none, or kallsyms is hidden.

    The list is long and made while it is read: reading ends at the first name, or where the functions of modules begin.
    Clang's link-time optimisation puts a suffix behind the names of static functions.
    """
    wanted = re.compile(rb"^([0-9a-f]+) \w (%s)(?:\.llvm\.\d+)?$" % "|".join(names).encode(), re.MULTILINE)
    found: dict[str, int] = {}
    for lines in _symbols():
        for match in wanted.finditer(lines):
            found.setdefault(match[2].decode(), int(match[1], 16))
        if names[0] in found or b"\t[" in lines:
            break
    return next((found[name] for name in names if name in found), 0)


# The hrtimer's function of the scheduler tick by age of the kernel: to 6.7, in 6.8, from 6.9 on. Before 6.8
# tick_nohz_handler was there too: the handler of a clock without high resolution, which no hrtimer calls.
TICK_HANDLERS = ("tick_sched_timer", "tick_nohz_highres_handler", "tick_nohz_handler")


def tick_handler(btf: Btf) -> int:
    """Where the function is that the tick's hrtimer calls; 0 where that is not known."""
    return tick_function(btf) or address_of(TICK_HANDLERS)


def _symbols() -> Iterator[bytes]:
    """Some lines of kallsyms at a time; none where it cannot be read."""
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


# A function's name, where it begins and ends, and the module that has it: printf's %pS (core-api/printk-formats.rst).
_FUNCTION = re.compile(r"(\S+)\+0x([0-9a-f]+)/0x[0-9a-f]+(?: \[(.+)\])?")


def kernel_places(addresses: Collection[int]) -> dict[int, tuple[str, str, int]]:
    """(function, module, its start) of addresses within the kernel's functions; the kernel's own module is `vmlinux`.

    Those that the kernel has no name for are left out. Raises CapabilityError where it gives no names at all.
    """
    texts = function_texts(addresses) if addresses and is_this_host() else None
    if texts is None:
        symbols = kernel_symbols() if addresses else None
        found = {address: symbols.lookup(address) for address in addresses} if symbols is not None else {}
        return {address: place for address, place in found.items() if place is not None}
    return {
        address: (named[1], named[3] or "vmlinux", address - int(named[2], 16))
        for address, text in texts.items()
        if (named := _FUNCTION.fullmatch(text))
    }


def kernel_functions(addresses: Collection[int]) -> dict[int, str]:
    """Names of the functions that begin at these addresses. Empty where the kernel gives none."""
    try:
        places = kernel_places(addresses)
    except CapabilityError:
        return {}
    return {address: name for address, (name, _, start) in places.items() if start == address}


def interrupt_names() -> dict[int, str]:
    """Device name by interrupt number, from /proc/interrupts: the last column, as people know it."""
    names: dict[int, str] = {}
    for line in (try_text(procfs() / "interrupts") or "").splitlines()[1:]:
        number, _, rest = line.partition(":")
        words = rest.split()
        if number.strip().isdigit() and words:
            names[int(number)] = words[-1]
    return names


class Interrupts:
    """Names of interrupts for who asks all day: read when a number comes that was not there before."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._met: set[int] = set()

    def of(self, causes: npt.NDArray[np.void]) -> dict[int, str]:
        """The names, all that these causes (layout.CAUSE) ask for among them."""
        numbers = {*causes["irq"].tolist(), *causes["waker_irq"].tolist()}
        if not numbers <= self._met:
            self._met |= numbers
            self._names = interrupt_names()
        return self._names
