# SPDX-License-Identifier: Apache-2.0
"""The comparison of two saved windows of statements, before and after a change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, median
from typing import Literal

import msgspec

from powerprof.model.records import Note, Record
from powerprof.model.statements import NormalText
from powerprof.queries.records import Method, Queries, Statement
from powerprof.statistics.verdicts import Claim, judge_claim
from powerprof.statistics.verdicts import Verdict as IntervalVerdict
from powerprof.system.errors import UsageError

Verdict = Literal["more expensive", "cheaper", "unchanged", "unknown", "new", "gone"]
_CONFIDENCE = 0.95
_FEWEST_CALLS = 5
_ALIKE = 0.10  # A larger common change of all statements gets a note.


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
        became: by the interval for all statements together.
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

    @property
    def claim(self) -> Claim:
        """The permitted statements about 1 − `ratio`; all compared statements are judged together."""
        ends = None if self.low is None or self.high is None else (self.low - 1, self.high - 1)
        return judge_claim(_VERDICTS.get(self.became, "inconclusive"), ends)


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


class QueriesComparison(Record, frozen=True, kw_only=True):
    """Statements by the change of their CPU time per second."""

    a: QueriesSide
    b: QueriesSide
    statements: list[StatementChange]
    common_ratio: float | None
    command: str = "compare"
    schema: Literal["powerprof.queries-comparison/1"] = "powerprof.queries-comparison/1"


def compare_queries(a: Queries, b: Queries, started_at: str) -> QueriesComparison:
    """Compare two windows. Raise UsageError if they cannot be compared."""
    if a.window_s <= 0 or b.window_s <= 0:
        raise UsageError("a run of queries without a window", "measure again")
    if a.server.family != b.server.family:
        raise UsageError("the statements of two kinds of servers are not the same", "compare two runs of one kind")
    before, after = _by_name(a), _by_name(b)
    names = list(dict.fromkeys([*before, *after]))
    both = sum(name in before and name in after for name in names)
    # Bonferroni: for all statements together, one comparison in twenty has a false verdict.
    z = NormalDist().inv_cdf(1 - (1 - _CONFIDENCE) / 2 / max(both, 1))
    changes = [_change(name, before.get(name), after.get(name), a, b, z) for name in names]
    ratios = [change.ratio for change in changes if change.ratio is not None]
    common = median(ratios) if ratios else None
    return QueriesComparison(
        started_at=started_at,
        host=b.host,
        a=_side(a),
        b=_side(b),
        statements=sorted(changes, key=lambda change: (-abs(change.change_percent_of_cpu), change.text)),
        common_ratio=common,
        notes=_notes(a, b, common, len(ratios)),
    )


def _by_name(record: Queries) -> dict[tuple[NormalText, str | None], Statement]:
    return {(one.text, one.schema_name): one for one in record.statements if not one.began_before}


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
    )


def _of(statement: Statement, record: Queries) -> StatementSide:
    return StatementSide(
        percent_of_cpu=100 * statement.c0_s / record.window_s,
        calls_hz=statement.calls_hz,
        c0_ms_per_call=statement.c0_ms_per_call,
        latency_p95_ms=statement.latency_ms.p95 if statement.latency_ms else None,
        joules_per_call=statement.joules_per_call,
    )


def _change(
    name: tuple[NormalText, str | None],
    a: Statement | None,
    b: Statement | None,
    first: Queries,
    second: Queries,
    z: float,
) -> StatementChange:
    known = b or a
    assert known is not None  # noqa: S101  it is a name of one of them
    one, other = (None if a is None else _of(a, first)), (None if b is None else _of(b, second))
    change = (other.percent_of_cpu if other else 0.0) - (one.percent_of_cpu if one else 0.0)
    ratio, spread = None, None
    if a is not None and b is not None:
        ratio, spread = _ratio(a, b)
    became: Verdict = "new" if a is None else "gone" if b is None else "unknown"
    low = high = None
    if ratio is not None and spread is not None:
        usual = NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2)
        low, high = ratio * math.exp(-usual * spread), ratio * math.exp(usual * spread)
        apart = abs(math.log(ratio)) > z * spread
        became = "unchanged" if not apart else "more expensive" if ratio > 1 else "cheaper"
    return StatementChange(
        id=known.id,
        text=name[0],
        schema_name=name[1],
        became=became,
        change_percent_of_cpu=change,
        a=one,
        b=other,
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
    calls = (statement.calls_count or 0) - statement.unfinished_count
    if calls < _FEWEST_CALLS or statement.c0_ms_deviation is None or not statement.c0_ms_per_call:
        return None
    return statement.c0_ms_deviation / statement.c0_ms_per_call / math.sqrt(calls)


def _notes(a: Queries, b: Queries, common: float | None, count: int) -> list[Note]:
    notes = [Note("windows_apart")]
    if common is not None and count > 1 and abs(math.log(common)) > math.log(1 + _ALIKE):
        notes.append(Note("all_changed", {"ratio": common, "count": count}))
    if a.method != b.method:
        notes.append(Note("methods_differ", {"a": a.method, "b": b.method}))
    if a.server.version != b.server.version:
        notes.append(Note("servers_differ", {"a": a.server.version or "?", "b": b.server.version or "?"}))
    if any(one.calls_count and one.c0_ms_deviation is None for one in _counted(a, b)):
        notes.append(Note("spread_unknown", {"calls": _FEWEST_CALLS}))
    return notes


def _counted(*records: Queries) -> Iterable[Statement]:
    return (one for record in records if record.method == "probes" for one in record.statements if not one.began_before)


def select_changes(record: QueriesComparison, what: Verdict) -> Sequence[StatementChange]:
    """Return the changes with this verdict, the largest change of CPU time per second first."""
    return [one for one in record.statements if one.became == what]
