# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof sweep`: the best points, then one line per point."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec

from powerprof.experiment.claims import ENERGY, metric_named
from powerprof.experiment.paces import EXITS, WAKINGS
from powerprof.experiment.sweep_functions import SampledFunction, mean_shares
from powerprof.experiment.sweep_record import Point, Sweep, similar_points
from powerprof.model import text
from powerprof.model.records import RunMetric
from powerprof.report import labels
from powerprof.report.answers import MAY_BE_CHANCE, join_outcomes
from powerprof.report.comparison_words import describe_starts
from powerprof.report.document import NOT_TERMINAL, TERMINAL, Document, Drawing, Part, Section, Sentence, Shown, View
from powerprof.report.html.sweep import draw_charts, draw_tradeoff
from powerprof.report.labels import format_significant
from powerprof.report.layouts import align_rows, block_rows
from powerprof.report.metrics import name_point, paces_table, sweep_table
from powerprof.report.table import (
    ALL,
    HTML,
    Column,
    Figure,
    Line,
    Places,
    Table,
    TableRow,
    Words,
    column_lines,
    field_lines,
)
from powerprof.system.next_steps import command_line

_MOST_FUNCTIONS = 12
_MOST_THREADS = 12
# A host with stopped servers is busy above this C0.
_BUSY_PERCENT = 20.0

_Column = tuple[str, Callable[[Point], float | None]]


def _metric(point: Point, name: str) -> float | None:
    metric = metric_named(point.metrics, name)
    return None if metric is None else metric.estimate.mean


def _os_mean(point: Point, name: str) -> float | None:
    values = [value for rates in point.os if (value := getattr(rates, name)) is not None]
    return sum(values) / len(values) if values else None


def _disk_mean(point: Point, name: str) -> float | None:
    """Return the mean figure of the disk with the server's files; None without exactly one such disk."""
    values = [
        value
        for rates in point.os
        if len(disks := [disk for disk in rates.disks if disk.of_server]) == 1
        and (value := getattr(disks[0], name)) is not None
    ]
    return sum(values) / len(values) if values else None


def _busiest_cpu_percent(point: Point) -> float | None:
    maxima = [max(cpu.busy_percent for cpu in rates.cpus) for rates in point.os if len(rates.cpus) > 1]
    return sum(maxima) / len(maxima) if maxima else None


def _metric_columns(*named: tuple[str, str]) -> list[_Column]:
    return [(title, lambda point, name=name: _metric(point, name)) for title, name in named]  # type: ignore[misc]


_SYSTEM_COLUMNS: list[_Column] = [
    *_metric_columns(("user %", "user_percent"), ("system %", "system_percent"), ("irq %", "irq_percent")),
    *_metric_columns(("switches/s", "context_switches_hz")),
    ("wait %", lambda p: _os_mean(p, "cpu_pressure_percent")),
    ("CPU max %", _busiest_cpu_percent),
]
_DISK_COLUMNS: list[_Column] = [
    ("I/O wait %", lambda p: _os_mean(p, "io_pressure_percent")),
    ("disk ms", lambda p: _disk_mean(p, "service_ms")),
    ("queue", lambda p: _disk_mean(p, "queue_count")),
    ("busy %", lambda p: _disk_mean(p, "busy_percent")),
    (
        "disk/s",
        lambda p: None if (r := _os_mean(p, "disk_reads_hz")) is None else r + (_os_mean(p, "disk_writes_hz") or 0.0),
    ),
]


def _work_columns(points: Sequence[Point]) -> list[_Column]:
    """Return the columns of work and cost, with a readable prefix for the energy."""
    known = [metric for point in points if (metric := metric_named(point.metrics, ENERGY)) is not None]
    unit, factor = labels.choose_prefix("J", min((metric.estimate.mean for metric in known), default=1.0))
    kind = ", est." if known and known[0].kind == "estimated" else ""

    def joules(point: Point) -> float | None:
        value = _metric(point, ENERGY)
        return None if value is None else value * factor

    return [
        *_metric_columns(("queries/s", "queries_hz"), ("p95 ms", "latency_p95_ms")),
        (f"{unit}/query{kind}", joules),
        *_metric_columns((f"W{kind}", "watts"), ("C0 %", "c0_percent"), ("wake-ups/s", "wakeups_hz")),
        *_metric_columns(("CPU ms/query", "c0_ms_per_query_server")),
        *_metric_columns(("its CPU ms/s", "server_cpu_ms_per_s"), ("its wakings/s", WAKINGS), ("its exits/s", EXITS)),
    ]


def document(sweep: Sweep, view: View) -> Document:
    """Return the report of a sweep: figures over the parameter, then the host, threads and functions."""
    version = sweep.server and sweep.server.version
    measured = sum(point.error is None for point in sweep.points)
    unfinished = "It is not saved, so it cannot be continued."
    if sweep.id:
        unfinished = f"To continue: {command_line('sweep --resume {}', sweep.id)}"
    return Document(
        record=sweep,
        answer=answer_of(sweep),
        context=" · ".join(
            [f"{measured} of {len(sweep.values)} points", *_describe_starts(sweep), *([version] if version else [])]
        ),
        parts=partial(_list_parts, sweep),
        rows=partial(_list_rows, sweep),
        setup=(("Condition", "/condition"), ("Options", "/options"), ("Server", "/server"), ("Host", "/host")),
        derived=view.extras.derived,
        next_step=unfinished if sweep.ended else "",
    )


