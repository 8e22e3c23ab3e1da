# SPDX-License-Identifier: Apache-2.0
"""Metrics with intervals and verdicts from the windows of a cure, and the prediction of its savings."""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from powerprof.cure.records import CureBlock, CurePrediction, Untried
from powerprof.cure.remedies import CureRequest, PlannedChange
from powerprof.cure.threads import SlackChoice
from powerprof.database.local_login import require_server_program
from powerprof.diagnosis.evidence import compute_timers_hz, list_thread_wakeups
from powerprof.diagnosis.thread_pace import explain_no_slack, group_by_own_timer, predict_slack, sum_woken_hz
from powerprof.energy.total import host_energy, host_meters
from powerprof.experiment import verdict
from powerprof.experiment.metrics import Compared
from powerprof.experiment.records import Metric
from powerprof.measure.unseen_interrupts import read_timer_interrupts
from powerprof.measure.window import WindowPart
from powerprof.model.metrics import unit_of
from powerprof.model.records import Figures, Kind, Window
from powerprof.model.text import Say
from powerprof.queries.join import estimate_latency
from powerprof.queries.records import Latency
from powerprof.reversible.kinds import is_same_value
from powerprof.system import signals
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.foreign_text import whole
from powerprof.system.reader_process import shared
from powerprof.system.targets import Target
from powerprof.system.tasks import read_switches
from powerprof.tracing.captures import StatementTrace, latency_class_range_ns
from powerprof.tracing.statements import QueryTracer

# Of cures that change nothing, one in two hundred claims a change of the wake-ups, and one in a hundred a change of
# another metric. The level is high because a claimed change is kept for good.
_LEVEL = 0.995

_Figure = Callable[[CureBlock], float | None]


class _Quantity(msgspec.Struct, frozen=True):
    """A figure of a window.

    Attributes:
        value_of: the figure of a window; None if unknown.
        step_of: the resolution: the change of the figure by one count.
    """

    name: str
    value_of: _Figure
    kind: Kind = "measured"
    source: str | None = None
    step_of: Callable[[CureBlock], float] | None = None


def _rate(name: str, count_of: Callable[[CureBlock], int | None], seconds_of: _Figure) -> _Quantity:
    """Return a count as a rate over the time in which it was counted."""

    def rate_of(block: CureBlock) -> float | None:
        count, seconds = count_of(block), seconds_of(block)
        return None if count is None or not seconds else count / seconds

    return _Quantity(name, rate_of, step_of=lambda block: 1 / (seconds_of(block) or block.counted_s))


def _sum_polling(window: Window) -> float | None:
    shares = [state.polling_percent for state in window.states if state.polling]
    known = [share for share in shares if share is not None]
    return sum(known) if known and len(known) == len(shares) else None


_QUANTITIES = (
    _rate("thread_wakings_hz", lambda b: b.thread_wakings_count, lambda b: b.counted_s),
    _rate("thread_wakings_traced_hz", lambda b: b.traced_wakings_count, lambda b: b.traced_s),
    _rate("thread_idle_exits_hz", lambda b: b.thread_exits_count, lambda b: b.window.window_s),
    _rate("target_wakings_hz", lambda b: b.target_wakings_count, lambda b: b.counted_s),
    _rate("target_idle_exits_hz", lambda b: b.target_exits_count, lambda b: b.window.window_s),
    _Quantity("host_idle_exits_hz", lambda b: b.window.wakeups_hz),
    _Quantity("c0_percent", lambda b: b.window.c0_percent),
    _Quantity("polling_percent", lambda b: _sum_polling(b.window)),
    _rate("statements_hz", lambda b: b.statements_count or None, lambda b: b.statements_s),
    _Quantity("latency_p50_ms", lambda b: None if b.latency_ms is None else b.latency_ms.p50),
    _Quantity("latency_p95_ms", lambda b: None if b.latency_ms is None else b.latency_ms.p95),
    _Quantity("latency_p99_ms", lambda b: None if b.latency_ms is None else b.latency_ms.p99),
    _Quantity("commit_p50_ms", lambda b: None if b.commit_latency_ms is None else b.commit_latency_ms.p50),
    _Quantity("commit_p95_ms", lambda b: None if b.commit_latency_ms is None else b.commit_latency_ms.p95),
    _Quantity("replica_lag_s", lambda b: b.replica_lag_s, step_of=lambda b: 1 / (b.replica_looks_count or 1)),
    _Quantity("replica_backlog_bytes", lambda b: b.replica_backlog_bytes),
    _Quantity("replica_delay_ms", lambda b: b.replica_delay_ms),
)


def judge_blocks(blocks: Sequence[CureBlock], primary: str, seed: int) -> list[Metric]:
    """Return every metric over the complete pairs, the primary one first; empty without a pair.

    The verdicts of the other metrics are those of one family.
    """
    by_pair: dict[int, dict[str, CureBlock]] = {}
    for block in blocks:
        by_pair.setdefault(block.pair, {})[block.arm] = block
    pairs = [(arms["before"], arms["cured"]) for _, arms in sorted(by_pair.items()) if len(arms) == 2]
    if not pairs:
        return []
    compared = [_compare(quantity, pairs) for quantity in (*_QUANTITIES, _power(blocks))]
    return verdict.judge_metrics(compared, primary, seed, level=_LEVEL)


def _compare(quantity: _Quantity, pairs: Sequence[tuple[CureBlock, CureBlock]]) -> Compared:
    a, b = (
        Figures(
            name=quantity.name,
            unit=unit_of(quantity.name),
            kind=quantity.kind,
            source=quantity.source,
            values=[quantity.value_of(block) for block in side],
        )
        for side in zip(*pairs, strict=True)
    )
    return Compared(a, b, quantity.step_of(pairs[0][0]) if quantity.step_of is not None else None)


