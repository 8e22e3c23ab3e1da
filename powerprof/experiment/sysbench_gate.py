# SPDX-License-Identifier: Apache-2.0
"""Run sysbench behind a gate: clients send statements while powerprof holds it open, and sleep while it is closed.

Two connected, warm loads can so alternate several times a second. The gate is a file that both programs map, with
words in the byte order of the host:

offset 0            u32 `turn`: 0 closed, 0xffffffff over, else a new number at each opening
64 + 4160 × client  u32 ready (connected), u32 busy (waiting), u64 statements done, u64 sum of their latencies in µs,
                    1,024 × u32 a histogram of the latencies, logarithmic from 0.001 ms to 100 s (1.8 % per bucket),
                    u32 failed (its statement failed)

A pace of 0 means full speed: each client continues after each answer. Otherwise the arrivals of each client are
exponentially distributed. A late client continues at once, and latencies count from the due time. Statements that
are due while the gate is closed are dropped. `statements.lua` is the other end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from powerprof.experiment.load import Context, LoadFailed, LoadOrder, LoadResult, ProcessLoad, look_at_server
from powerprof.experiment.sysbench import build_command_line, find_percentile, write_config
from powerprof.measure.target_life import LOOK_S
from powerprof.measure.window import wait_and_read
from powerprof.system import program_search
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.folders import Folder
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


def is_gate_supported() -> bool:
    """Return whether `statements.lua` knows the system calls of this machine."""
    return platform.machine() in _SYS_FUTEX


class Tally(msgspec.Struct, frozen=True):
    """The work of the clients since they connected. `buckets`: shape (1024,)."""

    done: int
    total_us: int
    buckets: NDArray[np.int64]

    def since(self, before: Tally) -> LoadResult:
        """Return the work after `before`; `elapsed_s` is left at 0."""
        counts = self.buckets - before.buckets
        done = self.done - before.done
        edges = [(_read_bucket_ms(int(index)), int(counts[index])) for index in np.flatnonzero(counts)]
        return LoadResult(
            queries=done,
            elapsed_s=0.0,
            p50_ms=find_percentile(edges, 50),
            p95_ms=find_percentile(edges, 95),
            p99_ms=find_percentile(edges, 99),
            mean_ms=(self.total_us - before.total_us) / done / 1e3 if done else None,
        )


def _read_bucket_ms(bucket: int) -> float:
    """Return the logarithmic middle of a bucket in ms."""
    return float(_FIRST_MS * (_LAST_MS / _FIRST_MS) ** ((bucket + 0.5) / (_BUCKETS - 1)))


class GatedLoad(Closeable):
    """sysbench with connected clients and a closed gate, while the context is open.

    Raises CapabilityError if sysbench is not installed, and LoadFailed if the clients do not connect.
    """

    def __init__(self, load: Load, statements: Sequence[str], context: Context, rate_hz: float, seed: int) -> None:
        program = program_search.need("sysbench", "sysbench")
        size = _GATE_BYTES + load.clients * _CLIENT.itemsize
        path = context.file("gate", bytes(size))
        self._turn, self._server = 0, context.server
        self._memory = _map_file(path, size)
        self._gate: NDArray[np.uint32] = np.frombuffer(self._memory, np.uint32, 1)
        self._clients: NDArray[Any] = np.frombuffer(self._memory, _CLIENT, load.clients, _GATE_BYTES)
        pacing = ["--time=0", "--events=0", "--rate=0", f"--gate={path}", f"--pace={rate_hz:g}"]
        self._process = ProcessLoad(
            build_command_line(program, load, statements, context, seed, pacing),
            context,
            lambda text, _: _raise_early_end(text),
            stdin=write_config(load, context),
        )

    def _open(self) -> None:
        self._wait_for(lambda: bool(self._clients["ready"].all()), _CONNECT_S, "did not connect")

    def close(self) -> None:
        self._process.kill()

    @property
    def pids(self) -> Sequence[int]:
        return self._process.pids

    def look(self) -> None:
        """Raise TargetEndedError if a given server has ended or was stopped."""
        look_at_server(self._server)

    def alive(self) -> bool:
        return self._process.alive()

    def open(self) -> None:
        """Let the clients start statements."""
        self._turn += 1
        self._turn_to(self._turn)

    def shut(self, patience_s: float) -> None:
        """Let no client start a statement, and wait for the running ones. Raise LoadFailed."""
        self._turn_to(_SHUT)
        self._wait_for(lambda: not bool(self._clients["busy"].any()), patience_s, "is not answered")

    def tally(self) -> Tally:
        """Return the counts so far; they are exact while the gate is closed."""
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
        deadline_s, look_s = time.monotonic() + patience_s, time.monotonic() + LOOK_S
        while not done():
            failed = self._clients["failed"].any()
            if failed:
                self._turn_to(_OVER)
            if failed or not self._process.alive():
                self._process.finish(_END_S)  # raises with sysbench's output
            if time.monotonic() > look_s:
                self.look()
                look_s += LOOK_S
            if time.monotonic() > deadline_s:
                raise LoadFailed(f"sysbench {what} in {patience_s:.0f} s")
            time.sleep(_POLL_S)


class OpenGate:
    """sysbench with an open gate, for whole windows on servers that do not count statements in time.

    PostgreSQL's processes report their statistics up to a second late (monitoring-stats, "Statistics collection").
    Raises CapabilityError if sysbench is not installed or this machine's calls are unknown, and LoadFailed if the
    clients do not connect.
    """

    def __init__(self, load: Load, statements: Sequence[str], context: Context, order: LoadOrder) -> None:
        if not is_gate_supported():
            raise CapabilityError(f"statements cannot be counted on {platform.machine()}", "use a load of kind pgbench")
        self._load = GatedLoad(load, statements, context, order.rate_hz or 0.0, order.seed)
        self._load.__enter__()
        self._start = self._load.tally()
        self._start_s = time.monotonic()
        self._until_s = self._start_s + (order.duration_s or 0.0)
        self._load.open()

    @property
    def pids(self) -> Sequence[int]:
        return self._load.pids

    def alive(self) -> bool:
        return self._load.alive()

    def done(self) -> int:
        return self._load.tally().done - self._start.done

    def finish(self, timeout_s: float) -> LoadResult:
        """Wait until its time is over and the last statement is answered. Raise LoadFailed."""
        try:
            while (left_s := self._until_s - time.monotonic()) > 0:
                self._load.look()
                wait_and_read((), min(LOOK_S, left_s))
            self._load.shut(timeout_s)
            return replace(self._load.tally().since(self._start), elapsed_s=time.monotonic() - self._start_s)
        finally:
            self.kill()

    def kill(self) -> None:
        self._load.close()


def _map_file(path: Path, size: int) -> mmap.mmap:
    """Map a file that another account owns; a link cannot redirect it."""
    with Folder.open(path.parent) as folder:
        handle = os.open(path.name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder.handle)
    with os.fdopen(handle, "r+b"):
        return mmap.mmap(handle, size)


def _raise_early_end(text: str) -> LoadResult:
    raise PowerprofError(
        f"sysbench ended early: {' / '.join(text.split()[-20:])[:200]}",
        "its words name the reason; for a traceback, add --debug before the command's name",
    )
