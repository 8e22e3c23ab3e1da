# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof sweep --until`: the highest rate that holds the limit, and the trials around it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from powerprof.experiment.claims import NO_BOUND_PERCENT
from powerprof.experiment.sweep_until import Limit, Saturated, Saturation, Trial
from powerprof.model import text
from powerprof.report.answers import interval_text, outcome_in_percent, word_undecided
from powerprof.report.comparison_words import describe_starts
from powerprof.report.document import NOT_TERMINAL, Document, Part, Section, Sentence, Shown, View
from powerprof.report.labels import format_significant
from powerprof.report.layouts import block_rows
from powerprof.report.table import Line, Table, TableRow, Words, figure_columns
from powerprof.statistics.verdicts import judge_claim

_NAMES = {"latency_p50_ms": "median latency", "latency_p95_ms": "p95 latency", "latency_p99_ms": "p99 latency"}


def document(record: Saturation, view: View) -> Document:
    """Return the report of a search: each condition with the tried rates."""
    version = record.server and record.server.version
    window_s = record.options.get("window_s")
    parts = [
        text.plural(record.rounds_count, "round"),
        f"windows of {window_s:g} s" if isinstance(window_s, int | float) else "",
        *describe_starts(record.options.get("starts_count"), record.rounds_count),
        str(version or ""),
    ]
    return Document(
        record=record,
        answer=answer_of(record),
        context=" · ".join(filter(None, parts)),
        parts=partial(_list_searches, record),
        rows=partial(_list_trials, record),
        setup=(("A", "/a/condition"), ("B", "/b/condition"), ("Server", "/server"), ("Host", "/host")),
        derived=view.extras.derived,
    )


def _list_searches(record: Saturation) -> Iterator[Part]:
    for name, condition in (("a", record.a), ("b", record.b)):
        if condition is not None:
            sentence = (
                f"{condition.name}: at most {format_significant(condition.capacity_hz)} queries/s at full speed; "
                f"each round has a resolution of {format_significant(condition.resolution_hz)} queries/s."
            )
            trials = Shown(_trials_table(condition, record.limit), block_rows, names=False)
            yield Section(condition.name, [trials, Sentence(sentence)], name=name, headed=NOT_TERMINAL)


def answer_of(record: Saturation) -> str:
    """Return the answer: the rate of one condition, or the ratio between two."""
    limit = _limit_text(record.limit)
    first = _capacity_text(record.a, limit)
    if record.b is None:
        return f"{first}."
    if record.ratio is None:
        return f"{first}; {_capacity_text(record.b, limit)}."
    ends = record.ratio.ci95
    claim = judge_claim(
        record.verdict or "inconclusive",
        None if ends is None else (ends[0] - 1, ends[1] - 1),
        widest=NO_BOUND_PERCENT / 100,
    )
    both, where = f"{record.a.name} and {record.b.name}", f"in the highest load within {limit}"
    if claim.unknown or ends is None:
        return f"Too few rounds to judge whether {both} differ {where}; {first}."
    interval = interval_text((format_significant(ends[0]), f"{format_significant(ends[1])} times"))
    if claim.verdict != "inconclusive":
        times = f"{format_significant(record.ratio.b_over_a)} times the load of {record.a.name}"
        return f"{record.b.name} takes {times} within {limit} {interval}; {first}."
    outcome = outcome_in_percent(claim, 1.0)
    said = word_undecided(outcome, "difference", f"between {both} {where}", f"{both} differ {where}")
    return f"{said} {interval}; {first}."


def _capacity_text(condition: Saturated, limit: str) -> str:
    if condition.rate_hz is None:
        failed_count = sum(value is None for value in condition.values)
        rounds = f"{failed_count} of {len(condition.values)} rounds"
        return f"{condition.name} exceeds {limit} at all tried rates, in {rounds}"
    mean, low, high = condition.rate_hz.mean, condition.rate_hz.low, condition.rate_hz.high
    ends = ""
    if low is not None and high is not None:
        ends = f" {interval_text((format_significant(low), f'{format_significant(high)} queries/s'))}"
    if not condition.limited:
        capacity = f"{format_significant(condition.capacity_hz)} queries/s"
        return f"{condition.name} meets {limit} even at full speed, {capacity}"
    return f"{condition.name} meets {limit} up to {format_significant(mean)} queries/s{ends}"


def _limit_text(limit: Limit) -> str:
    if limit.metric == "c0_percent":
        return f"CPUs {limit.at_most:g} % busy"
    return f"{limit.at_most:g} ms of {_NAMES[limit.metric]}"


def _trials_table(condition: Saturated, limit: Limit) -> Table:
    """Return one row per tried rate: how often it held the limit, and the mean of the metric."""
    rows = []
    for rate in sorted({trial.rate_hz for trial in condition.trials}):
        trials = [trial for trial in condition.trials if trial.rate_hz == rate]
        finished = [trial.finished_hz for trial in trials if trial.finished_hz is not None]
        values = [trial.value for trial in trials if trial.value is not None]
        cells = {
            "offered": format_significant(rate),
            "finished": format_significant(sum(finished) / len(finished) if finished else None),
            "value": format_significant(sum(values) / len(values) if values else None),
            "held": f"{sum(trial.held for trial in trials)} of {len(trials)}",
        }
        rows.append(TableRow({key: Words(cell, ours=True) for key, cell in cells.items()}))
    metric = "busy %" if limit.unit == "%" else f"{limit.metric[8:11]} ms"
    return Table(
        figure_columns(offered="offered/s", finished="finished/s", value=metric, held="held"), rows, "tried rates"
    )


def _list_trials(record: Saturation) -> Iterator[Line]:
    """Yield one line per window: the offered load, its result, and whether the limit held."""
    yield ["condition", *Trial.__struct_fields__, "limit", "at_most", "unit"]
    limit = (record.limit.metric, record.limit.at_most, record.limit.unit)
    for one in (record.a, record.b):
        if one is not None:
            yield from ([one.name, *msgspec.structs.astuple(trial), *limit] for trial in one.trials)
