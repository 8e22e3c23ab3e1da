# SPDX-License-Identifier: Apache-2.0
"""sysbench behind a gate: it asks while powerprof holds the gate open and sleeps while it is shut.

Two loads can so take turns of a fraction of a second, each connected and warm all the time. The gate is a file that
both map, words of the host's byte order:

offset 0            u32 `turn`: 0 shut, 0xffffffff over, else a number that is new each time the gate opens
64 + 4160 × client  u32 ready (connected), u32 busy (asking), u64 statements done, u64 sum of their latencies in µs,
                    1,024 × u32 a histogram of the latencies, logarithmic from 0.001 ms to 100 s (1.8 % a bucket),
                    u32 failed (its statement did)

A pace of 0 is as fast as it goes: each client asks again when it has its answer.

Arrivals are exponentially distributed and each client's own. A client that is not done when its next statement is due
asks that at once afterwards, and its latency counts from when it was due. What is due while the gate is shut is not
asked. `statements.lua` is the other end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerprof import programs
from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.experiment.loads.base import Context, LoadFailed, LoadOrder, LoadResult
from powerprof.experiment.loads.process import ProcessLoad
from powerprof.experiment.loads.sysbench import arguments, config, percentile
from powerprof.folders import Folder
from powerprof.windows.runner import wait_out
from powerprof.workloads.definition import Load

_BUCKETS, _FIRST_MS, _LAST_MS = 1024, 1e-3, 1e5
_GATE_BYTES = 64
_CLIENT = np.dtype(
    [
        ("ready", np.uint32),
        ("busy", np.uint32),
        ("done", np.uint64),
        ("total_us", np.uint64),
        ("buckets", np.uint32, _BUCKETS),
        ("failed", np.uint32),
        ("unused", np.uint32, 9),
    ]
)
_FUTEX_WAKE = 1  # include/uapi/linux/futex.h
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_LIBC = ctypes.CDLL(None)
_CONNECT_S = 60.0
_SHUT, _OVER = 0, 0xFFFFFFFF
_END_S = 5.0
_POLL_S = 0.0005


def is_possible() -> bool:
    """Whether this machine's system calls are known to `statements.lua`."""
    return platform.machine() in _SYS_FUTEX


@dataclass(frozen=True)
class Tally:
    """What the clients have done since they connected. `buckets`: shape (1024,)."""

    done: int
    total_us: int
    buckets: NDArray[np.int64]

    def since(self, before: Tally) -> LoadResult:
        """What they did after `before`; the time is for the caller to know."""
        counts = self.buckets - before.buckets
        done = self.done - before.done
        edges = [(_value_ms(int(index)), int(counts[index])) for index in np.flatnonzero(counts)]
        return LoadResult(
            queries=done,
            elapsed_s=0.0,
            p50_ms=percentile(edges, 50),
            p95_ms=percentile(edges, 95),
            p99_ms=percentile(edges, 99),
            mean_ms=(self.total_us - before.total_us) / done / 1e3 if done else None,
        )


def _value_ms(bucket: int) -> float:
    """The middle of a bucket, in the logarithm."""
    return float(_FIRST_MS * (_LAST_MS / _FIRST_MS) ** ((bucket + 0.5) / (_BUCKETS - 1)))


