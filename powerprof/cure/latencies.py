# SPDX-License-Identifier: Apache-2.0
"""Latency of a server's statements in each window, with commits separate, and the limit that ends a cure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from powerprof.measure.window import WindowPart
from powerprof.queries.join import estimate_latency
from powerprof.queries.records import Latency
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.processes import name_of
from powerprof.system.server_names import is_postgres_program, is_server_program
from powerprof.tracing.captures import StatementTrace, latency_class_range_ns
from powerprof.tracing.statements import QueryTracer

# Statements that write the log before they answer: themselves with autocommit, otherwise their COMMIT.
_COMMITS = re.compile(rb"\s*(COMMIT|INSERT|UPDATE|DELETE|REPLACE|CALL)\b", re.IGNORECASE)
# Half the width of the range of a percentile, in standard errors of its rank. One window in two hundred is outside.
_SIGMAS = 2.8
_MIN_ABOVE = 5


class WindowLatencies(msgspec.Struct, frozen=True):
    """The statements of one window, and those of them that commit: latency class → number of statements."""

    window_s: float
    statements: Mapping[int, int]
    commits: Mapping[int, int]

    @property
    def statements_ms(self) -> Latency | None:
        """Percentiles of all statements."""
        return estimate_latency(self.statements)

    @property
    def commits_ms(self) -> Latency | None:
        """Percentiles of the statements that commit."""
        return estimate_latency(self.commits)


def count_latencies(trace: StatementTrace, own_statements: re.Pattern[bytes] | None = None) -> WindowLatencies:
    """Return the latencies of a traced window, without the statements that powerprof sent itself."""
    own_ids = {text.id for text in trace.texts if own_statements is not None and own_statements.match(text.text)}
    commit_ids = {text.id for text in trace.texts if _COMMITS.match(text.text)}
    statements: Counter[int] = Counter()
    commits: Counter[int] = Counter()
    for text_id, classes in trace.latencies.items():
        if text_id in own_ids:
            continue
        statements.update(classes)
        if text_id in commit_ids:
            commits.update(classes)
    return WindowLatencies(trace.window_s, dict(statements), dict(commits))


class StatementLatencies(Closeable):
    """Probes on the statements of a server, for every window.

    Attributes:
        unavailable: the reason if the process cannot be probed; then `parts` is empty.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._tracer: QueryTracer | None = None
        self.unavailable: str | None = None

    def _open(self) -> None:
        try:
            program = name_of(self._pid)
            if not is_server_program(program):
                raise CapabilityError("the process is not a database server", "choose a server by --pid")
            self._tracer = QueryTracer(self._pid, "postgresql" if is_postgres_program(program) else "mysql")
            self._tracer.attach()
        except (CapabilityError, PowerprofError) as error:
            self.close()
            self.unavailable = error.message

    def close(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.detach()
            tracer.close()

    @property
    def parts(self) -> tuple[WindowPart, ...]:
        """The parts that a window begins and ends."""
        return () if self._tracer is None else (self._tracer,)

    def collect(self, own_statements: re.Pattern[bytes] | None = None) -> WindowLatencies | None:
        """Return the latencies of the last window, without powerprof's own statements; None without probes."""
        return None if self._tracer is None else count_latencies(self._tracer.collect(), own_statements)


class LatencyRise(msgspec.Struct, frozen=True):
    """A rise of the p95 of `statements` or `commits`: the slowest window before, and the window with the remedy."""

    what: str
    before_ms: float
    cured_ms: float

    @property
    def percent(self) -> float:
        """The rise in percent of the value before."""
        return 100.0 * (self.cured_ms / self.before_ms - 1)


class LatencyWatch(msgspec.Struct):
    """The limit on latency, checked after each window.

    The limit is exceeded if the lower bound of the percentile (50, 95 or 99) of one window with the remedy is above the
    upper bounds of all windows before, by more than `max_percent`.
    """

    max_percent: float
    percentile: int = 95
    before: list[WindowLatencies] = msgspec.field(default_factory=list)
    cured: list[WindowLatencies] = msgspec.field(default_factory=list)

    def add(self, arm: str, window: WindowLatencies | None) -> LatencyRise | None:
        """Add a window that has ended. Return the rise if a limit is exceeded."""
        if window is None:
            return None
        (self.before if arm == "before" else self.cured).append(window)
        for what in ("statements", "commits"):
            ranges = [bounds for each in self.before if (bounds := self._range_ms(each, what)) is not None]
            if not ranges:
                continue
            limit_ms = max(high for _, high in ranges) * (1 + self.max_percent / 100)
            for cured in self.cured:
                bounds = self._range_ms(cured, what)
                if bounds is not None and bounds[0] > limit_ms:
                    return LatencyRise(what, self._highest_ms(self.before, what), self._highest_ms([cured], what))
        return None

    def _highest_ms(self, windows: Sequence[WindowLatencies], what: str) -> float:
        found = [estimate_latency(getattr(window, what)) for window in windows]
        values = [getattr(latency, f"p{self.percentile}") for latency in found if latency is not None]
        return max(float(value) for value in values if value is not None)

    def _range_ms(self, window: WindowLatencies, what: str) -> tuple[float, float] | None:
        """Return the bounds of the percentile; None if there are too few statements."""
        classes: Mapping[int, int] = getattr(window, what)
        quantile, total = self.percentile / 100, sum(classes.values())
        # At least five statements are above the percentile.
        if total * (1 - quantile) < _MIN_ABOVE - 1e-9:
            return None
        spread = _SIGMAS * math.sqrt(quantile * (1 - quantile) / total)
        lowest_ms, _ = _class_range_ms(classes, (quantile - spread) * total)
        _, highest_ms = _class_range_ms(classes, min(quantile + spread, 1.0) * total)
        return lowest_ms, highest_ms


def _class_range_ms(classes: Mapping[int, int], rank: float) -> tuple[float, float]:
    """Return the bounds of the latency class that contains the statement of this rank."""
    below = 0
    low_ns = high_ns = 0.0
    for latency_class in sorted(classes):
        low_ns, high_ns = latency_class_range_ns(latency_class)
        below += classes[latency_class]
        if below >= rank - 1e-9:
            break
    return low_ns / 1e6, high_ns / 1e6
