# SPDX-License-Identifier: Apache-2.0
"""Tables of metrics: of two conditions, of one load, and over the values of a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from powerprof.experiment.claims import claim_of, percent_base
from powerprof.model.records import Kind
from powerprof.report import labels
from powerprof.report.answers import MAY_BE_CHANCE, explain_chance, explain_metrics, outcome_of, word_claim
from powerprof.report.table import (
    ALL,
    CSV,
    HTML,
    Cell,
    Column,
    CsvCell,
    JudgedCell,
    Places,
    Table,
    TableRow,
    Words,
    figure_columns,
    word_columns,
)
from powerprof.statistics.verdicts import Verdict, judge_claim

if TYPE_CHECKING:
    from powerprof.cure.records import Cure
    from powerprof.experiment.records import Comparison, FunctionChange, LoadRun, Metric, Range
    from powerprof.experiment.sweep_comparison import PartingWith, SweepComparison
    from powerprof.experiment.sweep_record import Point, Sweep
    from powerprof.model.records import RunMetric

_NAME = Column("name", "metric", left=True)
DISK_SERVICE = "disk_service_ms:"
_MOST_DETECTABLE_PERCENT = 1000.0


def comparison_table(record: Comparison, places: Places) -> Table:
    """Return one row per metric: A, B, their difference, and the verdict."""
    family = len(record.metrics)
    rows = [_compared(places, index, metric, family) for index, metric in enumerate(record.metrics)]
    return Table(_two(record, _NAME), rows)


def system_table(record: Comparison, places: Places) -> Table:
    """Return one row per metric of the host.

    A terminal shows only significant changes and the disk of the server's files.
    """
    rows = []
    for index, metric in enumerate(record.system):
        in_terminal = metric.verdict != "inconclusive" or metric.name.startswith(DISK_SERVICE)
        row = _compared(places, index, metric, len(record.system), "/system")
        rows.append(replace(row, forms=ALL if in_terminal else ALL - {"terminal"}))
    # Each form explains the word once.
    chance = "" if explain_metrics(record.metrics) else explain_metrics(record.system)
    return Table(_two(record, replace(_NAME, heading="system")), rows, "the system", chance)


def _two(record: Comparison, name: Column) -> list[Column]:
    return [
        name,
        Column("a", "A", record.a.name),
        Column("b", "B", record.b.name),
        Column("difference", "B − A", short="difference", interval="95 %"),
        Column("percent", beside="difference", forms=ALL - {"terminal"}),
        Column("verdict", "verdict", left=True),
    ]


def cure_table(record: Cure, places: Places) -> Table:
    """Return one row per metric: before the cure, cured, their difference, and the verdict."""
    return Table(
        [
            _NAME,
            *figure_columns(a="before", b="cured"),
            Column("difference", "cured − before", short="difference", interval="95 %"),
            Column("percent", beside="difference", forms=ALL - {"terminal"}),
            Column("verdict", "verdict", left=True),
        ],
        [_compared(places, index, metric, len(record.metrics)) for index, metric in enumerate(record.metrics)],
        caption=explain_metrics(record.metrics),
    )


def cure_windows_table(record: Cure, places: Places) -> Table:
    """Return one row per window, in the order of time."""
    rows = []
    for index, block in enumerate(record.blocks):
        at = f"/blocks/{index}"
        cells: dict[str, Cell] = {
            "name": Words(f"{index + 1}", ours=True),
            "arm": Words(block.arm, ours=True),
            "process": places.figure(f"{at}/target_wakings_count", 0),
            "length": places.figure(f"{at}/counted_s", 2),
        }
        if block.thread_wakings_count is not None:
            cells["thread"] = places.figure(f"{at}/thread_wakings_count", 0)
        if block.latency_ms is not None:
            cells["statements"] = places.figure(f"{at}/statements_count", 0)
            cells["p95"] = places.figure(f"{at}/latency_ms/p95", 2)
        if block.commit_latency_ms is not None:
            cells["commit"] = places.figure(f"{at}/commit_latency_ms/p95", 2)
        if block.replica_looks_count is not None:
            cells["behind"] = places.figure(f"{at}/replica_lag_s", 2)
            cells["delay"] = places.figure(f"{at}/replica_delay_ms", 2)
        rows.append(TableRow(cells))
    return Table(
        [
            *word_columns(name="window", arm="setting"),
            *figure_columns(thread="wake-ups of the thread", process="wake-ups of the process", length="in s"),
            *figure_columns(statements="statements", p95="p95, ms", commit="p95 of commits, ms", behind="behind, s"),
            *figure_columns(delay="replica's delay, ms"),
        ],
        rows,
        "windows",
    )


def _compared(places: Places, index: int, metric: Metric, family: int, under: str = "/metrics") -> TableRow:
    at = f"{under}/{index}"
    shown = labels.choose_format(metric.unit, (metric.a.mean, metric.b.mean))
    difference = metric.difference
    change = max(
        (abs(value) for value in (difference.b_minus_a, *(difference.ci95 or ())) if value is not None), default=0.0
    )
    # A small difference of large figures needs more decimals than the figures.
    fine = max(shown.decimals, labels.count_decimals(change * shown.factor, 2))
    detectable, outcome = metric.minimum_detectable_percent, outcome_of(metric, family)
    sides = {
        arm: places.figure(f"{at}/{arm}/mean", shown.decimals, shown.unit, ends=f"{at}/{arm}/ci95", scale=shown.factor)
        for arm in ("a", "b")
    }
    return _row(
        metric,
        shown,
        {
            **sides,
            "difference": places.figure(
                f"{at}/difference/b_minus_a",
                fine,
                shown.unit,
                ends=f"{at}/difference/ci95",
                scale=shown.factor,
                sign=True,
            ),
            "percent": Words("–", ours=True)  # no meaning, which is not unknown
            if percent_base(metric) is None
            else places.figure(
                f"{at}/difference/percent", 1 if abs(difference.percent or 0.0) < 1000 else 0, "%", sign=True
            ),
            "verdict": JudgedCell(
                outcome.word,
                outcome.count,
                places.figure(f"{at}/minimum_detectable_percent", 1 if (detectable or 0) < 100 else 0, "%")
                if detectable is not None
                and detectable <= _MOST_DETECTABLE_PERCENT
                and outcome.word in (MAY_BE_CHANCE, "inconclusive")
                else None,
            ),
        },
    )


JUDGED_HEADS = (
    *("a_mean", "a_low", "a_high", "b_mean", "b_low", "b_high", "b_minus_a", "low", "high"),
    *("percent", "verdict", "hint"),
)


def judged_cells(metric: Metric) -> list[CsvCell]:
    """Return the exact figures of a metric and its outcome, as `JUDGED_HEADS` names them."""
    sides = [(each.mean, *(each.ci95 or (None, None))) for each in (metric.a, metric.b)]
    difference = metric.difference
    change = (difference.b_minus_a, *(difference.ci95 or (None, None)), difference.percent)
    return [*sides[0], *sides[1], *change, metric.verdict, claim_of(metric).hint]


def functions_table(record: Comparison, places: Places, limit: int) -> Table:
    """Return one row per function that changed significantly, in percent of one CPU, alone and with its callees."""
    functions = record.on_cpu.functions if record.on_cpu is not None else []
    sure = [number for number, function in enumerate(functions) if function.verdict != "inconclusive"]
    rows = []
    for number in sure[:limit]:
        function, at = functions[number], f"/on_cpu/functions/{number}"
        cells: dict[str, Cell] = {
            "name": Words(function.function, "kernel" if function.kernel else function.module),
            "a": places.figure(f"{at}/a_percent", 2, "%"),
            "b": places.figure(f"{at}/b_percent", 2, "%"),
            "difference": places.figure(f"{at}/b_minus_a_percent", 2, "%", ends=f"{at}/ci95", sign=True),
            "a_total": places.figure(f"{at}/a_total_percent", 2, "%"),
            "b_total": places.figure(f"{at}/b_total_percent", 2, "%"),
        }
        rows.append(TableRow(cells, key=function.function, short=function.function, exact_unit="%"))
    return Table(
        [
            Column("name", "function", left=True),
            Column("a", "A", record.a.name),
            Column("b", "B", record.b.name),
            Column("difference", "B − A", short="difference", interval="95 %"),
            *figure_columns(a_total="A with callees", b_total="B with callees"),
        ],
        rows,
        "functions, % of one CPU",
        left_count=len(sure) - len(rows),
    )


def states_table(record: Comparison, places: Places) -> Table:
    """Return C0 and each idle state of both conditions in percent of the time of all CPUs; no rows without C0."""
    named = {metric.name: index for index, metric in enumerate(record.metrics)}
    states = [name for name in named if name.startswith("residency_percent:")]
    rows = []
    for number, name in enumerate(["c0_percent", *states] if states and "c0_percent" in named else []):
        at = f"/metrics/{named[name]}"
        cells: dict[str, Cell] = {
            "name": Words(name.partition(":")[2]) if number else Words("C0 (running)", ours=True),
            "a": places.figure(f"{at}/a/mean", 2),
            "b": places.figure(f"{at}/b/mean", 2),
            "difference": places.figure(f"{at}/difference/b_minus_a", 2, ends=f"{at}/difference/ci95", sign=True),
        }
        kind = record.metrics[named[name]].kind
        rows.append(TableRow(cells, unit="%", kind=kind, look=f"s{min(number - 1, 5)}" if number else "c0"))
    columns = [Column("a", "A", record.a.name), Column("b", "B", record.b.name), Column("difference", "B − A")]
    return Table([Column("name", "state", left=True), *columns], rows, "idle states")


def load_table(record: LoadRun, places: Places) -> Table:
    """Return one row per metric of a load: its mean with the interval, and the number of its windows."""
    return _means(record.metrics, "/metrics", places, "metrics")


def load_system_table(record: LoadRun, places: Places) -> Table:
    """Return one row per metric of the host below a load."""
    return _means(record.system, "/system", places, "the system")


def _means(metrics: Sequence[RunMetric], under: str, places: Places, caption: str) -> Table:
    rows = []
    for index, metric in enumerate(metrics):
        at = f"{under}/{index}/estimate"
        shown = labels.choose_format(metric.unit, [metric.estimate.mean])
        known = sum(value is not None for value in metric.values)
        cells: dict[str, Cell] = {
            "mean": places.figure(f"{at}/mean", shown.decimals, ends=at, scale=shown.factor),
            "windows": Words(str(known), ours=True),
        }
        rows.append(_row(metric, shown, cells))
    windows = Column("windows", "windows", forms=HTML)
    return Table([_NAME, Column("mean", "mean", interval="95 %"), windows], rows, caption)


def sweep_table(record: Sweep, places: Places) -> Table:
    """Return one row per metric, with one column per value of the parameter."""
    columns = [Column(str(number), name=str(point.value)) for number, point in enumerate(record.points)]
    rows = []
    for name in dict.fromkeys(metric.name for point in record.points for metric in point.metrics):
        at = [_index(point.metrics, name) for point in record.points]
        same = [point.metrics[i] for point, i in zip(record.points, at, strict=True) if i is not None]
        shown = labels.choose_format(same[0].unit, [metric.estimate.mean for metric in same])
        cells: dict[str, Cell] = {}
        for number, index in enumerate(at):
            where = f"/points/{number}/metrics/{index}/estimate" if index is not None else ""
            cells[str(number)] = places.figure(
                where and f"{where}/mean", shown.decimals, ends=where, scale=shown.factor
            )
        first = next((metric for metric in same if metric.kind == "estimated"), same[0])
        rows.append(_row(first, shown, cells))
    return Table([Column("name", name=record.parameter, left=True), *columns], rows, "metrics")


def name_point(point: Point) -> str:
    """Return the value of a point, with its server if it has one of its own."""
    return f"{point.value}, {point.server}" if point.server else str(point.value)


def paces_table(point: Point, number: int, places: Places) -> Table:
    """Return one row per thread of a point's server: its wake-up rate and the setting that changes it."""
    rows = []
    for index, pace in enumerate(point.paces):
        where = f"/points/{number}/paces/{index}"
        cells: dict[str, Cell] = {
            "point": Words(name_point(point)),
            "thread": Words(pace.thread),
            "wakings": places.figure(f"{where}/wakings/mean", ends=f"{where}/wakings"),
            "exits": places.figure(f"{where}/exits/mean", ends=f"{where}/exits"),
            "period": places.figure(f"{where}/period_ms"),
            "remedy": Words(pace.remedy, ours=True),
        }
        rows.append(TableRow(cells, key=pace.thread, exact_unit="1/s"))
    return Table(
        [
            Column("point", left=True, forms=CSV),
            *word_columns("thread"),
            Column("wakings", "wakings/s", interval="95 %"),
            Column("exits", "idle exits/s", interval="95 %"),
            Column("period", "period, ms"),
            Column("remedy", "settings", left=True),
        ],
        rows,
        "wake-ups by thread",
    )


