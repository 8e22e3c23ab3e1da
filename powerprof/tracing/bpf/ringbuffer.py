# SPDX-License-Identifier: Apache-2.0
"""Takes records out of a BPF ring buffer, which is shared memory (Documentation/bpf/ringbuf.rst in the kernel).

One page with the consumer's position, which is ours to write; one with the producer's; then the data. Positions only
grow. The kernel offers the data twice in a row, so that no record is cut; once is enough here, and half the memory.

Positions and lengths are read and written as whole words: struct goes byte by byte, and a position that is read in
between is one that never was.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

_PAGE = mmap.PAGESIZE
_HEADER, _LENGTH_BYTES = 8, 4
_BUSY, _DISCARD = 1 << 31, 1 << 30


class RingBuffer:
    """One ring buffer of a map's descriptor and size; `on_bytes` gets each record."""

    def __init__(self, descriptor: int, size_bytes: int, on_bytes: Callable[[bytes], object]) -> None:
        self._on_bytes, self._mask = on_bytes, size_bytes - 1
        self._consumer = mmap.mmap(descriptor, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._shared = mmap.mmap(descriptor, _PAGE + size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        self._consumed, self._produced = memoryview(self._consumer).cast("Q"), memoryview(self._shared).cast("Q")
        self._lengths = memoryview(self._shared).cast("I")

    def close(self) -> None:
        """Unmap."""
        for view in (self._consumed, self._produced, self._lengths):
            view.release()
        self._consumer.close()
        self._shared.close()

    def consume(self) -> None:
        """Deliver what is there; never waits."""
        position, end = self._consumed[0], self._produced[0]
        while position < end:
            at = _PAGE + (position & self._mask)
            # The kernel takes the busy bit out last, when the record is whole (kernel/bpf/ringbuf.c).
            length = self._lengths[at // _LENGTH_BYTES]
            if length & _BUSY:
                break
            size = length & ~_DISCARD
            if not length & _DISCARD:
                self._on_bytes(self._record((position + _HEADER) & self._mask, size))
            position += (_HEADER + size + 7) & ~7
            self._consumed[0] = position
            if position >= end:
                end = self._produced[0]

    def _record(self, at: int, size: int) -> bytes:
        first = min(size, self._mask + 1 - at)
        return self._shared[_PAGE + at : _PAGE + at + first] + self._shared[_PAGE : _PAGE + size - first]
