# SPDX-License-Identifier: Apache-2.0
"""Observe a window of a topology, a storm or bursts, in addition to the figures of the host."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.database.performance import read_replication_status
from powerprof.experiment.records import MemberShare, Slices, StormShare
from powerprof.measure.cpuidle import CpuidleReader
from powerprof.measure.procfs import process_cpu_ns
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, Retryable
from powerprof.system.reader_process import shared
from powerprof.workloads.definition import Storm
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.database.base import Server, Sql
    from powerprof.experiment.bench import Bench


# Each server of a topology: CPU time, connections, relay logs, and replication status.

_RELAY = re.compile(r"relay\.(\d{6,12})")
_COUNTED = ("Connections", "Binlog_commits", "Slave_connections")

RelayLogs = Mapping[int, int]


def list_relay_logs(datadir: Path) -> dict[int, int]:
    """Return the existing relay logs: number → bytes."""
    indexes = {}
    try:
        for entry in datadir.iterdir():
            name = _RELAY.fullmatch(entry.name)
            if name:
                try:
                    indexes[int(name[1])] = entry.stat().st_size
                except OSError:
                    continue  # just purged
    except OSError:
        return {}
    return indexes


def sum_relay_bytes(before: RelayLogs, after: RelayLogs) -> float | None:
    """Return the bytes written to relay logs between two listings; None if there are none.

    Files that came and went are counted with the mean size of the others: each reconnect makes one of the same size.
    """
    if not before or not after:
        return None
    oldest, newest = max(before), max(after)
    grown = max(0, after.get(oldest, before[oldest]) - before[oldest])
    fresh = [size for number, size in after.items() if oldest < number]
    if not fresh:
        return float(grown)
    seen = [*fresh, before[oldest]]
    missing = newest - oldest - len(fresh)
    return grown + sum(fresh) + missing * sum(seen) / len(seen)


class MembersMeter(Closeable):
    """A meter of each server of a topology: `start()` before a window and `stop(cpus)` after it."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self._servers = servers
        self._connections: dict[str, Sql] = {}
        self._cpu_ns: dict[str, int | None] = {}
        self._relays: dict[str, dict[int, int]] = {}
        self._counters: dict[str, dict[str, int]] = {}
        self._started_s = 0.0

    def _open(self) -> None:
        for name, server in self._servers.items():
            self._connections[name] = server.connect()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def start(self) -> None:
        """Read the counters at the start."""
        for name, connection in self._connections.items():
            self._counters[name] = _counters(connection)
        self._relays = self._read_relays()
        self._cpu_ns = self._read_cpu()
        self._started_s = time.monotonic()

    def stop(self, cpus: int) -> list[MemberShare]:
        """Return each member's use; `c0_percent` is of the time of `cpus` CPUs. Raise PowerprofError if one is gone."""
        elapsed_s = time.monotonic() - self._started_s
        cpu, relays = self._read_cpu(), self._read_relays()
        shares = []
        for name, server in self._servers.items():
            counters = _counters(self._connections[name])
            before = self._cpu_ns.get(name)
            now = cpu.get(name)
            cpu_s = None if before is None or now is None else (now - before) / 1e9
            written = sum_relay_bytes(self._relays[name], relays[name])
            moved = {key: counters[key] - self._counters[name].get(key, 0) for key in counters}
            shares.append(
                MemberShare(
                    name=name,
                    pid=server.pid,
                    cpu_s=cpu_s,
                    c0_percent=None if cpu_s is None else 100.0 * cpu_s / (elapsed_s * cpus),
                    connections_hz=moved.get("Connections", 0) / elapsed_s,
                    commits_hz=moved["Binlog_commits"] / elapsed_s if "Binlog_commits" in moved else None,
                    relay_log_bytes_hz=None if written is None else written / elapsed_s,
                    replication=read_replication_status(self._connections[name]),
                )
            )
        return shares

    def _read_cpu(self) -> dict[str, int | None]:
        return {name: process_cpu_ns(server.pid) if server.pid else None for name, server in self._servers.items()}

    def _read_relays(self) -> dict[str, dict[int, int]]:
        relays = {}
        for name, server in self._servers.items():
            place = getattr(server, "datadir", None)
            relays[name] = list_relay_logs(place) if isinstance(place, Path) else {}
        return relays


def _counters(connection: Sql) -> dict[str, int]:
    try:
        rows = sql.fetch_rows(connection, "SHOW GLOBAL STATUS", columns=2)
    except PowerprofError as error:
        raise Retryable(f"a server of the topology has ended: {error.message}", error.hint) from error
    counted = {str(name): sql.parse_count(value) for name, value in rows if name in _COUNTED}
    return {name: value for name, value in counted.items() if value is not None}


# Bursts within a window: written bytes and idle exits per slice of a fraction of a second. A mean hides bursts: a
# server that writes all its dirty pages at once writes as much as one that writes continuously. A thread reads two
# counters per slice; its wake-ups, one per slice, belong to powerprof.


