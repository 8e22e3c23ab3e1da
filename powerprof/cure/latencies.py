# SPDX-License-Identifier: Apache-2.0
"""How long a server's own statements take in each window, those that commit apart, and when that is too long."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from powerprof.database.clients.given import is_server_name
from powerprof.measure.window import WindowPart
from powerprof.queries.join import estimate_latency
from powerprof.queries.records import Latency
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.processes import name_of
from powerprof.tracing.captures import StatementTrace, latency_class_range_ns
from powerprof.tracing.statements import QueryTracer

# Statements that write the log before they answer: by themselves with autocommit, else with their COMMIT.
_COMMITS = re.compile(rb"\s*(COMMIT|INSERT|UPDATE|DELETE|REPLACE|CALL)\b", re.IGNORECASE)
_PART = 0.95
# Bounds of a percentile by its ranks, wide enough that one window in two hundred lies outside.
_SIGMAS = 2.8
_FEWEST = 100


@dataclass(frozen=True)
class WindowLatencies:
    """Statements of one window by classes of their time (`class_of`), and of them those that commit."""

    window_s: float
    statements: Mapping[int, int]
    commits: Mapping[int, int]

    @property
    def statements_ms(self) -> Latency | None:
        """Percentiles of all."""
        return estimate_latency(self.statements)

    @property
    def commits_ms(self) -> Latency | None:
        """Percentiles of those that commit."""
        return estimate_latency(self.commits)


def count_latencies(trace: StatementTrace, asked: re.Pattern[bytes] | None = None) -> WindowLatencies:
    """Of a traced window, without what we `asked` ourselves."""
    ours = {text.id for text in trace.texts if asked is not None and asked.match(text.text)}
    writing = {text.id for text in trace.texts if _COMMITS.match(text.text)}
    every: Counter[int] = Counter()
    commits: Counter[int] = Counter()
    for identity, classes in trace.latencies.items():
        if identity in ours:
            continue
        every.update(classes)
        if identity in writing:
            commits.update(classes)
    return WindowLatencies(trace.window_s, dict(every), dict(commits))


class StatementLatencies(Closeable):
    """Probes the server's statements in every window; `why_not` where that cannot be, and then `parts` is empty."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._tracer: QueryTracer | None = None
        self.why_not: str | None = None

    def _open(self) -> None:
        if not is_server_name(name_of(self._pid)):
            self.why_not = "the process is no MariaDB or MySQL server"
            return
        try:
            self._tracer = QueryTracer(self._pid)
            self._tracer.attach()
        except (CapabilityError, PowerprofError) as error:
            self.close()
            self.why_not = error.message

    def close(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.detach()
            tracer.close()

    @property
    def parts(self) -> tuple[WindowPart, ...]:
        """What a window has to begin and end."""
        return () if self._tracer is None else (self._tracer,)

    def collect(self, asked: re.Pattern[bytes] | None = None) -> WindowLatencies | None:
        """Of the window that ended last, without what we `asked` ourselves; None where nothing is probed."""
        return None if self._tracer is None else count_latencies(self._tracer.collect(), asked)


@dataclass(frozen=True)
class LatencyRise:
    """Which latency rose, from what to what, in ms: p95 of the slowest window before, and of the window cured."""

    what: str
    before_ms: float
    cured_ms: float

    @property
    def percent(self) -> float:
        """By how much."""
        return 100.0 * (self.cured_ms / self.before_ms - 1)


@dataclass
class LatencyWatch:
    """Compares every cured window with those before. One that hurts beyond `max_percent` is known at once: where the
    lowest that its p95 may be lies above the highest of every window before, and by more than that."""

    max_percent: float
    before: list[WindowLatencies] = field(default_factory=list)
    cured: list[WindowLatencies] = field(default_factory=list)

    def add(self, arm: str, window: WindowLatencies | None) -> LatencyRise | None:
        """A window has ended. What hurts, if anything does."""
        if window is None:
            return None
        (self.before if arm == "before" else self.cured).append(window)
        for what in ("statements", "commits"):
            befores = [bounds for one in self.before if (bounds := _bounds(getattr(one, what))) is not None]
            if not befores:
                continue
            highest = max(high for _, high in befores)
            for one in self.cured:
                bounds = _bounds(getattr(one, what))
                if bounds is not None and bounds[0] > highest * (1 + self.max_percent / 100):
                    return LatencyRise(what, *(_p95(windows, what) for windows in (self.before, [one])))
        return None


def _p95(windows: Sequence[WindowLatencies], what: str) -> float:
    found = [each.p95 for one in windows if (each := estimate_latency(getattr(one, what))) is not None]
    return max(found)


def _bounds(classes: Mapping[int, int]) -> tuple[float, float] | None:
    """The lowest and highest that the 95th percentile may be, in ms; None of too few statements."""
    total = sum(classes.values())
    if total < _FEWEST:
        return None
    spread = _SIGMAS * math.sqrt(_PART * (1 - _PART) / total)
    return _at(classes, (_PART - spread) * total)[0], _at(classes, min(_PART + spread, 1.0) * total)[1]


def _at(classes: Mapping[int, int], rank: float) -> tuple[float, float]:
    below = 0
    low = high = 0.0
    for bucket in sorted(classes):
        low, high = latency_class_range_ns(bucket)
        below += classes[bucket]
        if below >= rank - 1e-9:
            break
    return low / 1e6, high / 1e6
