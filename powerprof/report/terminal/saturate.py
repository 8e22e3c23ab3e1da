# SPDX-License-Identifier: Apache-2.0
"""`powerprof saturate` for a terminal: the highest rate that holds the limit, and the trials around it."""

from __future__ import annotations

from powerprof import text
from powerprof.experiment.saturation_record import Limit, Saturated, Saturation
from powerprof.report.tables.labels import significant
from powerprof.report.wording.notes import texts

_NAMES = {"latency_p50_ms": "median latency", "latency_p95_ms": "p95 latency", "latency_p99_ms": "p99 latency"}


def lines(record: Saturation, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    printed = text.wrap(headline(record), width)
    version = record.server.get("version")
    window_s = record.options.get("window_s")
    rounds = f"{record.rounds_count} round{'s' if record.rounds_count != 1 else ''}"
    parts = [rounds, f"windows of {window_s:g} s" if isinstance(window_s, int | float) else "", str(version or "")]
    printed += text.wrap(" · ".join(part for part in parts if part), width)
    if record.interrupted:
        printed += text.wrap("Ended early: this is what was measured until then.", width)
    for one in (record.a, record.b):
        if one is not None:
            printed += ["", *_table(one, record.limit)]
            closest = f"{one.name}: at most {significant(one.capacity_hz)} queries/s as fast as it goes; each round is "
            printed += text.wrap(f"{closest}resolved to {significant(one.resolution_hz)} queries/s.", width)
    for note in texts(record.notes):
        printed += text.wrap(f"Note: {note}.", width)
    return printed


def headline(record: Saturation) -> str:
    """The answer: of one condition its rate, of two how many times as much the second takes."""
    limit = _limit(record.limit)
    own = _takes(record.a, limit)
    if record.b is None:
        return f"{own}."
    if record.ratio is None:
        return f"{own}; {_takes(record.b, limit)}."
    ends = record.ratio.ci95
    interval = "" if ends is None else f" ({significant(ends[0])} – {significant(ends[1])}, 95 %)"
    if record.verdict == "inconclusive":
        both = f"{record.a.name} and {record.b.name}"
        return f"No measurable difference between {both} in the load that they take at {limit}{interval}; {own}."
    times = f"{significant(record.ratio.b_over_a)} times the load of {record.a.name}"
    return f"{record.b.name} takes {times} at {limit}{interval}; {own}."


def _takes(one: Saturated, limit: str) -> str:
    if one.rate_hz is None:
        missed = sum(value is None for value in one.values)
        return f"{one.name} does not hold {limit} at any rate that was tried, in {missed} of {len(one.values)} rounds"
    mean, low, high = one.rate_hz.mean, one.rate_hz.low, one.rate_hz.high
    ends = "" if low is None or high is None else f" ({significant(low)} – {significant(high)}, 95 %)"
    if not one.limited:
        return f"{one.name} holds {limit} up to all that it can do, {significant(one.capacity_hz)} queries/s"
    return f"{one.name} holds {limit} up to {significant(mean)} queries/s{ends}"


def _limit(limit: Limit) -> str:
    if limit.metric == "c0_percent":
        return f"CPUs {limit.at_most:g} % busy"
    return f"{limit.at_most:g} ms of {_NAMES[limit.metric]}"


def _table(one: Saturated, limit: Limit) -> list[str]:
    """Each rate that was tried: how often it held, and the metric over those windows."""
    rows = [["offered/s", "finished/s", "busy %" if limit.unit == "%" else f"{limit.metric[8:11]} ms", "held"]]
    for rate in sorted({trial.rate_hz for trial in one.trials}):
        same = [trial for trial in one.trials if trial.rate_hz == rate]
        finished = [trial.finished_hz for trial in same if trial.finished_hz is not None]
        values = [trial.value for trial in same if trial.value is not None]
        rows.append(
            [
                significant(rate),
                significant(sum(finished) / len(finished) if finished else None),
                significant(sum(values) / len(values) if values else None),
                f"{sum(trial.held for trial in same)} of {len(same)}",
            ]
        )
    return text.columns(rows, left=0)