class GatedLoad(Closeable):
    """sysbench with its clients connected and the gate shut. Use it as a context manager: it ends with it.

    Raises CapabilityError where sysbench is not installed, LoadFailed where the clients do not connect.
    """

    def __init__(self, load: Load, statements: Sequence[str], context: Context, rate_hz: float, seed: int) -> None:
        program = programs.need("sysbench", "sysbench")
        size = _GATE_BYTES + load.clients * _CLIENT.itemsize
        path = context.file("gate", bytes(size))
        self._turn = 0
        self._memory = _map(path, size)
        self._gate: NDArray[np.uint32] = np.frombuffer(self._memory, np.uint32, 1)
        self._clients: NDArray[Any] = np.frombuffer(self._memory, _CLIENT, load.clients, _GATE_BYTES)
        pacing = ["--time=0", "--events=0", "--rate=0", f"--gate={path}", f"--pace={rate_hz:g}"]
        self._process = ProcessLoad(
            arguments(program, load, statements, context, seed, pacing),
            context,
            lambda text, _: _unexpected(text),
            stdin=config(load, context),
        )

    def _open(self) -> None:
        self._wait_for(lambda: bool(self._clients["ready"].all()), _CONNECT_S, "did not connect")

    def close(self) -> None:
        self._process.kill()

    @property
    def pids(self) -> Sequence[int]:
        """The client's process."""
        return self._process.pids

    def alive(self) -> bool:
        """False once the client has ended."""
        return self._process.alive()

    def open(self) -> None:
        """Let the clients ask from now on."""
        self._turn += 1
        self._turn_to(self._turn)

    def shut(self, patience_s: float) -> None:
        """Let no client begin a statement, and wait until those under way are answered. Raises LoadFailed."""
        self._turn_to(_SHUT)
        self._wait_for(lambda: not bool(self._clients["busy"].any()), patience_s, "is not answered")

    def tally(self) -> Tally:
        """The counts until now; exact while the gate is shut."""
        return Tally(
            int(self._clients["done"].sum()),
            int(self._clients["total_us"].sum()),
            self._clients["buckets"].sum(axis=0, dtype=np.int64),
        )

    def _turn_to(self, turn: int) -> None:
        self._gate[0] = turn
        address = self._gate.ctypes.data
        _LIBC.syscall(_SYS_FUTEX[platform.machine()], ctypes.c_void_p(address), _FUTEX_WAKE, 2**31 - 1, None, None, 0)

    def _wait_for(self, done: Callable[[], bool], patience_s: float, what: str) -> None:
        deadline_s = time.monotonic() + patience_s
        while not done():
            failed = self._clients["failed"].any()
            if failed:
                self._turn_to(_OVER)
            if failed or not self._process.alive():
                self._process.finish(_END_S)  # raises with sysbench's output
            if time.monotonic() > deadline_s:
                raise LoadFailed(f"sysbench {what} in {patience_s:.0f} s")
            time.sleep(_POLL_S)


class OpenGate:
    """sysbench with the gate open from the start, for whole windows on a server that does not count statements in time:
    PostgreSQL's processes report what they did up to a second later (monitoring-stats, "Statistics collection").

    Raises CapabilityError where sysbench is not installed or this machine's calls are unknown, LoadFailed where the
    clients do not connect.
    """

    def __init__(self, load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> None:
        if not is_possible():
            raise CapabilityError(f"statements cannot be counted on {platform.machine()}", "use a load of kind pgbench")
        self._load = GatedLoad(load, statements, context, order.rate_hz or 0.0, order.seed)
        self._load.__enter__()
        self._start = self._load.tally()
        self._start_s = time.monotonic()
        self._until_s = self._start_s + (order.duration_s or 0.0)
        self._load.open()

    @property
    def pids(self) -> Sequence[int]:
        """The client's process."""
        return self._load.pids

    def alive(self) -> bool:
        """False once it has ended."""
        return self._load.alive()

    def done(self) -> int:
        """How many statements have been answered until now."""
        return self._load.tally().done - self._start.done

    def finish(self, timeout_s: float) -> LoadResult:
        """Wait until its time is over and the last is answered. Raises LoadFailed."""
        wait_out((), self._until_s - time.monotonic())
        try:
            self._load.shut(timeout_s)
            return replace(self._load.tally().since(self._start), elapsed_s=time.monotonic() - self._start_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it now."""
        self._load.close()


def _map(path: Path, size: int) -> mmap.mmap:
    """Map a file that another account owns; it is not led elsewhere by a link."""
    with Folder.open(path.parent) as folder:
        handle = os.open(path.name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder.handle)
    with os.fdopen(handle, "r+b"):
        return mmap.mmap(handle, size)


def _unexpected(text: str) -> LoadResult:
    raise PowerprofError(
        f"sysbench ended early: {' / '.join(text.split()[-20:])[:200]}",
        "its words name the reason; powerprof --debug shows where",
    )