def judged_cell(verdict: Verdict, ends: Range | None, family: int, things: str = "metrics") -> JudgedCell:
    """Return the outcome of a figure that has a verdict and an interval, one of `family` things judged together.

    Without a metric's `name` it is higher or lower, not worse or better.
    """
    outcome = word_claim("residency_percent", judge_claim(verdict, ends), family, things)
    return JudgedCell(outcome.word, outcome.count)


def points_table(record: SweepComparison, places: Places) -> Table:
    """Return one row per value of the parameter: the judged metric of both sweeps and their difference.

    Its caption explains `may be chance` in one of its rows or in the table of correlated metrics.
    """
    from powerprof.experiment.sweep_comparison import claim_of_point

    rows, hints = [], []
    for number, point in enumerate(record.points):
        index = next((i for i, metric in enumerate(point.metrics) if metric.name == record.metric), None)
        if index is None:
            continue
        row = _compared(places, index, point.metrics[index], len(record.points), f"/points/{number}/metrics")
        claim = claim_of_point(point, point.metrics[index])
        outcome = word_claim(record.metric, claim, len(record.points), "values")
        hints.append(claim.hint is not None)
        cells: dict[str, Cell] = {"name": Words(str(point.value)), "verdict": JudgedCell(outcome.word, outcome.count)}
        short = f"{point.value}{_estimated(row.kind)}"
        rows.append(replace(row, short=short, cells={**row.cells, **cells}, unit=""))
    return Table(
        [
            Column("name", record.parameter, left=True),
            Column("a", "A", record.a.name),
            Column("b", "B", record.b.name),
            Column("difference", "B − A", short="difference", interval="95 %"),
            Column("percent", beside="difference", forms=ALL - {"terminal"}),
            Column("verdict", "verdict", left=True),
        ],
        rows,
        f"{labels.metric_words(record.metric)} over {record.parameter}",
        explain_chance(hints, len(record.points), "values")
        or explain_chance(map(_is_hint, record.parted_with), len(record.parted_with))
        or explain_chance(map(_is_hint, record.functions), len(record.functions), "functions"),
    )