class Slicer(Closeable):
    """A reader of slices: `start()` before a window, `finish()` after it, `close()` after a failed window."""

    def __init__(self, pids: Sequence[int], slice_s: float) -> None:
        self._pids = pids
        self._slice_s = slice_s
        self._over = threading.Event()
        self._read: list[tuple[float, int | None, int | None]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def finish(self) -> Slices:
        """Stop reading and return the slices."""
        self.close()
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
                self._read.append((time.monotonic(), read_written_bytes(self._pids), _idle_exits(reader)))
                due_s += self._slice_s
                if self._over.wait(max(0.0, due_s - time.monotonic())):
                    return
        finally:
            if reader is not None:
                reader.close()


def _idle_exits(reader: CpuidleReader | None) -> int | None:
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


# Storms: faults that can end on their own. They are started before a window, watched in it, and restarted.

# Two readings a second are negligible next to the thousands of wake-ups of an active storm.
_LOOK_S = 0.5
_BEGIN_S = 0.75
_ATTEMPTS = 3


class StormWatch(Closeable):
    """An active storm: entering the context starts it, `watch()` and `finish()` enclose the window.

    The counter of the first of the `servers` (by name) is read. If the storm does not start in three attempts, the
    servers are left alone: they back off. Raises PowerprofError if a statement fails.
    """

    def __init__(self, storm: Storm, servers: Mapping[str, Server]) -> None:
        self._storm = storm
        self._servers = servers
        self._connection: Sql | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem: PowerprofError | None = None
        self._raging_s = self._watched_s = 0.0
        self._restarts = 0
        self._first = self._last = (0.0, 0)
        self._began = False

    def _open(self) -> None:
        first = next(iter(self._servers.values()))
        self._connection = first.connect()
        for _ in range(_ATTEMPTS):
            before = self._count()
            if self._rate(before, self._after()) >= self._storm.least_hz:
                self._began = True
                break
            self._trigger()
        else:
            before = self._count()
            self._began = self._rate(before, self._after()) >= self._storm.least_hz

    def close(self) -> None:
        self._end()
        if self._connection is not None:
            self._connection.close()

    def watch(self) -> None:
        """Start watching."""
        self._first = self._last = self._count()
        if self._began:
            thread = threading.Thread(target=self._look, name="storm", daemon=True)
            thread.start()
            self._thread = thread  # an interrupt can prevent the start; such a thread cannot be joined

    def finish(self) -> StormShare:
        """Return the share of the window with an active storm. Raise PowerprofError if it could not be restarted."""
        self._end()
        if self._problem is not None:
            raise self._problem
        last = self._count()
        raged = 100.0 * self._raging_s / self._watched_s if self._watched_s else 0.0
        return StormShare(
            began=self._began,
            raged_percent=raged if self._began else 0.0,
            restarts_count=self._restarts,
            counter=self._storm.counter,
            counter_hz=self._rate(self._first, last),
        )

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30.0)
            self._thread = None

    def _look(self) -> None:
        try:
            while not self._stop.wait(_LOOK_S):
                now = self._count()
                elapsed_s, rages = now[0] - self._last[0], self._rate(self._last, now) >= self._storm.least_hz
                self._watched_s += elapsed_s
                self._raging_s += elapsed_s if rages else 0.0
                self._last = now
                if not rages:
                    self._restarts += 1
                    self._trigger()
        except PowerprofError as error:
            self._problem = error

    def _after(self) -> tuple[float, int]:
        time.sleep(_BEGIN_S)
        return self._count()

    def _trigger(self) -> None:
        for name, statements in self._storm.trigger.items():
            if name not in self._servers:
                raise PowerprofError(
                    f"the storm is to be started on {name}: this server does not exist",
                    "storm.trigger names members of the topology",
                )
            with self._servers[name].connect() as connection:
                sql.execute(connection, *statements)

    def _count(self) -> tuple[float, int]:
        """Return the time and the counter. Raise PowerprofError if the server does not have the counter."""
        if self._connection is None:
            raise RuntimeError("the storm is not watched")
        rows = sql.fetch_rows(self._connection, f"SHOW GLOBAL STATUS LIKE '{self._storm.counter}'", columns=2)
        counted = sql.parse_count(rows[0][1]) if rows else None
        if counted is None:
            raise PowerprofError(
                f"the server has no counter {self._storm.counter}", "storm.counter is a name of SHOW GLOBAL STATUS"
            )
        return time.monotonic(), counted

    @staticmethod
    def _rate(before: tuple[float, int], after: tuple[float, int]) -> float:
        elapsed_s = after[0] - before[0]
        return (after[1] - before[1]) / elapsed_s if elapsed_s > 0 else 0.0


class CaseObservers(Closeable):
    """All observers of a condition: entering starts the storm, `start()` and `finish(cpus)` enclose the window.

    They do nothing for a single server without a storm and slices. Raises PowerprofError if a server is gone.
    """

    def __init__(self, bench: Bench, case: Case) -> None:
        self._members = bench.members(case)
        self._storm = case.workload.definition.storm
        every_s = case.workload.definition.slices_s
        self._slicer = Slicer(bench.pids(case), every_s) if every_s else None
        self.slices: Slices | None = None
        self._replicates = case.topology.kind != "standalone"
        self._stack = ExitStack()
        self._meter: MembersMeter | None = None
        self._watch: StormWatch | None = None

    def _open(self) -> None:
        if self._replicates:
            self._meter = self._stack.enter_context(MembersMeter(self._members))
        if self._storm is not None:
            self._watch = self._stack.enter_context(StormWatch(self._storm, self._members))
        if self._slicer is not None:
            self._stack.enter_context(self._slicer)

    def close(self) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start observing."""
        if self._meter is not None:
            self._meter.start()
        if self._watch is not None:
            self._watch.watch()
        if self._slicer is not None:
            self._slicer.start()

    def finish(self, cpus: int) -> tuple[list[MemberShare], StormShare | None]:
        """Return the members' shares and that of the storm; `slices` holds the slices."""
        if self._slicer is not None:
            self.slices = self._slicer.finish()
        storm = self._watch.finish() if self._watch is not None else None
        return self._meter.stop(cpus) if self._meter is not None else [], storm
