# SPDX-License-Identifier: Apache-2.0
"""Code of a file in memory without a file, to which a process has copied it.

Servers and runtimes copy their code to huge pages (MySQL's super-large-pages, Node's --use-largepages, libhugetlbfs).
The copy has the addresses of the original: it is a hole in a load segment of the file, between its other mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from powerprof.stacks.elf import PF_X, Elf

_PAGE = 0x1000


class FilePart(NamedTuple):
    """A mapping of a file, executable or not."""

    start: int
    end: int
    offset: int
    device: str
    inode: int
    path: str


Parse = Callable[[str], FilePart | None]


def find_neighbours(lines: Sequence[str], holes: Collection[int], parse: Parse) -> dict[int, list[FilePart]]:
    """Return the mappings of files next to each hole, by the start of the hole.

    `lines` are those of /proc/PID/maps, and `parse` returns the mapping of a line, or None if no file has it. A mapping
    is next to a hole if it touches it, or touches a hole that is next to it.
    """
    found: dict[int, list[FilePart]] = {start: [] for start in holes}
    for is_forward in (True, False):
        last, edge = "", -1
        for start, end, line in _read_ranges(lines if is_forward else lines[::-1]):
            touches = (start if is_forward else end) == edge
            if start in found:
                last = last if touches else ""
                if last and (part := parse(last)) is not None:
                    found[start].append(part)
            else:
                last = line
            edge = end if is_forward else start
    return found


def _read_ranges(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    for line in lines:
        low, dash, rest = line.partition("-")
        if dash:
            yield int(low, 16), int(rest.partition(" ")[0], 16), line


def find_origin(elf: Elf, part: FilePart, start: int, end: int) -> tuple[int, int] | None:
    """Return bias and file offset of the code that was loaded to [start, end); None if it is not code of the file.

    `part` is another mapping of the file.
    """
    for bias in _find_biases(elf, part):
        for segment in elf.loads():
            low = (bias + segment.vaddr) & -_PAGE
            high = (bias + segment.vaddr + segment.memory_bytes + _PAGE - 1) & -_PAGE
            if segment.flags & PF_X and low <= start < end <= high:
                return bias, segment.offset + start - bias - segment.vaddr
    return None


def _find_biases(elf: Elf, part: FilePart) -> list[int]:
    """Return load address − link-time address: two segments can share a page of the file."""
    return [
        part.start - (segment.vaddr - (segment.offset - part.offset))
        for segment in elf.loads()
        if segment.offset & -_PAGE <= part.offset < segment.offset + max(segment.file_bytes, 1)
    ]
