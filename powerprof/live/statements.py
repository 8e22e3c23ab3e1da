# SPDX-License-Identifier: Apache-2.0
"""The loop behind `queries --watch`: window after window of one server's statements, also over its restart."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from powerprof.energy.windows import WindowEnergy
from powerprof.live.intervals import IntervalRow, LiveInterval, RowKey
from powerprof.live.totals import merged
from powerprof.measure.procfs import process_cpu_ns
from powerprof.model.text import Say
from powerprof.queries.pricing import build_record
from powerprof.queries.probes import Probes
from powerprof.queries.records import Queries, Statement
from powerprof.queries.session import QueriesRequest
from powerprof.queries.target import TracedServer, find_server
from powerprof.statements.text import limit_texts
from powerprof.system import signals
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError

# The last minute of a monitor: what a screen draws lines of. As many intervals as it was made for, the newest last.

POINTS = 12


@dataclass(frozen=True)
class Line:
    """A row of the newest interval with its rates before; `new_s` is how long ago it came, None where it was there all
    along."""

    row: IntervalRow
    rate_hz: float
    c0_percent: float
    rates_hz: tuple[float, ...]
    new_s: float | None


class RowHistory:
    """Intervals as they come."""

    def __init__(self, points: int = POINTS) -> None:
        self.intervals: deque[LiveInterval] = deque(maxlen=points)
        self._rates: deque[dict[RowKey, float]] = deque(maxlen=points)
        self._seen = 0

    def add(self, interval: LiveInterval) -> None:
        """One more."""
        self._seen += 1
        self.intervals.append(interval)
        seconds = interval.window_s or 1.0
        self._rates.append({row.key: row.exits_count / seconds for row in merged(interval.rows)})

    @property
    def last(self) -> LiveInterval | None:
        """The newest."""
        return self.intervals[-1] if self.intervals else None

    def series(self, value: Callable[[LiveInterval], float | None]) -> list[float | None]:
        """One figure of each interval."""
        return [value(interval) for interval in self.intervals]

    def lines(self) -> list[Line]:
        """Every row of the newest interval, the most exits first."""
        newest = self.last
        if newest is None:
            return []
        seconds = newest.window_s or 1.0
        return [
            Line(
                row=row,
                rate_hz=row.exits_count / seconds,
                c0_percent=100.0 * row.c0_s / (seconds * max(1, newest.cpus)),
                rates_hz=tuple(rates.get(row.key, 0.0) for rates in self._rates),
                new_s=self._age(row.key),
            )
            for row in merged(newest.rows)
        ]

    def _age(self, key: RowKey) -> float | None:
        """Seconds since it came; None for what was there at the first look, or at the oldest that is remembered."""
        first = next((number for number, rates in enumerate(self._rates) if rates.get(key)), 0)
        if first == 0:
            return None
        return sum(interval.window_s for interval in list(self.intervals)[first:])


_LOOK_EVERY_S = 1.0
StatementKey = tuple[str, str | None]


class StatementMonitor(Closeable):
    """Measures window after window while its context is open.

    The server is found by what the request names. Where that is a process id and the process ends, so does the
    watching; by a name, a socket or an address it is waited for. Raises UsageError, CapabilityError, PowerprofError.
    """

    def __init__(self, request: QueriesRequest, say: Say) -> None:
        self._request, self._say = request, say
        self._probes: Probes | None = None
        self._energy = WindowEnergy(request.energy)
        try:
            self._server = self._reached()
            say("loading the tracer")
            self._probes = Probes(self._server, again=True)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._probes is not None:
            self._probes.close()
        self._energy.close()

    @property
    def server(self) -> TracedServer:
        """The one that is watched now."""
        return self._server

    def _reached(self) -> TracedServer:
        asked = self._request
        return find_server(asked.pid, asked.server_url, asked.socket, asked.defaults_file)

    def intervals(self) -> Iterator[Queries | None]:
        """One window after the other, until an interrupt, which is raised; None while the server is away."""
        while True:
            yield self.next()

    def next(self) -> Queries | None:
        """The next window, or None where the server ended in it or has not come back. Raises Interrupted."""
        if self._probes is None and not self._found_again():
            time.sleep(min(_LOOK_EVERY_S, self._request.duration_s))
            return None
        assert self._probes is not None  # noqa: S101  found again
        with limit_texts() as texts:
            made = self._window(self._probes)
        return None if made is None else msgspec.structs.replace(made, notes=[*made.notes, *texts.notes()])

    def _window(self, probes: Probes) -> Queries | None:
        try:
            taken = probes.trace_window(self._request.duration_s, self._energy)
        except PowerprofError:
            if self._is_there():
                raise
            taken = None
        if taken is not None and taken.measured.interrupted:
            raise signals.interruption()
        if taken is None or taken.measured.process_cpu_s is None:
            self._lose()
            return None
        return build_record(self._server, taken.measured, self._energy)

    def _is_there(self) -> bool:
        return process_cpu_ns(self._server.pid) is not None

    def _lose(self) -> None:
        """The process has ended. Raises PowerprofError where it was given by its number."""
        if self._probes is not None:
            self._probes.close()
        self._probes = None
        asked = self._request
        if asked.pid is not None and asked.pid.isdigit():
            raise PowerprofError(
                f"{self._server.label} has ended", "name it by --pid mysqld or --socket: then it is waited for"
            )

    def _found_again(self) -> bool:
        try:
            self._server = self._reached()
            self._probes = Probes(self._server, again=True)
        except CapabilityError:
            raise
        except (PowerprofError, UsageError):  # not there yet, or no longer
            return False
        return True


@dataclass(frozen=True)
class StatementLine:
    """A statement of the newest window with its shares before, in percent of one CPU; 0 where it was not seen."""

    statement: Statement
    cpu_percent: float
    before: tuple[float, ...]


class StatementHistory:
    """Windows as they come."""

    def __init__(self, points: int = POINTS) -> None:
        self.windows: deque[Queries] = deque(maxlen=points)
        self._shares: deque[dict[StatementKey, float]] = deque(maxlen=points)
        self.is_away = False

    def add(self, window: Queries | None) -> None:
        """One more; None where the server was away."""
        self.is_away = window is None
        if window is not None:
            self.windows.append(window)
            self._shares.append(
                {_key(statement): 100.0 * statement.c0_s / window.window_s for statement in window.statements}
            )

    @property
    def last(self) -> Queries | None:
        """The newest."""
        return self.windows[-1] if self.windows else None

    def series(self, value: Callable[[Queries], float | None]) -> list[float | None]:
        """One figure of each window."""
        return [value(window) for window in self.windows]

    def lines(self) -> list[StatementLine]:
        """Every statement of the newest window, the most CPU time first."""
        newest = self.last
        if newest is None:
            return []
        return [
            StatementLine(
                statement,
                100.0 * statement.c0_s / newest.window_s,
                tuple(shares.get(_key(statement), 0.0) for shares in self._shares),
            )
            for statement in newest.statements
        ]


def _key(statement: Statement) -> StatementKey:
    return statement.text, statement.schema_name
