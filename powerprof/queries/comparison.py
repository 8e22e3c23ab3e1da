# SPDX-License-Identifier: Apache-2.0
"""The comparison of two saved windows of statements, before and after a change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, median
from typing import Literal

import msgspec

from powerprof.model.records import Kind, Note, Record
from powerprof.model.statements import NormalText
from powerprof.queries.records import Method, Queries, Statement
from powerprof.queries.same_statements import pair_statements
from powerprof.statistics.distributions import student_quantile
from powerprof.statistics.verdicts import UNKNOWN_CLAIM, Claim, judge_claim
from powerprof.statistics.verdicts import Verdict as IntervalVerdict
from powerprof.system.errors import UsageError

Verdict = Literal["more expensive", "cheaper", "unchanged", "inconclusive", "unknown", "new", "gone"]
_CONFIDENCE = 0.95
_FEWEST_CALLS = 5
# A larger common change has its own sentence. A statement whose interval is narrower is unchanged.
_ALIKE = math.log(1.10)
# A window is one sample of the level of each statement: the CPU time per call differs between two windows of an
# unchanged server by more than the calls within a window show (caches, purge, neighbours of the host). The statements
# that did not change show how much: the largest deviation of their log ratios from the median, beyond their own errors
# and without the fifth of the statements that deviate most; at least the median absolute deviation. A disturbance of
# one window that reaches more than a fifth of the statements (all writes, say) is scatter; the median alone would
# ignore it up to one half.
# Both together have about 60 % of the efficiency of a standard deviation, so as many degrees of freedom. More than six
# would trust the normal distribution far outside: statements do not scatter alike.
_FEWEST_STATEMENTS = 3
_CHANGED_SHARE = 0.2
_EFFICIENCY = 0.6
_MOST_FREEDOM = 6.0


class StatementSide(msgspec.Struct, frozen=True, kw_only=True):
    """A statement in one window. `percent_of_cpu`: of one CPU."""

    percent_of_cpu: float
    calls_hz: float | None = None
    c0_ms_per_call: float | None = None
    latency_p95_ms: float | None = None
    joules_per_call: float | None = None


class StatementChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a statement.

    Attributes:
        ratio, low, high: CPU time per call after ÷ before; for samples without calls, of the share of a CPU.
        became: by the ratio compared with the median ratio of all statements, judged for all statements together;
            unchanged if the interval is within 10 % of the median ratio.
    """

    id: str
    text: NormalText
    schema_name: str | None
    became: Verdict
    change_percent_of_cpu: float
    a: StatementSide | None = None
    b: StatementSide | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


_VERDICTS: dict[Verdict, IntervalVerdict] = {"more expensive": "b_higher", "cheaper": "b_lower"}