def choose_primary(plan: PlannedChange, blocks: Sequence[CureBlock]) -> str:
    """Return the metric that answers whether a change helps: for a setting of the host measured power, else C0."""
    if plan.remedy.kind == "host" and _power(blocks).kind == "measured":
        return "watts"
    return plan.primary_metric


def _power(blocks: Sequence[CureBlock]) -> _Quantity:
    """Return the power of the host, by the same meters in all windows."""
    meters = host_meters([block.window.energy for block in blocks])
    return _Quantity(
        "watts",
        lambda b: None if meters is None else host_energy(b.window.energy, meters).watts,
        "estimated" if meters is None or meters.kind is None else meters.kind,
        None if meters is None else meters.source,
    )


# The prediction, from a window before the change.

_MAX_WINDOW_S = 5.0
# futex (asm-generic/unistd.h and syscall_64.tbl); a wait by the wall clock has FUTEX_CLOCK_REALTIME (linux/futex.h).
_FUTEX = {"x86_64": "202", "aarch64": "98"}
_WALL_CLOCK = 256
_MAX_READS = 20
# Origins of wake-ups that timer slack never delays.
_NOT_TIMERS = {"other_thread", "other_process", "device", "runnable"}
# A smaller saving is printed as none.
_MIN_SAVED_HZ, _MIN_SAVED_SHARE = 0.05, 0.01


def waits_by_wall_clock(pid: int, tid: int) -> bool | None:
    """Return whether a thread that waits on a futex uses the wall clock; None if no such wait was seen."""
    for _ in range(_MAX_READS):
        words = (shared().proc_file(pid, f"task/{tid}/syscall", 256) or b"").decode().split()
        if len(words) > 3 and words[0] == _FUTEX.get(platform.machine()):
            try:
                return bool(int(words[2], 16) & _WALL_CLOCK)
            except ValueError:
                return None
        time.sleep(0.002)
    return None


def explain_no_trial(plan: PlannedChange, prediction: CurePrediction | None) -> Untried | None:
    """Return why a trial of this change cannot save anything; None if it can, or if this is unknown."""
    if all(is_same_value(before, plan.value) for before in plan.befores):
        return "same_value"
    if prediction is None:
        return None
    least_hz = max(_MIN_SAVED_HZ, _MIN_SAVED_SHARE * prediction.now_hz)
    return "no_saving" if prediction.now_hz - prediction.then_hz < least_hz else None


def predict_change(plan: PlannedChange, target: Target, request: CureRequest, say: Say) -> CurePrediction | None:
    """Return the prediction for timer slack; None for other changes, and if the effect on the waits is unknown.

    Raise PowerprofError if the process has ended.
    """
    thread = plan.remedy.thread
    if not isinstance(request.choice, SlackChoice) or thread is None:
        return None
    if request.choice.slack_ns <= (whole(plan.befores[0]) or 0):
        return None  # The model covers only longer slack.
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    interrupts_before, started_s = read_timer_interrupts(), time.monotonic()
    switches_before = read_switches(target.pids[0]).get(thread.tid)
    try:
        options = AttributeRequest(duration_s=min(request.window_s, _MAX_WINDOW_S))
        trace = attribute.trace_target(target, options, dict, say)
        interrupts_after, passed_s = read_timer_interrupts(), time.monotonic() - started_s
        switches = read_switches(target.pids[0]).get(thread.tid)
        attribution = attribute.analyse(trace)
        if attribution.ended:
            raise signals.interruption()
    except CapabilityError:
        return None  # The windows report the reason.
    finally:
        signals.release()  # Signals are held from the end of a window, but this one is not saved.
    rows = [row for row in list_thread_wakeups(attribution) if row.tid == thread.tid]
    own_rows = group_by_own_timer(rows).get(thread.tid, [])
    is_idle = switches is not None and switches == switches_before
    if is_idle or (rows and all(row.origin in _NOT_TIMERS for row in rows)) or explain_no_slack(own_rows, None):
        now_hz = 0.0 if is_idle else sum_woken_hz(rows)
        return CurePrediction(now_hz=now_hz, then_hz=now_hz, is_bound=False)
    own_hz, own_wakings_hz = sum(row.rate_hz for row in own_rows), sum_woken_hz(own_rows)
    cpus = attribution.cpus or 1
    others_hz = max(0.0, (compute_timers_hz(attribution) or 0.0) - own_hz / cpus)
    interrupts_hz = 0.0  # of one CPU, whether idle or not
    if interrupts_before is not None and interrupts_after is not None:
        interrupts_hz = (interrupts_after - interrupts_before) / passed_s / (os.cpu_count() or 1)
    by_wall_clock = waits_by_wall_clock(target.pids[0], thread.tid)
    prediction = predict_slack(
        rows,
        request.choice.slack_ns,
        others_hz,
        whole(plan.befores[0]) or 0,
        by_wall_clock,
        max(0.0, interrupts_hz - own_wakings_hz / cpus),
    )
    if prediction is None:
        return None
    return CurePrediction(
        now_hz=prediction.now_hz, then_hz=prediction.then_hz, most_hz=prediction.most_hz, is_bound=prediction.is_bound
    )


# Latency of a server's statements in each window, with commits separate, and the limit that ends a cure.

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
            require_server_program(self._pid)
            self._tracer = QueryTracer(self._pid)
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
