# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof sweep` and its `--until`: the best points, then one line per point."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
from markupsafe import Markup

from powerprof.experiment.claims import ENERGY, NO_BOUND_PERCENT, metric_named
from powerprof.experiment.sweep_rounds import Point, Sweep, compare_sweep_points, similar_points
from powerprof.experiment.sweep_until import Limit, Saturated, Saturation, Trial
from powerprof.experiment.traced import EXITS, WAKINGS
from powerprof.experiment.verdict import mean_shares
from powerprof.model import text
from powerprof.model.records import RunMetric
from powerprof.report import labels
from powerprof.report.answers import bound_text, interval_text
from powerprof.report.document import Extras
from powerprof.report.html.charts import draw_metrics, one_curve
from powerprof.report.html.page import clean_name, render_page
from powerprof.report.html.svg import SVG, Scale, draw_grid, join_parts, linear_axis, tick_labels
from powerprof.report.labels import answer_and_context, format_significant, word_notes
from powerprof.report.metrics import paces_table, sweep_table
from powerprof.report.table import Line, Places, align_rows, column_lines, draw_table, note_lines
from powerprof.statistics.verdicts import judge_claim
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


def render_terminal(sweep: Sweep, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return the report, at most `width` columns."""
    good = [point for point in sweep.points if point.error is None]
    printed = text.wrap(answer_of(sweep), width)
    done = f"{len(good)} of {len(sweep.values)} points"
    version = sweep.server and sweep.server.version
    printed += text.wrap(" · ".join(part for part in (done, str(version) if version else "") if part), width)
    printed.append("")
    for columns in (_work_columns(good), _SYSTEM_COLUMNS, _DISK_COLUMNS):
        known = [(title, value) for title, value in columns if any(value(point) is not None for point in good)]
        if known:
            rows = [[sweep.parameter, *(title for title, _ in known)]]
            rows += [[str(point.value), *(_short(value(point)) for _, value in known)] for point in good]
            printed += [*text.fit_columns(rows, width, gap=1), ""]
    for point in good:
        printed += _thread_lines(point, width)
    printed += _function_lines(sweep, width)
    printed += [line for line_of_alone in _baseline_sentences(sweep) for line in text.wrap(line_of_alone, width)]
    for point in sweep.points:
        if point.error is not None:
            printed += text.wrap(f"{point.value}: {point.error}", width)
    if any(_disk_mean(point, "service_ms") is not None for point in good):
        printed += text.wrap("disk ms, queue, busy: for the device with the server's files.", width)
    if any(_os_mean(point, "cpu_pressure_percent") is not None for point in good):
        printed += text.wrap("I/O wait: share of time in which a task waited for I/O.", width)
        printed += text.wrap("wait: share of time in which a task was runnable and had no CPU.", width)
    if sweep.interrupted:
        if sweep.id:
            printed += text.wrap(f"Unfinished. To continue: {command_line('sweep --resume {}', sweep.id)}", width)
        else:
            printed += text.wrap("Unfinished and not saved, so it cannot be continued.", width)
    return printed


def _function_lines(sweep: Sweep, width: int) -> list[str]:
    """Return the functions with most samples at any value, with their shares at each value."""
    points = [(point.value, mean_shares(point.on_cpu)) for point in sweep.points if point.on_cpu]
    largest: dict[tuple[str, str, bool], float] = {}
    for _, point_shares in points:
        for key, share in point_shares.items():
            largest[key] = max(share, largest.get(key, 0.0))
    if not largest:
        return []
    rows = [[*(str(value) for value, _ in points), "function"]]
    chosen = sorted(largest, key=lambda key: (-largest[key], key))[:_MOST_FUNCTIONS]
    for function, module, is_kernel in chosen:
        figures = [text.number(each.get((function, module, is_kernel), 0.0), 1) for _, each in points]
        rows.append([*figures, f"{function} ({'kernel' if is_kernel else module})"])
    heading = text.wrap(f"Functions of the server, % of its samples, over {sweep.parameter}:", width)
    return [*heading, *align_rows(rows, width), ""]


def _thread_lines(point: Point, width: int) -> list[str]:
    """Return the threads that wake most often at a point."""
    if not point.paces:
        return []
    shown = point.paces[:_MOST_THREADS]
    names = text.columns([["thread", "settings"], *([pace.thread, pace.remedy] for pace in shown)], left=2)
    rows = [["wakings/s", "95 %", "exits/s", "period", names[0]]]
    for pace, name in zip(shown, names[1:], strict=True):
        woken = pace.wakings or pace.exits
        ends = "" if woken.low is None or woken.high is None else f"{_short(woken.low)}–{_short(woken.high)}"
        period = "" if pace.period_ms is None else f"{_short(pace.period_ms)} ms"
        rows.append([_short(woken.mean), ends, _short(pace.exits.mean), period, name])
    left = len(point.paces) - _MOST_THREADS
    more = [f"{left} more threads (--json)"] if left > 0 else []
    heading = text.wrap(f"{point.value}, {point.server}: wake-ups of its threads", width)
    return [*heading, *align_rows(rows, width), *more, ""]


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
    # Older versions did not save the comparisons.
    others = similar_points(sweep.compared or compare_sweep_points(sweep), name, point.value)
    bounds = [bound for bound in others.values() if bound is not None]
    as_good = ""
    if others:
        bounded = len(bounds) == len(others) and max(bounds) <= NO_BOUND_PERCENT
        sure = "no measurable difference" if bounded else "inconclusive"
        bound = f", less than {format_significant(max(bounds))} %" if bounded else ""
        as_good = f" (or {text.join_words([str(value) for value in others], 'or')}: {sure}{bound})"
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


# The chart of a sweep: energy per query over throughput, one mark per setting; the best settings are marked.

_TOP, _BOTTOM, _LEFT, _RIGHT = 34, 300, 9, 97
# Labels right of this percentage are written to the left of their marks.
_FLIPPED_FROM = 70.0
_DOT = Markup('<circle class="mark a" cx="{:.2f}%" cy="{:.1f}" r="5"><title>{}</title></circle>')
_LABEL = Markup('<text class="{}" x="{:.2f}%" y="{:.1f}" dx="{}" text-anchor="{}">{}</text>')
_X_TITLE = Markup('<text class="axis" x="{}%" y="{}" text-anchor="end">queries per second</text>')


class TradeoffPoint(msgspec.Struct, frozen=True):
    """A value of the parameter with its queries per second and joules per query."""

    label: str
    queries_hz: float
    joules: float


def tradeoff(settings: Sequence[TradeoffPoint], parameter: str, kind: str) -> Markup:
    """Draw the chart; empty for fewer than two settings. `kind` is measured or estimated."""
    if len(settings) < 2:
        return Markup()
    unit, factor = labels.choose_prefix("J", max(abs(setting.joules) for setting in settings))
    down, down_ticks = linear_axis([setting.joules * factor for setting in settings], _BOTTOM, _TOP)
    across, across_ticks = linear_axis([setting.queries_hz for setting in settings], _LEFT, _RIGHT)
    parts = draw_grid(down, down_ticks, "")
    parts.append(Markup('<text class="axis" x="0" y="12">energy per query, {}, {}</text>').format(unit, kind))
    parts += _x_axis(across, across_ticks)
    places = [(across(setting.queries_hz), down(setting.joules * factor)) for setting in settings]
    parts += [
        Markup('<line class="pair" x1="{:.2f}%" y1="{:.1f}" x2="{:.2f}%" y2="{:.1f}"/>').format(*one, *other)
        for one, other in pairwise(places)
    ]
    least = min(settings, key=lambda setting: setting.joules)
    most = max(settings, key=lambda setting: setting.queries_hz)
    for setting, (x, y) in zip(settings, places, strict=True):
        best_in = [*(["least energy"] if setting is least else []), *(["most queries"] if setting is most else [])]
        title = (
            f"{parameter} {setting.label}: {setting.queries_hz:,.4g} queries/s, {setting.joules * factor:.3g} {unit}"
        )
        if best_in:
            parts.append(Markup('<circle class="best" cx="{:.2f}%" cy="{:.1f}" r="9"/>').format(x, y))
        parts.append(_DOT.format(x, y, title))
        label = text.shorten(setting.label, 12) + (f": {' and '.join(best_in)}" if best_in else "")
        look, side = "named best" if best_in else "named", (-12, "end") if x > _FLIPPED_FROM else (12, "start")
        parts.append(_LABEL.format(look, x, y - (16 if best_in else 8), *side, label))
    what = f"{parameter} {least.label} uses least energy per query, {parameter} {most.label} does most queries"
    return SVG.format(f"energy per query over queries per second: {what}", _BOTTOM + 40, join_parts(parts))


def _x_axis(scale: Scale, ticks: Sequence[float]) -> list[Markup]:
    return [*tick_labels(scale, ticks, "", _BOTTOM + 16), _X_TITLE.format(_RIGHT, _BOTTOM + 34)]


# The HTML page of a sweep.

_CHART_METRICS = (
    *("joules_per_query", "queries_hz", "latency_p95_ms", "c0_percent", "c0_ms_per_query_server", "watts"),
    *("wakeups_per_query", "server_wakings_hz"),
)
_ERROR_LIMIT = 300


def render_html(record: Sweep, extras: Extras) -> str:
    """Return the HTML page."""
    places = Places(record)
    answer, context = answer_and_context(render_terminal, record)
    return render_page(
        "sweep.html.j2",
        record,
        places,
        derived=extras.derived,
        title=clean_name(answer),
        answer=answer,
        context=context,
        charts=draw_metrics(
            (
                name
                for name in dict.fromkeys(metric.name for point in record.points for metric in point.metrics)
                if name in _CHART_METRICS
            ),
            [(str(point.value), point.metrics) for point in record.points],
            one_curve,
            record.parameter,
        ),
        tradeoff=_tradeoff(record),
        metrics=sweep_table(record, places),
        paces=paces_table(record, places) if any(point.paces for point in record.points) else None,
        errors=[
            (clean_name(point.value, 20), clean_name(point.error, _ERROR_LIMIT))
            for point in record.points
            if point.error
        ],
    )


def _tradeoff(record: Sweep) -> Markup:
    """Draw energy per query over throughput for the points that have both."""
    settings, kind = [], "estimated"
    for point in record.points:
        known = {metric.name: metric for metric in point.metrics}
        joules, queries = known.get("joules_per_query"), known.get("queries_hz")
        if joules is None or queries is None or joules.estimate.mean is None or queries.estimate.mean is None:
            continue
        kind = joules.kind
        settings.append(TradeoffPoint(clean_name(point.value, 20), queries.estimate.mean, joules.estimate.mean))
    return tradeoff(settings, clean_name(record.parameter, 60), kind)


# Markdown and CSV.


def render_markdown(record: Sweep, context: str) -> list[str]:
    """Return the metrics over the values of the parameter."""
    errors = [f"{record.parameter} {point.value}: {point.error}" for point in record.points if point.error]
    places = Places(record)
    written = ["", context, *draw_table(sweep_table(record, places))]
    if any(point.paces for point in record.points):
        written += ["", "Wake-ups by thread:", *draw_table(paces_table(record, places))]
    return written + note_lines([*errors, *word_notes(record.notes)])


def render_csv(record: Sweep) -> Iterator[Line]:
    """Yield one line per metric of each point."""
    yield [record.parameter, "metric", "unit", "kind", "mean", "low", "high", "error"]
    table = sweep_table(record, Places(record))
    for number, point in enumerate(record.points):
        value = point.value if isinstance(point.value, int | float | str) else str(point.value)
        if point.error is not None:
            yield [value, *[None] * 6, point.error]
        yield from ([value, *line] for line in column_lines(table, str(number)) if line[3] is not None)


# The terminal report of `powerprof sweep --until`: the highest rate that holds the limit, and the trials around it.

_NAMES = {"latency_p50_ms": "median latency", "latency_p95_ms": "p95 latency", "latency_p99_ms": "p99 latency"}


def render_saturation_terminal(record: Saturation, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return the report of a saturation, at most `width` columns."""
    printed = text.wrap(saturation_answer(record), width)
    version = record.server and record.server.version
    window_s = record.options.get("window_s")
    rounds = f"{record.rounds_count} round{'s' if record.rounds_count != 1 else ''}"
    parts = [rounds, f"windows of {window_s:g} s" if isinstance(window_s, int | float) else "", str(version or "")]
    printed += text.wrap(" · ".join(part for part in parts if part), width)
    if record.interrupted:
        printed += text.wrap("Ended early: partial results.", width)
    for condition in (record.a, record.b):
        if condition is not None:
            printed += ["", *_trial_lines(condition, record.limit, width)]
            printed += text.wrap(
                f"{condition.name}: at most {format_significant(condition.capacity_hz)} queries/s at full speed; "
                f"each round has a resolution of {format_significant(condition.resolution_hz)} queries/s.",
                width,
            )
    for note in word_notes(record.notes):
        printed += text.wrap(f"Note: {note}.", width)
    return printed


def saturation_answer(record: Saturation) -> str:
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
    if claim.bound is not None:
        bound = bound_text(claim.bound, f"{100 * claim.bound:,.1f} %")
        return f"No measurable difference between {both} {where}: {bound} {interval}; {first}."
    reason = "the interval is too wide for a bound" if claim.hint is None else "the difference may be chance"
    return f"Inconclusive whether {both} differ {where}: {reason} {interval}; {first}."


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


def _trial_lines(condition: Saturated, limit: Limit, width: int) -> list[str]:
    """Return one line per tried rate: how often it held the limit, and the mean of the metric."""
    rows = [["offered/s", "finished/s", "busy %" if limit.unit == "%" else f"{limit.metric[8:11]} ms", "held"]]
    for rate in sorted({trial.rate_hz for trial in condition.trials}):
        trials = [trial for trial in condition.trials if trial.rate_hz == rate]
        finished = [trial.finished_hz for trial in trials if trial.finished_hz is not None]
        values = [trial.value for trial in trials if trial.value is not None]
        rows.append(
            [
                format_significant(rate),
                format_significant(sum(finished) / len(finished) if finished else None),
                format_significant(sum(values) / len(values) if values else None),
                f"{sum(trial.held for trial in trials)} of {len(trials)}",
            ]
        )
    return text.fit_columns(rows, width, left=0)


def render_saturation_csv(record: Saturation) -> Iterator[Line]:
    """Yield one line per window: the offered load, its result, and whether the limit held."""
    yield ["condition", *Trial.__struct_fields__, "limit", "at_most", "unit"]
    limit = (record.limit.metric, record.limit.at_most, record.limit.unit)
    for one in (record.a, record.b):
        if one is not None:
            yield from ([one.name, *msgspec.structs.astuple(trial), *limit] for trial in one.trials)