def _describe_starts(sweep: Sweep) -> list[str]:
    return describe_starts(sweep.starts_count, max((len(point.blocks) for point in sweep.points), default=0))


def _list_parts(sweep: Sweep) -> Iterator[Part]:
    places, good = Places(sweep), [point for point in sweep.points if point.error is None]
    yield Section("Throughput and energy", [Drawing(partial(draw_tradeoff, sweep))], name="tradeoff", forms=HTML)
    yield Section(f"Over {sweep.parameter}", [Drawing(partial(draw_charts, sweep), look="")], "charts", forms=HTML)
    yield Section("", [Shown(_figures_table(sweep, good, _work_columns(good)), block_rows)], forms=TERMINAL)
    metrics = Shown(sweep_table(sweep, places), look="plain sweep", what="metrics")
    yield Section("Metrics", [metrics], name="metrics", forms=NOT_TERMINAL)
    host: list[Part] = [
        Section("", [Shown(_figures_table(sweep, good, columns), block_rows)])
        for columns in (_SYSTEM_COLUMNS, _DISK_COLUMNS)
    ]
    host += [Section("", [Sentence(line, look="muted") for line in _explain_columns(good)])]
    host += [Section("", [Sentence(line) for line in _baseline_sentences(sweep)])]
    yield Section("The host", host, name="host", headed=NOT_TERMINAL)
    threads = [
        Section(
            f"{name_point(point)}: wake-ups of its threads",
            [Shown(paces_table(point, number, places), pace_lines, what="threads", is_further=True)],
            headed=ALL,
        )
        for number, point in enumerate(sweep.points)
    ]
    yield Section("Wake-ups by thread", threads, name="threads", headed=NOT_TERMINAL)
    functions = Shown(_functions_table(sweep), what="functions", names=False)
    heading = f"Functions of the server, % of its samples, over {sweep.parameter}"
    yield Section(heading, [functions], name="functions", headed=ALL)


def _figures_table(sweep: Sweep, points: Sequence[Point], columns: Sequence[_Column]) -> Table:
    """Return one row per point with the known ones of these columns; no rows if none is known."""
    known = [(title, value) for title, value in columns if any(value(point) is not None for point in points)]
    rows = [
        TableRow(
            {
                "point": Words(str(point.value)),
                **{title: Words(_short(value(point)), ours=True) for title, value in known},
            }
        )
        for point in points
        if known
    ]
    return Table(
        [Column("point", name=sweep.parameter, left=True), *(Column(title, title) for title, _ in known)], rows
    )


def _explain_columns(points: Sequence[Point]) -> list[str]:
    lines = []
    if any(_disk_mean(point, "service_ms") is not None for point in points):
        lines.append("disk ms, queue, busy: for the device with the server's files.")
    if any(_os_mean(point, "cpu_pressure_percent") is not None for point in points):
        lines.append("I/O wait: share of time in which a task waited for I/O.")
        lines.append("wait: share of time in which a task was runnable and had no CPU.")
    return lines


def _functions_table(sweep: Sweep) -> Table:
    """Return the functions with most samples at any value, with their shares at each value."""
    points = [(name_point(point), mean_shares(point.on_cpu)) for point in sweep.points if point.on_cpu]
    largest: dict[tuple[str, str, bool], float] = {}
    for _, point_shares in points:
        for key, share in point_shares.items():
            largest[key] = max(share, largest.get(key, 0.0))
    rows = []
    for function, module, is_kernel in sorted(largest, key=lambda key: (-largest[key], key))[:_MOST_FUNCTIONS]:
        shares = {name: text.number(each.get((function, module, is_kernel), 0.0), 1) for name, each in points}
        cells = {f"percent at {name}": Words(share, ours=True) for name, share in shares.items()}
        rows.append(TableRow({**cells, "name": Words(f"{function} ({'kernel' if is_kernel else module})")}))
    columns = [Column(f"percent at {name}", name=name) for name, _ in points]
    return Table([*columns, Column("name", "function", left=True)], rows, "functions")


def pace_lines(table: Table, width: int) -> list[str]:
    """Return the threads that wake most often, each with its interval in a column of its own."""
    shown = table.rows[:_MOST_THREADS]
    pairs = [(row.words("thread").text, row.words("remedy").text) for row in shown]
    names = text.columns([("thread", "settings"), *pairs], left=2)
    rows = [["wakings/s", "95 %", "exits/s", "period", names[0]]]
    for row, name in zip(shown, names[1:], strict=True):
        woken, period = row.cells["wakings"], row.cells["period"]
        if not isinstance(woken, Figure) or not isinstance(period, Figure):
            continue
        ends = "" if woken.ends is None else "–".join(end.text for end in woken.ends)
        every = "" if period.value is None else f"{period.text} ms"
        rows.append([woken.text, ends, row.words("exits").text, every, name])
    left = len(table.rows) - _MOST_THREADS
    return [*align_rows(rows, width), *([f"{left} more threads (--json)"] if left > 0 else [])]