def _is_hint(figure: PartingWith | FunctionChange) -> bool:
    return judge_claim(figure.verdict, figure.ci95).hint is not None


def parted_table(record: SweepComparison, places: Places) -> Table:
    """Return one row per correlated figure of the system: both sweeps, and their difference where they diverge."""
    rows = []
    for number, metric in enumerate(record.parted_with):
        at = f"/parted_with/{number}"
        shown = labels.choose_format(metric.unit, (metric.a_mean, metric.b_mean))
        cells: dict[str, Cell] = {
            "a": places.figure(f"{at}/a_mean", shown.decimals, scale=shown.factor),
            "b": places.figure(f"{at}/b_mean", shown.decimals, scale=shown.factor),
            "difference": places.figure(f"{at}/percent", 0, "%", ends=f"{at}/ci95", sign=True),
            "elsewhere": places.figure(f"{at}/elsewhere_percent", 0, "%", sign=True),
            "verdict": judged_cell(metric.verdict, metric.ci95, len(record.parted_with)),
        }
        # The unit is in the name, because two of the columns are always in percent.
        named = _row(metric, shown, cells)
        name = Words(labels.metric_words(metric.name) + (f", {shown.unit}" if shown.unit else ""), ours=True)
        rows.append(replace(named, unit="", cells={**named.cells, "name": name}))
    return Table(
        [
            _NAME,
            Column("a", "A", record.a.name),
            Column("b", "B", record.b.name),
            Column("difference", "diverging values", interval="95 %"),
            Column("elsewhere", "elsewhere"),
            Column("verdict", "verdict", left=True),
        ],
        rows,
        "correlated metrics",
    )


def _index(metrics: Sequence[RunMetric], name: str) -> int | None:
    return next((index for index, metric in enumerate(metrics) if metric.name == name), None)


def _estimated(kind: Kind) -> str:
    return ", est." if kind == "estimated" else ""


def _row(metric: Metric | RunMetric | PartingWith, shown: labels.NumberFormat, cells: Mapping[str, Cell]) -> TableRow:
    defined = labels.define_metric(metric.name)
    return TableRow(
        {"name": Words(defined.label, ours=True), **cells},
        key=metric.name,
        short=defined.short + _estimated(metric.kind),
        unit=shown.unit,
        exact_unit=metric.unit,
        kind=metric.kind,
    )
