"""CSV for spreadsheets, one table a record. Text that a spreadsheet would run as a formula is disarmed.

A cell of text that begins with = + - @ or a control character gets an apostrophe before it (OWASP, CSV Injection):
process and function names come from outside. Figures are exact and never changed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

import msgspec

from powerprof.attribution.records import Attribution
from powerprof.errors import UsageError
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.experiment.sweep import Sweep
from powerprof.records import Estimate, Run
from powerprof.report.stacks import frames_of

Cell = str | float | int | None
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def _safe(cell: Cell) -> str | float | int:
    if cell is None:
        return ""
    if isinstance(cell, str):
        # A NUL ends the file for some readers.
        cell = cell.replace("\x00", "\N{REPLACEMENT CHARACTER}")
        return f"'{cell}" if cell.lstrip(" ").startswith(_FORMULA) else cell
    return cell


def table(rows: Iterable[Sequence[Cell]]) -> str:
    """The rows as RFC 4180 asks, unknown cells empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerows([_safe(cell) for cell in row] for row in rows)
    return out.getvalue()


def to_csv(record: msgspec.Struct) -> str:
    """The record's main table. Raises UsageError for a record without one."""
    if isinstance(record, Comparison):
        return table(_comparison(record))
    if isinstance(record, Attribution):
        return table(_attribution(record))
    if isinstance(record, Run):
        return table(_run(record))
    if isinstance(record, Sweep):
        return table(_sweep(record))
    raise UsageError(f"there is no CSV for a {type(record).__name__.lower()}", "use --json FILE")


def _ends(interval: tuple[float, float] | None) -> tuple[float | None, float | None]:
    return interval or (None, None)


def _comparison(record: Comparison) -> Iterable[Sequence[Cell]]:
    pairs = max((len(side.values) for metric in record.metrics for side in (metric.a, metric.b)), default=0)
    yield [
        "metric",
        "unit",
        "kind",
        "a",
        "b",
        "a_mean",
        "a_low",
        "a_high",
        "b_mean",
        "b_low",
        "b_high",
        "b_minus_a",
        "low",
        "high",
        "percent",
        "verdict",
        "minimum_detectable_percent",
        *(f"{arm}_{number}" for arm in "ab" for number in range(1, pairs + 1)),
    ]
    for metric in record.metrics:
        values = [[*side.values, *[None] * (pairs - len(side.values))] for side in (metric.a, metric.b)]
        yield [
            metric.name,
            metric.unit,
            metric.kind,
            record.a.name,
            record.b.name,
            metric.a.mean,
            *_ends(metric.a.ci95),
            metric.b.mean,
            *_ends(metric.b.ci95),
            metric.difference.b_minus_a,
            *_ends(metric.difference.ci95),
            metric.difference.percent,
            metric.verdict,
            metric.minimum_detectable_percent,
            *values[0],
            *values[1],
        ]


def _estimate(found: Estimate | None) -> tuple[float | None, float | None]:
    return (found.low, found.high) if found else (None, None)


def _run(record: Run) -> Iterable[Sequence[Cell]]:
    yield ["phase", "figure", "unit", "kind", "value", "low", "high", "mechanism", "process", "thread"]
    for metric in record.metrics if isinstance(record, LoadRun) else ():
        yield ["", metric.name, metric.unit, metric.kind, metric.estimate.mean, *_estimate(metric.estimate)]
    for phase in record.phases:
        figures = (
            ("c0", "%", phase.c0_percent),
            ("idle", "%", phase.idle_percent),
            ("wakeups", "1/s", phase.wakeups_hz),
            ("steal", "%", phase.steal_percent),
        )
        for name, unit, value in figures:
            key = f"{name}_hz" if unit == "1/s" else f"{name}_percent"
            yield [phase.name, name, unit, "measured", value, *_estimate(phase.intervals.get(key))]
        for state in phase.states:
            ends = _estimate(phase.intervals.get(f"residency_percent:{state.name}"))
            yield [phase.name, f"residency in {state.name}", "%", "measured", state.residency_percent, *ends]
            yield [phase.name, f"average residency in {state.name}", "ms", "measured", state.average_residency_ms]
        for reading in phase.energy:
            where = f"{reading.source} {reading.domain}"
            yield [phase.name, where, "W", reading.kind, reading.watts, reading.low_watts, reading.high_watts]
            yield [phase.name, where, "J", reading.kind, reading.joules]
        for cause in phase.causes:
            yield [
                phase.name,
                f"wakeups {cause.name or ''}".rstrip(),
                "1/s",
                "measured",
                cause.wakeups_hz,
                None,
                None,
                cause.mechanism,
                cause.process,
                cause.thread,
            ]


def _sweep(record: Sweep) -> Iterable[Sequence[Cell]]:
    yield [record.parameter, "metric", "unit", "kind", "mean", "low", "high", "error"]
    for point in record.points:
        value = point.value if isinstance(point.value, int | float | str) else str(point.value)
        if point.error is not None:
            yield [value, *[None] * 6, point.error]
        for metric in point.metrics:
            yield [value, metric.name, metric.unit, metric.kind, metric.estimate.mean, *_estimate(metric.estimate)]


def _attribution(record: Attribution) -> Iterable[Sequence[Cell]]:
    yield [
        "mechanism",
        "origin",
        "count",
        "rate_hz",
        "wakings_count",
        "period_ms",
        "c0_ms",
        "pid",
        "tid",
        "thread",
        "detail",
        "waker_pid",
        "waker",
        "stack",
    ]
    for row in record.wakeups:
        waker = row.waker
        yield [
            row.mechanism,
            row.origin,
            row.count,
            row.rate_hz,
            row.wakings_count,
            row.period_ms,
            row.c0_ms,
            row.thread.pid,
            row.thread.tid,
            row.thread.label,
            row.detail,
            waker.pid if waker else None,
            waker.comm if waker else None,
            " < ".join(reversed(frames_of(row)[1:])),
        ]
