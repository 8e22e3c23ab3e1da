# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof run`: the figures of a load, its servers, and the phases of the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from powerprof.experiment.records import Block, Comparison, LoadRun, Metric, StormShare, TraceSummary
from powerprof.experiment.traced import RAGED_PERCENT, count_by_thread, replication_percent, top_stack
from powerprof.model import text
from powerprof.model.records import RunMetric
from powerprof.report import labels
from powerprof.report.answers import interval_text
from powerprof.report.document import NOT_TERMINAL, TERMINAL, Document, Part, Section, Sentence, Shown, Tile, View
from powerprof.report.html.page import figure_html
from powerprof.report.labels import format_significant
from powerprof.report.metrics import load_system_table, load_table
from powerprof.report.phase_parts import SETUP, cost_of, list_details, list_rows, phase_bars
from powerprof.report.phases import phases_table, shown_phases
from powerprof.report.table import ALL, Cell, Column, Line, Path, Places, Table, TableRow, Words, metric_lines
from powerprof.report.table import words as word_columns


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
    """Yield the figures of the load, then those of its phases."""
    places = Places(run)
    yield from list_rows(run, load_table(run, places), load_system_table(run, places))


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
        value = figure_html(places.figure(f"{at}/mean", shown.decimals, shown.unit, scale=shown.factor))
        half = text.half_width(metric.estimate)
        note = "one window: no interval" if half is None else f"± {text.number(half * shown.factor, shown.decimals)}"
        tiles.append(Tile(f"{labels.metric_words(metric.name)}{kind_words(metric)}", value, note))
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


# Several servers: replication, storms, and the wake-ups of a traced window by server.

_MAX_THREADS = 8
_MAX_STACKS = 3


def list_servers(comparison: Comparison) -> Iterator[Section]:
    """Yield replication, storms and traced windows of a comparison; nothing for single servers."""
    sentences = []
    for arm, name in (("a", comparison.a.name), ("b", comparison.b.name)):
        blocks = [block for block in comparison.blocks if block.arm == arm and not block.dropped]
        sentences += topology_of(name, blocks)
    if len(comparison.traced) == 2 and any(len(window.members) > 1 for window in comparison.traced):
        share = replication_percent(*comparison.traced)
        if share is not None:
            sentences.append(
                f"Replication threads account for {share:.0f} % of the additional idle exits of {comparison.b.name}."
            )
    yield Section("Servers", [Sentence(sentence) for sentence in sentences], "servers")
    for window in comparison.traced:
        yield traced_section(window, comparison.a.name if window.arm == "a" else comparison.b.name)


def topology_of(name: str, blocks: Sequence[Block]) -> list[str]:
    """Return the storm and replication status of one condition."""
    sentences = []
    storms = [block.storm for block in blocks if block.storm is not None]
    if storms:
        sentences.append(f"{name}: {_storm_text(storms)}")
    if blocks and blocks[-1].members:
        states = [
            f"{share.name} I/O {status.io_running or '?'}, SQL {'Yes' if status.sql_running else 'No'}"
            + (f" ({status.last_io_error})" if status.last_io_error else "")
            for share in blocks[-1].members
            for status in share.replication
        ]
        if states:
            sentences.append(f"Replication of {name}, by its own status: {' · '.join(states)}")
    return sentences


def _storm_text(storms: Sequence[StormShare]) -> str:
    rate = sum(storm.counter_hz for storm in storms) / len(storms)
    shown = f"{storms[0].counter} {text.number(rate, 0 if rate >= 10 else 2)}/s"
    if not any(storm.began for storm in storms):
        return f"the storm did not start: this server backs off ({shown})."
    active = sum(storm.raged_percent for storm in storms) / len(storms)
    restarts = text.plural(sum(storm.restarts_count for storm in storms), "time")
    return f"the storm was active {active:.0f} % of the time and was restarted {restarts} within the windows ({shown})."


def traced_section(window: TraceSummary, name: str) -> Section:
    """Return the threads of a traced window that ended most idle periods, with their servers and their stacks."""
    record = window.attribution
    total = sum(row.count for row in record.wakeups)
    rate = f"{total / record.window_s:,.0f} idle exits/s by its servers"
    parts: list[Part] = []
    if window.storm is not None and window.storm.raged_percent < RAGED_PERCENT:
        parts.append(Sentence(f"In this window {_storm_text([window.storm])}"))
    rows = []
    for key, count in count_by_thread(window).most_common(_MAX_THREADS) if total else []:
        cells: dict[str, Cell] = {
            "rate": Words(text.number(count / record.window_s, 1), ours=True),
            "server": Words(key[0]),
            "thread": Words(key[1]),
            "stack": Path(top_stack(window, key), complete=True),
        }
        rows.append(TableRow(cells))
    stack = Column("stack", "most frequent stack, innermost first", left=True)
    columns = [Column("rate", "/s"), *word_columns("server", "thread"), stack]
    table = Table(columns, rows, f"threads of {name} by idle exits")
    shown = Shown(table, _thread_lines, names=False)
    return Section(f"{name}, traced for {record.window_s:.1f} s: {rate}", [*parts, shown], headed=ALL)


def _thread_lines(table: Table, width: int) -> list[str]:
    """Return the threads for a terminal, the first ones with their stacks."""
    rows = [["/s", "server", "thread and its most frequent stack (innermost first)"]]
    rows += [[row.words(key).text for key in ("rate", "server", "thread")] for row in table.rows]
    entries, indent = text.name_rows(rows, width, left=(1,))
    printed = [*entries[0]]
    for number, (entry, row) in enumerate(zip(entries[1:], table.rows, strict=True)):
        stack = row.cells["stack"]
        frames = stack.frames if isinstance(stack, Path) and number < _MAX_STACKS else ()
        printed += [*entry, *(text.wrap(" ← ".join(frames), width, " " * min(11, indent)) if frames else [])]
    return printed