def _baseline_sentences(sweep: Sweep) -> list[str]:
    """Return the activity of the host with all servers stopped, and its consequence for the figures."""
    busy = [window.c0_percent for window in sweep.baseline if window.c0_percent is not None]
    woken = [window.wakeups_hz for window in sweep.baseline if window.wakeups_hz is not None]
    if not busy or not woken:
        return []
    c0_percent = statistics.fmean(busy)
    hz = statistics.fmean(woken)
    sentences = [f"With all servers stopped: C0 {_short(c0_percent)} %, {_short(hz)} wake-ups/s."]
    if c0_percent > _BUSY_PERCENT:
        sentences.append(
            "Other programs kept the CPUs busy, so figures of the whole host do not describe a server. "
            "Its CPU time and the wake-ups of its threads still do."
        )
    return sentences


def answer_of(sweep: Sweep) -> str:
    """Return the points of least energy per query and of most queries, with the points that are not worse.

    For servers without queries, return the least and the most wakeful.
    """
    name = f"{sweep.workload}:{sweep.condition.name}"
    good = [point for point in sweep.points if point.error is None]
    if all(metric_named(point.metrics, "queries_hz") is None for point in good):
        ends = [_best(sweep, good, WAKINGS, least=least) for least in (True, False)]
        extremes = [
            f"{at.point.value} ({format_significant(at.metric.estimate.mean)}/s){at.alike}" for at in ends if at
        ]
        if extremes:
            return f"{name}: fewest thread wake-ups with {extremes[0]}; most with {extremes[1]}."
    parts = []
    if (best := _best(sweep, good, ENERGY, least=True)) is not None:
        unit, factor = labels.choose_prefix("J", best.metric.estimate.mean)
        kind = ", estimated" if best.metric.kind == "estimated" else ""
        joules = f"{format_significant(best.metric.estimate.mean * factor)} {unit}{kind}"
        parts.append(f"uses least energy per query {_point_text(sweep, best)}: {joules}")
    # An open loop has a given rate, so no point can do more queries.
    if sweep.options.get("rate_hz") is None and (best := _best(sweep, good, "queries_hz", least=False)) is not None:
        parts.append(f"does most {_point_text(sweep, best)}: {format_significant(best.metric.estimate.mean)} queries/s")
    return f"{name} {'; it '.join(parts)}." if parts else f"{name} has no measured point."


class _BestPoint(msgspec.Struct, frozen=True):
    """The best point by a metric. `alike` lists the points that are not worse, with the bound of the difference."""

    point: Point
    metric: RunMetric
    alike: str


def _best(sweep: Sweep, points: Sequence[Point], name: str, *, least: bool) -> _BestPoint | None:
    known = [(point, metric) for point in points if (metric := metric_named(point.metrics, name)) is not None]
    if not known:
        return None
    point, best = (min if least else max)(known, key=lambda pair: pair[1].estimate.mean)
    others = similar_points(sweep.compared, name, point.value)
    as_good = ""
    if others:
        outcome = join_outcomes(list(others.values()), [100.0] * len(others), [str(value) for value in others])
        undecided = outcome.word if outcome.word == MAY_BE_CHANCE else "inconclusive"
        shown = outcome.text if outcome.is_bounded else undecided
        as_good = f" (or {text.join_words([str(value) for value in others], 'or')}: {shown})"
    return _BestPoint(point, best, as_good)


def _point_text(sweep: Sweep, best: _BestPoint) -> str:
    value = best.point.value
    if sweep.parameter == "clients":
        return f"with {text.plural(int(value), 'client')}{best.alike}"
    return f"at {sweep.parameter} {value}{best.alike}"


def _short(value: float | None) -> str:
    if value is None:
        return text.UNKNOWN
    return text.number(value, 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2)


def _list_rows(record: Sweep) -> Iterator[Line]:
    """Yield one line per metric of each point, then one per function of each sampled window."""
    yield [record.parameter, "metric", "unit", "kind", "mean", "low", "high", "error"]
    table = sweep_table(record, Places(record))
    for number, point in enumerate(record.points):
        value = point.value if isinstance(point.value, int | float | str) else str(point.value)
        if point.error is not None:
            yield [value, *[None] * 6, point.error]
        yield from ([value, *line] for line in column_lines(table, str(number)) if line[3] is not None)
    if any(point.on_cpu for point in record.points):
        yield []
        yield [record.parameter, "server", "window", *SampledFunction.__struct_fields__]
    for point in record.points:
        for number, window in enumerate(point.on_cpu, 1):
            rows = field_lines(window.functions, SampledFunction.__struct_fields__)
            place = f"{number} of {len(point.on_cpu)}"
            yield from ([str(point.value), point.server, place, *row] for row in islice(rows, 1, None))
