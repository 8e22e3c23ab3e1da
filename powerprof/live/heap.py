# SPDX-License-Identifier: Apache-2.0
"""What an interval needed and freed goes back to the system, so that the memory that is kept says what is in use."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

# include/malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_SMALL_BYTES = 128 << 10
_SLACK_BYTES = 1 << 20


def settle() -> None:
    """From now on: one arena for all threads, and big blocks of their own.

    Glibc gives each thread an arena that never shrinks below what it once held, and raises the size from which a block
    is mapped apart, and the size of what it keeps, with each block that is freed. Does nothing with another C library.
    What is there stays: Python's collector need not look at it again and again.
    """
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _SMALL_BYTES), (_M_TRIM_THRESHOLD, _SMALL_BYTES)):
            mallopt(name, value)


class Trim:
    """Gives back what lies free between what is in use, where memory has grown: looking for it takes half a
    millisecond."""

    def __init__(self) -> None:
        self._call = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._least = _resident_bytes()

    def resident_bytes(self) -> int:
        """The memory that this process holds between two intervals."""
        resident = _resident_bytes()
        self._least = min(self._least, resident)
        if self._call is not None and resident - self._least > _SLACK_BYTES:
            self._call(ctypes.c_size_t(0))
            resident = self._least = _resident_bytes()
        return resident


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
