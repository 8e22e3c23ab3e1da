# SPDX-License-Identifier: Apache-2.0
"""A window from within: bytes that the server wrote and idle exits, in slices of a fraction of a second.

A mean hides bursts: a server that writes its dirty pages back all at once writes as much as one that does so
all the time. A thread reads two counters each slice; the wake-ups that it causes are powerprof's, one a slice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise

from powerprof.closeable import Closeable
from powerprof.errors import PowerprofError
from powerprof.experiment.records import Slices
from powerprof.files import read_fields
from powerprof.paths import procfs
from powerprof.sources.cpuidle import CpuidleReader


class Slicer(Closeable):
    """`start()` before a window and `finish()` after it; `close()` ends it also where the window broke."""

    def __init__(self, pids: Sequence[int], slice_s: float) -> None:
        self._pids = pids
        self._slice_s = slice_s
        self._over = threading.Event()
        self._read: list[tuple[float, int | None, int | None]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """The window begins."""
        self._thread.start()

    def finish(self) -> Slices:
        """The window is over."""
        self.close()
        return slices_of(self._read)

    def close(self) -> None:
        """Its thread wakes a CPU each slice: it must not outlive the window."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            reader: CpuidleReader | None = CpuidleReader()
        except PowerprofError:
            reader = None  # no driver: written bytes alone
        try:
            due_s = time.monotonic()
            while True:
                self._read.append((time.monotonic(), written_bytes(self._pids), _idle_exits(reader)))
                due_s += self._slice_s
                if self._over.wait(max(0.0, due_s - time.monotonic())):
                    return
        finally:
            if reader is not None:
                reader.close()


def _idle_exits(reader: CpuidleReader | None) -> int | None:
    usages = [reader.usage(cpu) for cpu in reader.cpus] if reader is not None else []
    return sum(sum(usage) for usage in usages if usage) if usages else None


def written_bytes(pids: Sequence[int]) -> int | None:
    """Bytes that these processes had written to a disk (write_bytes of /proc/PID/io, proc(5)); None where unknown."""
    texts = [read_fields(procfs() / str(pid) / "io").get("write_bytes", "") for pid in pids]
    return sum(int(text) for text in texts) if texts and all(text.isdigit() for text in texts) else None


def slices_of(read: Sequence[tuple[float, int | None, int | None]]) -> Slices:
    """Pure: the differences of consecutive readings. What could not be read each time has no slices."""
    lengths = [after[0] - before[0] for before, after in pairwise(read)]

    def moved(index: int) -> list[int]:
        values = [reading[index] for reading in read]
        known = [int(value) for value in values if value is not None]
        return [b - a for a, b in pairwise(known)] if len(known) == len(values) else []

    return Slices(lengths_s=lengths, write_bytes=moved(1), wakeups_count=moved(2))
