# SPDX-License-Identifier: Apache-2.0
"""Read the bursts within a window: written bytes and idle exits per slice of a fraction of a second.

A mean hides bursts: a server that writes all its dirty pages at once writes as much as one that writes continuously. A
thread reads two counters per slice; its wake-ups, one per slice, belong to powerprof.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

from powerprof.experiment.records import Slices
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.reader_process import shared


class Slicer(Closeable):
    """A reader of slices: `start()` before a window, `finish()` after it, `close()` after a failed window."""

    def __init__(self, pids: Sequence[int], slice_s: float) -> None:
        self._pids = pids
        self._slice_s = slice_s
        self._over = threading.Event()
        self._read: list[tuple[float, int | None, int | None]] = []
        self._problem: PowerprofError | OSError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def finish(self) -> Slices:
        """Stop reading and return the slices. Raise PowerprofError or OSError if they could not be read."""
        self.close()
        if self._problem is not None:
            raise self._problem
        return build_slices(self._read)

    def close(self) -> None:
        """Stop the thread: it wakes a CPU per slice and must not outlive the window."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            reader: CpuidleReader | None = CpuidleReader()
        except PowerprofError:
            reader = None  # without a cpuidle driver, read written bytes only
        try:
            due_s = time.monotonic()
            while True:
                self._read.append((time.monotonic(), read_written_bytes(self._pids), _read_idle_exits(reader)))
                due_s += self._slice_s
                if self._over.wait(max(0.0, due_s - time.monotonic())):
                    return
        except (PowerprofError, OSError) as error:
            self._problem = error
        finally:
            if reader is not None:
                reader.close()


def _read_idle_exits(reader: CpuidleReader | None) -> int | None:
    usages = [reader.usage(cpu) for cpu in reader.cpus] if reader is not None else []
    return sum(sum(usage) for usage in usages if usage) if usages else None


def read_written_bytes(pids: Sequence[int]) -> int | None:
    """Return the bytes these processes wrote to disks (write_bytes of /proc/PID/io, proc(5)); None if unknown."""
    texts = [shared().proc_file(pid, "io", 1024) or b"" for pid in pids]
    counts = [re.search(rb"^write_bytes: (\d+)$", text, re.MULTILINE) for text in texts]
    return sum(int(count[1]) for count in counts if count) if counts and all(counts) else None


def build_slices(read: Sequence[tuple[float, int | None, int | None]]) -> Slices:
    """Return the differences of consecutive readings. A counter that was unreadable once has no slices."""
    lengths = [after[0] - before[0] for before, after in pairwise(read)]

    def moved(index: int) -> list[int]:
        values = [reading[index] for reading in read]
        known = [int(value) for value in values if value is not None]
        return [b - a for a, b in pairwise(known)] if len(known) == len(values) else []

    return Slices(lengths_s=lengths, write_bytes=moved(1), wakeups_count=moved(2))
