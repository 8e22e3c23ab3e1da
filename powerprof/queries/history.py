# SPDX-License-Identifier: Apache-2.0
"""The record of all windows of `queries --watch`, of bounded size."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec

from powerprof.model.records import EnergySource, Kind, Notes
from powerprof.queries.records import Queries, QueryServer
from powerprof.statements.text import NormalText

Key = tuple[NormalText, str | None]
MOST_STEPS = 720
"""Maximum number of steps. With more windows a step contains 2, 4, 8 … of them."""
_MOST_STATEMENTS, _EACH_STEP = 50, 100


class HistoryStep(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive windows, usually one.

    `at_s` and `until_s` count from the start of the first; `window_s` is measured time.
    """

    at_s: float
    until_s: float
    window_s: float
    windows_count: int
    cpu_percent: float
    calls_hz: float
    watts: float | None = None
    lost_count: int = 0


class HistoryStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A statement over all windows, in percent of one CPU; `course_percent` has a figure for each step."""

    id: str
    text: NormalText
    schema_name: str | None
    c0_s: float
    cpu_percent: float
    calls_count: int | None = None
    joules: float | None = None
    course_percent: list[float] = []


class QueriesHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The statements with most CPU time, largest first.

    `other_c0_s` is the server's remaining CPU time: further statements, background threads and connections. `server` is
    the last watched one.
    """

    id: str | None
    started_at: str
    window_s: float
    windows_count: int
    server: QueryServer
    host: dict[str, Any]
    cpus: int
    server_c0_s: float
    other_c0_s: float
    calls_count: int
    lost_count: int
    joules: float | None
    kind: Kind | None
    energy_source: EnergySource | None
    steps: list[HistoryStep]
    statements: list[HistoryStatement]
    notes: Notes = []
    interrupted: bool = False
    command: str = "queries"
    schema: Literal["powerprof.queries-history/1"] = "powerprof.queries-history/1"


@dataclass
class _UsedSoFar:
    c0_s: float = 0.0
    calls: int | None = None
    joules: float | None = None

    def add(self, c0_s: float, calls: int | None, joules: float | None) -> None:
        self.c0_s += c0_s
        self.calls = _sum(self.calls, calls)
        self.joules = _sum(self.joules, joules)


@dataclass
class _Step:
    at_s: float
    until_s: float
    window_s: float = 0.0
    windows: int = 0
    c0_s: float = 0.0
    calls: int = 0
    joules: float | None = 0.0
    lost: int = 0
    statements: dict[Key, _UsedSoFar] = field(default_factory=dict)

    def add(self, other: _Step) -> None:
        """Add the following step."""
        self.until_s = other.until_s
        self.window_s += other.window_s
        self.windows += other.windows
        self.c0_s += other.c0_s
        self.calls += other.calls
        self.joules = None if self.joules is None or other.joules is None else self.joules + other.joules
        self.lost += other.lost
        for key, used in other.statements.items():
            self.statements.setdefault(key, _UsedSoFar()).add(used.c0_s, used.calls, used.joules)
        self.bound()

    def bound(self) -> None:
        """Keep the statements with most CPU time."""
        if len(self.statements) > _EACH_STEP:
            most = sorted(self.statements.items(), key=lambda pair: -pair[1].c0_s)[:_EACH_STEP]
            self.statements = dict(most)


class HistoryKeeper:
    """A collector of windows in bounded memory."""

    def __init__(self, most_steps: int = MOST_STEPS) -> None:
        self._most, self._each = most_steps, 1
        self._steps: list[_Step] = []
        self._ids: dict[Key, str] = {}
        self._first: Queries | None = None
        self._last: Queries | None = None

    def add(self, window: Queries | None) -> None:
        """Add a window; None if the server was away, which shows in the times of the others."""
        if window is None or window.window_s <= 0:
            return
        self._first, self._last = self._first or window, window
        step = self._step_of(window)
        if self._steps and self._steps[-1].windows < self._each:
            self._steps[-1].add(step)
            return
        if len(self._steps) == self._most:
            self._halve()
        self._steps.append(step)

    def record(self) -> QueriesHistory | None:
        """Return the record; None without a window."""
        first, last = self._first, self._last
        if first is None or last is None:
            return None
        totals: dict[Key, _UsedSoFar] = {}
        for step in self._steps:
            for key, used in step.statements.items():
                totals.setdefault(key, _UsedSoFar()).add(used.c0_s, used.calls, used.joules)
        most = sorted(totals.items(), key=lambda pair: (-pair[1].c0_s, pair[0][0]))[:_MOST_STATEMENTS]
        window_s = sum(step.window_s for step in self._steps)
        c0_s = sum(step.c0_s for step in self._steps)
        joules = [step.joules for step in self._steps]
        known = [value for value in joules if value is not None]
        return QueriesHistory(
            id=None,
            started_at=first.started_at,
            window_s=window_s,
            windows_count=sum(step.windows for step in self._steps),
            server=last.server,
            host=last.host,
            cpus=last.cpus,
            server_c0_s=c0_s,
            other_c0_s=c0_s - sum(used.c0_s for _, used in most),
            calls_count=sum(step.calls for step in self._steps),
            lost_count=sum(step.lost for step in self._steps),
            joules=sum(known) if len(known) == len(joules) else None,
            kind=last.kind,
            energy_source=last.energy_source,
            steps=[_shown(step) for step in self._steps],
            statements=[self._statement(key, used, window_s) for key, used in most],
        )

    def _step_of(self, window: Queries) -> _Step:
        assert self._first is not None  # noqa: S101  set before
        at_s = max(_seconds_between(self._first.started_at, window.started_at), 0.0)
        step = _Step(
            at_s,
            at_s + window.window_s,
            window.window_s,
            1,
            window.server_c0_s,
            window.calls_count,
            window.joules,
            window.lost_count,
        )
        for one in window.statements:
            key = one.text, one.schema_name
            step.statements.setdefault(key, _UsedSoFar()).add(one.c0_s, one.calls_count, one.joules)
            self._ids.setdefault(key, one.id)
        step.bound()
        if len(self._ids) > 4 * self._most * _EACH_STEP:
            kept = {key for one in (*self._steps, step) for key in one.statements}
            self._ids = {key: id for key, id in self._ids.items() if key in kept}
        return step

    def _halve(self) -> None:
        """Combine pairs of steps, and double the windows per step from now on."""
        firsts, seconds = self._steps[::2], self._steps[1::2]
        for first, second in zip(firsts, seconds, strict=False):
            first.add(second)
        self._steps = firsts
        self._each *= 2

    def _statement(self, key: Key, used: _UsedSoFar, window_s: float) -> HistoryStatement:
        course = [
            100 * step.statements[key].c0_s / step.window_s if key in step.statements else 0.0 for step in self._steps
        ]
        return HistoryStatement(
            id=self._ids.get(key, ""),
            text=key[0],
            schema_name=key[1],
            c0_s=used.c0_s,
            cpu_percent=100 * used.c0_s / window_s,
            calls_count=used.calls,
            joules=used.joules,
            course_percent=course,
        )


def _shown(step: _Step) -> HistoryStep:
    return HistoryStep(
        at_s=step.at_s,
        until_s=step.until_s,
        window_s=step.window_s,
        windows_count=step.windows,
        cpu_percent=100 * step.c0_s / step.window_s,
        calls_hz=step.calls / step.window_s,
        watts=None if step.joules is None else step.joules / step.window_s,
        lost_count=step.lost,
    )


def _seconds_between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def _sum(one: float | None, other: float | None) -> Any:
    """Return the sum of the known values."""
    return other if one is None else one if other is None else one + other