class QueriesSide(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a window."""

    name: str
    started_at: str
    window_s: float
    server: str
    version: str | None
    method: Method
    percent_of_cpu: float
    calls_hz: float | None
    kind: Kind | None = None  # of its joules


class QueriesComparison(Record, frozen=True, kw_only=True):
    """Statements by the change of their CPU time per second."""

    a: QueriesSide
    b: QueriesSide
    statements: list[StatementChange]
    common_ratio: float | None  # the median: the common change of the host, the load or the server
    command: str = "compare"
    schema: Literal["powerprof.queries-comparison/1"] = "powerprof.queries-comparison/1"


def claim_of_change(record: QueriesComparison, change: StatementChange) -> Claim:
    """Return the permitted statements about the ratio of a statement compared with the common ratio, minus 1."""
    if change.low is None or change.high is None or record.common_ratio is None:
        return UNKNOWN_CLAIM
    ends = (change.low / record.common_ratio - 1, change.high / record.common_ratio - 1)
    return judge_claim(_VERDICTS.get(change.became, "inconclusive"), ends)


def judge_change(record: QueriesComparison, change: StatementChange) -> Verdict:
    """Return the outcome of a statement, as its claim permits; `unchanged` if its interval is within 10 %."""
    claim = claim_of_change(record, change)
    if change.a is None or change.b is None:
        return change.became
    if claim.ends is None:
        return "unknown"
    if claim.verdict != "inconclusive":
        return "more expensive" if claim.verdict == "b_higher" else "cheaper"
    is_alike = max(abs(math.log1p(end)) for end in claim.ends) <= _ALIKE * (1 + 1e-9)
    return "unchanged" if claim.hint is None and is_alike else "inconclusive"


def is_common_change(record: QueriesComparison) -> bool:
    """Return whether the median statement changed by more than 10 %."""
    return record.common_ratio is not None and abs(math.log(record.common_ratio)) > _ALIKE


class _Scatter(msgspec.Struct, frozen=True):
    """The common change of the compared statements and the scatter of their log ratios between windows."""

    count: int
    middle: float
    deviation: float

    @property
    def freedom(self) -> float:
        return min(max(_EFFICIENCY * (self.count - 1), 1.0), _MOST_FREEDOM)

    def judge(self, ratio: float, own_error: float) -> tuple[float, Verdict]:
        """Return half of the 95 % interval of the log ratio, and the verdict corrected for the number of statements."""
        spread, apart = math.hypot(own_error, self.deviation), math.log(ratio) - self.middle
        half = student_quantile(_CONFIDENCE, self.freedom) * spread
        if abs(apart) > student_quantile(1 - (1 - _CONFIDENCE) / self.count, self.freedom) * spread:
            return half, "more expensive" if apart > 0 else "cheaper"
        return half, "unchanged" if abs(apart) + half <= _ALIKE else "inconclusive"


def _measure_scatter(ratios: Sequence[tuple[float, float]]) -> _Scatter | None:
    """Return the scatter of the statements with a ratio and its own error; None if they are too few."""
    if len(ratios) < _FEWEST_STATEMENTS:
        return None
    count, middle = len(ratios), median(math.log(ratio) for ratio, _ in ratios)
    apart = [abs(math.log(ratio) - middle) for ratio, _ in ratios]
    beyond = sorted(math.sqrt(max(far**2 - error**2, 0.0)) for far, (_, error) in zip(apart, ratios, strict=True))
    kept = count - max(1, round(_CHANGED_SHARE * count))
    # The normal deviation that this rank has (Blom's position).
    expected = NormalDist().inv_cdf(0.5 + 0.5 * (kept - 0.375) / (count + 0.25))
    return _Scatter(count, middle, max(median(apart) / NormalDist().inv_cdf(0.75), beyond[kept - 1] / expected))


def compare_queries(a: Queries, b: Queries, started_at: str) -> QueriesComparison:
    """Compare two windows. Raise UsageError if they cannot be compared."""
    if a.window_s <= 0 or b.window_s <= 0:
        raise UsageError("a run of queries without a window", "measure again")
    if a.server.family != b.server.family:
        raise UsageError("the statements of two kinds of servers are not the same", "compare two runs of one kind")
    pairs = pair_statements(a, b)
    ratios = [(None, None) if one is None or other is None else _ratio(one, other) for one, other in pairs]
    in_both = sum(one is not None and other is not None for one, other in pairs)
    scatter = _measure_scatter([(ratio, error) for ratio, error in ratios if ratio is not None and error is not None])
    changes = [
        _change(known, _of(one, a), _of(other, b), *ratio, scatter)
        for (one, other), ratio in zip(pairs, ratios, strict=True)
        if (known := other or one) is not None
    ]
    return QueriesComparison(
        started_at=started_at,
        host=b.host,
        a=_side(a),
        b=_side(b),
        statements=sorted(changes, key=lambda change: (-abs(change.change_percent_of_cpu), change.text)),
        common_ratio=None if scatter is None else math.exp(scatter.middle),
        notes=_notes(a, b, scatter, in_both),
    )


def _side(record: Queries) -> QueriesSide:
    return QueriesSide(
        name=record.id or "",
        started_at=record.started_at,
        window_s=record.window_s,
        server=record.server.label,
        version=record.server.version,
        method=record.method,
        percent_of_cpu=100 * record.server_c0_s / record.window_s,
        calls_hz=None if record.calls_count is None else record.calls_count / record.window_s,
        kind=record.kind,
    )


def _of(statement: Statement | None, record: Queries) -> StatementSide | None:
    if statement is None:
        return None
    return StatementSide(
        percent_of_cpu=100 * statement.c0_s / record.window_s,
        calls_hz=statement.calls_hz,
        c0_ms_per_call=statement.c0_ms_per_call,
        latency_p95_ms=statement.latency_ms.p95 if statement.latency_ms else None,
        joules_per_call=statement.joules_per_call,
    )


def _change(
    known: Statement,
    a: StatementSide | None,
    b: StatementSide | None,
    ratio: float | None,
    error: float | None,
    scatter: _Scatter | None,
) -> StatementChange:
    became: Verdict = "new" if a is None else "gone" if b is None else "unknown"
    low = high = None
    if ratio is not None and error is not None and scatter is not None:
        half, became = scatter.judge(ratio, error)
        low, high = ratio * math.exp(-half), ratio * math.exp(half)
    return StatementChange(
        id=known.id,
        text=known.text,
        schema_name=known.schema_name,
        became=became,
        change_percent_of_cpu=(b.percent_of_cpu if b else 0.0) - (a.percent_of_cpu if a else 0.0),
        a=a,
        b=b,
        ratio=ratio,
        low=low,
        high=high,
    )


def _ratio(a: Statement, b: Statement) -> tuple[float | None, float | None]:
    """Return after over before and the standard error of its logarithm, None if unknown."""
    if a.c0_s <= 0 or b.c0_s <= 0:
        return None, None
    if a.c0_ms_per_call and b.c0_ms_per_call:
        ratio = b.c0_ms_per_call / a.c0_ms_per_call
    elif a.low_percent is not None and b.low_percent is not None:
        ratio = b.c0_s / a.c0_s
    else:
        return None, None
    errors = [_error(one) for one in (a, b)]
    known = [error for error in errors if error is not None]
    return ratio, math.hypot(*known) if len(known) == len(errors) else None


def _error(statement: Statement) -> float | None:
    """Return the relative standard error of CPU time per call, or of a sampled share."""
    if statement.low_percent is not None and statement.high_percent is not None and statement.c0_percent:
        return (statement.high_percent - statement.low_percent) / (2 * 1.96) / statement.c0_percent
    calls = (statement.calls_count or 0) - statement.unfinished_count - statement.began_before_count
    if calls < _FEWEST_CALLS or statement.c0_ms_deviation is None or not statement.c0_ms_per_call:
        return None
    return statement.c0_ms_deviation / statement.c0_ms_per_call / math.sqrt(calls)


def _notes(a: Queries, b: Queries, scatter: _Scatter | None, in_both: int) -> list[Note]:
    notes = [Note("windows_apart")]
    if scatter is None and in_both:
        notes.append(Note("scatter_unknown", {"statements": _FEWEST_STATEMENTS}))
    if a.method != b.method:
        notes.append(Note("methods_differ", {"a": a.method, "b": b.method}))
    if a.server.version != b.server.version:
        notes.append(Note("servers_differ", {"a": a.server.version or "?", "b": b.server.version or "?"}))
    if any(one.calls_count and one.c0_ms_deviation is None for one in _counted(a, b)):
        notes.append(Note("spread_unknown", {"calls": _FEWEST_CALLS}))
    return notes


def _counted(*records: Queries) -> Iterable[Statement]:
    return (one for record in records if record.method == "probes" for one in record.statements)


def select_changes(record: QueriesComparison, what: Verdict) -> Sequence[StatementChange]:
    """Return the changes with this verdict, the largest change of CPU time per second first."""
    return [one for one in record.statements if judge_change(record, one) == what]
