# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof run`: the figures of a load, its servers, and the phases of the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from powerprof.experiment.records import Block, LoadRun, Metric
from powerprof.model import text
from powerprof.model.records import RunMetric
from powerprof.report import labels
from powerprof.report.answers import interval_text
from powerprof.report.document import NOT_TERMINAL, TERMINAL, Document, Part, Section, Sentence, Shown, Tile, View
from powerprof.report.html.text import figure_html
from powerprof.report.labels import format_significant
from powerprof.report.layouts import metric_lines
from powerprof.report.metrics import load_system_table, load_table
from powerprof.report.phase_parts import SETUP, cost_of, list_details, list_rows, phase_bars
from powerprof.report.phases import phases_table, shown_phases
from powerprof.report.table import ALL, Line, Places
from powerprof.report.topology import topology_of, traced_lines, traced_section


def document(run: LoadRun, view: View) -> Document:
    """Return the report of a load."""
    return Document(
        record=run,
        answer=_answer(run),
        context=_context_line(run),
        parts=partial(_list_parts, run),
        rows=partial(_list_rows, run),
        tiles=partial(_list_tiles, run),
        setup=SETUP,
        derived=view.extras.derived,
    )


def _list_parts(run: LoadRun) -> Iterator[Part]:
    places = Places(run)
    yield Section("Metrics", [Shown(load_table(run, places), metric_lines)], "metrics")
    yield Section("System metrics", [Shown(load_system_table(run, places), metric_lines)], "system", headed=ALL)
    yield Section("Servers", [Sentence(line) for line in topology_of(run.condition.name, run.blocks)], "servers")
    if run.traced is not None:
        yield traced_section(run.traced, run.condition.name)
    if run.phases:
        chosen = shown_phases(run)
        shown = Shown(phases_table(run, places, chosen), look="phases", forms=NOT_TERMINAL)
        heading = "Phase by phase" if len(chosen) > 1 else "The window"
        yield Section(heading, [shown, phase_bars(run), Sentence(_idle_line(run), forms=TERMINAL)], "phases")
        yield from list_details(run, places)
    yield cost_of(run.tool)


def _list_rows(run: LoadRun) -> Iterator[Line]:
    """Yield the figures of the load and of its phases, then the wake-ups of its traced window."""
    places = Places(run)
    yield from list_rows(run, load_table(run, places), load_system_table(run, places))
    if run.traced is not None:
        yield from traced_lines(run.condition.name, run.traced)


def _answer(run: LoadRun) -> str:
    name = _name(run)
    if not run.metrics:
        return f"No window of {name} was measured."
    first = run.metrics[0]
    estimated = " (estimated)" if first.kind == "estimated" else ""
    metric = labels.define_metric(first.name)
    # The names of rates and counts contain the unit.
    unit = "" if first.unit.startswith("1") else f" {first.unit}"
    low, high, interval = first.estimate.low, first.estimate.high, ""
    if low is not None and high is not None:
        interval = f" {interval_text((format_significant(low), format_significant(high) + unit))}"
    mean = format_significant(first.estimate.mean)
    return f"{name}: {metric.noun}{estimated} {metric.verb} {mean}{unit}{interval}."


def _is_command(run: LoadRun) -> bool:
    return run.condition.load.get("kind") == "command" and run.condition.workload == "command"


def _name(run: LoadRun) -> str:
    return run.condition.name if _is_command(run) else f"{run.condition.workload}:{run.condition.name}"


def _context_line(run: LoadRun) -> str:
    options = run.options
    least = "at least " if _is_command(run) else ""
    length = text.UNKNOWN if options.window_s is None else options.window_s
    parts = [f"{text.count(options.windows_count)} windows of {least}{length} s"]
    if executions := executions_of(run.blocks):
        parts.append(executions)
    if options.offered_hz:
        parts.append(f"{options.offered_hz:,.0f} queries/s offered")
    if options.queries_per_block:
        parts.append(f"{options.queries_per_block:,} queries each")
    if run.server is not None and run.server.version:
        parts.append(run.server.version + (", private" if run.server.private else ""))
    return " · ".join(parts)


def _idle_line(run: LoadRun) -> str:
    """Return C0 and the wake-ups before the load; empty if they were not measured."""
    idle = next((phase for phase in run.phases if phase.name in ("server", "baseline")), None)
    if idle is None:
        return ""
    what = "Idle server" if idle.name == "server" else "Idle host"
    return f"{what}: {text.number(idle.c0_percent)} % C0, {text.number(idle.wakeups_hz, 1)} wake-ups/s."


COST = ("joules_per_query", "joules_per_execution", "watts", "c0_ms_per_query_server", "cpu_s_per_execution")
_SPEED = ("latency_p95_ms", "time_s_per_execution", "time_to_solution_s")


def kind_words(metric: Metric | RunMetric) -> str:
    """Return whether energy is measured or estimated, after a comma; empty for other metrics."""
    return f", {metric.kind}" if metric.unit in ("J", "W", "J·s") else ""


def _choose_metrics(metrics: Sequence[RunMetric]) -> Iterator[tuple[int, RunMetric]]:
    """Yield the most important metric of cost and of speed, each after its place."""
    known = {metric.name: index for index, metric in enumerate(metrics)}
    for names in (COST, _SPEED):
        index = next((known[name] for name in names if name in known), None)
        if index is not None:
            yield index, metrics[index]


def _list_tiles(run: LoadRun) -> list[Tile]:
    """Return the metrics of cost and of speed, and the number of windows."""
    tiles, places = [], Places(run)
    for index, metric in _choose_metrics(run.metrics):
        shown = labels.choose_format(metric.unit, [metric.estimate.mean])
        at = f"/metrics/{index}/estimate"
        value = places.figure(f"{at}/mean", shown.decimals, shown.unit, ends=at, scale=shown.factor)
        note = value.half_width or "one window: no interval"
        tiles.append(Tile(f"{labels.metric_words(metric.name)}{kind_words(metric)}", figure_html(value), note))
    if not tiles:
        return []
    count = Markup("{} windows").format(text.count(run.options.windows_count))
    return [*tiles, Tile("Confidence, 95 % interval", count, "by their scatter")]


def executions_of(blocks: Sequence[Block]) -> str:
    """Return `84 executions, exit code 0`; empty if the load is not a command."""
    counts = [block.executions_count for block in blocks if block.executions_count is not None]
    codes = sorted({code for block in blocks for code in block.exit_codes})
    exit_codes = (
        f", exit code{'s' if len(codes) > 1 else ''} {text.join_words([str(code) for code in codes])}" if codes else ""
    )
    return f"{sum(counts):,} executions{exit_codes}" if counts else ""
