# SPDX-License-Identifier: Apache-2.0
"""Names of what the kernel knows by numbers: its functions and its interrupts."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from powerprof.files import try_text
from powerprof.paths import procfs

_FIELDS = 3  # address, kind, name
_DIGITS = 16  # of an address: what is first by its letters is lowest
_CHUNK = 1 << 18


def address_of(names: Sequence[str]) -> int:
    """Where the kernel itself has the first of these names that it has; 0 where it has none, or kallsyms is hidden.

    The list is long and made while it is read: reading ends at the first name, or where the functions of modules begin.
    Clang's link-time optimisation puts a suffix behind the names of static functions.
    """
    wanted = re.compile(rb"^([0-9a-f]+) \w (%s)(?:\.llvm\.\d+)?$" % "|".join(names).encode(), re.MULTILINE)
    found: dict[str, int] = {}
    for lines in _symbols(_CHUNK):
        for match in wanted.finditer(lines):
            found.setdefault(match[2].decode(), int(match[1], 16))
        if names[0] in found or b"\t[" in lines:
            break
    return next((found[name] for name in names if name in found), 0)


# The hrtimer's function of the scheduler tick by age of the kernel: to 6.7, in 6.8, from 6.9 on. Before 6.8
# tick_nohz_handler was there too: the handler of a clock without high resolution, which no hrtimer calls.
TICK_HANDLERS = ("tick_sched_timer", "tick_nohz_highres_handler", "tick_nohz_handler")


def tick_handler() -> int:
    """Where the function is that the tick's hrtimer calls; 0 where that is not known."""
    return address_of(TICK_HANDLERS)


def _symbols(size: int) -> Iterator[bytes]:
    """Some lines of kallsyms at a time; none where it cannot be read."""
    rest = b""
    try:
        with (procfs() / "kallsyms").open("rb", buffering=0) as file:
            while data := file.read(size):
                lines, _, rest = (rest + data).rpartition(b"\n")
                yield lines
    except OSError:
        return
    if rest:
        yield rest


def kernel_functions(wanted: Mapping[int, object] | set[int]) -> dict[int, str]:
    """Names of exactly these kernel addresses, from kallsyms. Empty where it is hidden (kptr_restrict)."""
    functions: dict[int, str] = {}
    try:
        # A hundred thousand lines: looked through as bytes, for making lines of them takes half a second.
        table = b"\n" + (procfs() / "kallsyms").read_bytes()
        places = [table.find(b"\n%016x " % address) for address in wanted if address]
        for place in places:
            if place >= 0:
                functions.update(_parsed(table, place + 1))
    except (OSError, ValueError):
        return functions
    return functions


def _parsed(table: bytes, at: int) -> dict[int, str]:
    """The symbol of the line that begins there."""
    end = table.find(b"\n", at)
    parts = table[at : end if end >= 0 else len(table)].decode("ascii", "replace").split()
    address = int(parts[0], 16)
    return {address: parts[2]} if len(parts) >= _FIELDS and address else {}


def _block(lines: bytes) -> tuple[bytes, bytes, bytes]:
    """The lowest and the highest address, and the lines. Modules are not in the order of their addresses."""
    entries = lines.split(b"\n")
    return min(entries)[:_DIGITS], max(entries)[:_DIGITS], zlib.compress(lines, 1)


class KernelFunctions:
    """Names for who asks all day: the kernel builds kallsyms again for each reader, in 50 ms of CPU time.

    A packed copy is kept, a megabyte. An address that is not in it is that of a module or a BPF program which came
    later: then it is read once more.
    """

    def __init__(self) -> None:
        self._read()

    def _read(self) -> None:
        self._blocks = [_block(lines) for lines in _symbols(_CHUNK)]

    def find(self, wanted: set[int]) -> dict[int, str]:
        """As `kernel_functions`."""
        found = self._find(wanted)
        if len(found) < len(wanted) and self._blocks:
            self._read()
            found = self._find(wanted)
        return found

    def _find(self, wanted: set[int]) -> dict[int, str]:
        keys = {b"%016x" % address for address in wanted}
        found: dict[int, str] = {}
        for low, high, packed in self._blocks:
            if here := [key for key in keys if low <= key <= high]:
                lines = b"\n" + zlib.decompress(packed)
                for key in here:
                    if (place := lines.find(b"\n" + key + b" ")) >= 0:
                        found.update(_parsed(lines, place + 1))
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
