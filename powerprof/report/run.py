# SPDX-License-Identifier: Apache-2.0
"""Reports of runs: the page of every kind of run, and the terminal report and figures of `powerprof run`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from powerprof.experiment.records import Block, Comparison, LoadRun, StormShare, TraceSummary
from powerprof.experiment.traced import RAGED_PERCENT, count_by_thread, replication_percent, top_stack
from powerprof.model import text
from powerprof.model.records import IdleRun, Phase, Run
from powerprof.report import idle, labels, residency, table
from powerprof.report.answers import interval_text, words
from powerprof.report.document import Extras
from powerprof.report.html import charts, svg
from powerprof.report.html.charts import c0_bars
from powerprof.report.html.page import clean_name, render_page
from powerprof.report.labels import answer_and_context, format_significant, word_notes
from powerprof.report.metrics import balance_lines, load_system_table, load_table
from powerprof.report.phases import (
    achieved_table,
    changes_table,
    cpus_table,
    energy_table,
    looks_of,
    phase_title,
    phases_table,
    shown_phases,
    split_table,
)
from powerprof.report.table import (
    MARKDOWN_ROWS,
    Line,
    Places,
    Table,
    code_span,
    column_lines,
    draw_table,
    note_lines,
    split_rows,
)
from powerprof.report.wakeups import causes_table

_OPEN_CAUSES = 12
_MAX_CAUSES = 100


def phase_looks(run: Run) -> dict[str, str]:
    """Return the style of each phase's bars: grey for baselines, alternating colours for the others."""
    looks: dict[str, str] = {}
    for phase in run.phases:
        others = len([look for look in looks.values() if look != "bar-idle"])
        look = "bar-idle" if phase.name.startswith("baseline") else ("bar-a", "bar-b")[others % 2]
        looks.setdefault(phase.name, look)
    return looks


def _state_shares(phase: Phase, looks: dict[str, str]) -> list[svg.BarShare]:
    polled = sum(state.polling_percent or 0.0 for state in phase.states if state.polling)
    shares = [svg.BarShare("C0", max(0.0, (phase.c0_percent or 0.0) - polled), "c0")]
    shares += [
        svg.BarShare(f"{state.name} (polling)", state.polling_percent or 0.0, "poll")
        for state in phase.states
        if state.polling and state.polling_percent
    ]
    return shares + [
        svg.BarShare(clean_name(state.name, 40), state.residency_percent, looks[state.name])
        for state in phase.states
        if not state.polling and state.residency_percent
    ]


def render_html(run: Run, extras: Extras) -> str:
    """Return the page of a run of any command."""
    terminal_of = {"idle": idle.render_terminal, "residency": residency.render_terminal}
    places = Places(run)
    answer, context = answer_and_context(terminal_of.get(run.command, render_terminal), run)
    chosen = shown_phases(run)
    looks = looks_of([state for phase in run.phases for state in phase.states])
    titles = [clean_name(phase_title(run, phase), 60) for phase in run.phases]
    bar_looks = phase_looks(run)
    windows = [
        (window, bar_looks[phase.name], f"{title}, window {number}", "")
        for title, phase in zip(titles, run.phases, strict=True)
        for number, window in enumerate(phase.windows, 1)
    ]
    traced = [
        (index, titles[index], causes_table(causes, places, f"/phases/{index}/causes", _MAX_CAUSES))
        for index in reversed(chosen)
        if (causes := run.phases[index].causes)
    ]
    return render_page(
        "run.html.j2",
        run,
        places,
        derived=extras.derived,
        title=answer,
        answer=answer,
        context=context,
        metrics=load_table(run, places) if isinstance(run, LoadRun) and run.metrics else None,
        system=load_system_table(run, places) if isinstance(run, LoadRun) and run.system else None,
        phases=phases_table(run, places, chosen) if chosen else None,
        bars=[
            (titles[index], svg.draw_state_bar(_state_shares(run.phases[index], looks), run.phases[index].name))
            for index in chosen
            if run.phases[index].c0_percent is not None and run.phases[index].states
        ],
        course=svg.draw_course(c0_bars(windows), "% C0") if len(windows) > 1 else Markup(),
        strips=charts.run_charts(run, titles, bar_looks),
        legend=[
            (title, bar_looks[phase.name])
            for title, phase in zip(titles, run.phases, strict=True)
            if phase.name != "baseline-after"
        ],
        traced=[(index, title, split_rows(causes, _OPEN_CAUSES)) for index, title, causes in traced],
        energy=energy_table(run, places),
        splits=[
            (title, word_notes(split.notes), split_table(split, places, f"/phases/{index}/energy_split"))
            for index, (title, phase) in enumerate(zip(titles, run.phases, strict=True))
            if (split := phase.energy_split) is not None
        ],
        drift=changes_table(run.drift if isinstance(run, IdleRun) else [], places, "/drift", "end − begin"),
        achieved=achieved_table(run, places),
        frequencies=labels.run_frequency_sentences(run),
        cpus=cpus_table(run, places),
        notes=list(
            dict.fromkeys(
                [*labels.notes_with_source(run), *(note for phase in run.phases for note in word_notes(phase.notes))]
            )
        ),
    )


# Markdown and CSV of every kind of run.

_CAUSE_COLUMNS = ("who", "why", "every", "rate", "percent")


def render_markdown(record: Run, context: str) -> list[str]:
    """Return the metrics, the phases with their changes, and the wake-up causes."""
    places = Places(record)
    written = ["", context]
    if isinstance(record, LoadRun) and record.metrics:
        written += draw_table(load_table(record, places))
        if record.system:
            written += draw_table(load_system_table(record, places))
    if record.phases:
        written += draw_table(phases_table(record, places, range(len(record.phases))))
    if isinstance(record, IdleRun) and record.deltas:
        written += draw_table(changes_table(record.deltas, places, "/deltas", "change"))
    phases = [*enumerate(record.phases)][::-1]
    for index, phase in [phase for phase in phases if phase[1].causes and phase[1].name != "baseline-after"][:1]:
        causes = causes_table(phase.causes, places, f"/phases/{index}/causes", MARKDOWN_ROWS)
        written += ["", f"Causes of wake-ups, {code_span(phase.name, 40)}:", *draw_table(causes, _CAUSE_COLUMNS)]
        written += balance_lines(phase.conservation)
    return written + note_lines(labels.notes_with_source(record))


def render_csv(record: Run) -> Iterator[Line]:
    """Yield one line per figure of each phase, its energy and its wake-up causes."""
    places = Places(record)
    yield ["phase", "figure", "unit", "kind", "value", "low", "high", "mechanism", "process", "thread"]
    if isinstance(record, LoadRun):
        for table in (load_table(record, places), load_system_table(record, places)):
            yield from (["", *line] for line in column_lines(table, "mean"))
    table = phases_table(record, places, range(len(record.phases))) if record.phases else Table([], [])
    for number, phase in enumerate(record.phases):
        yield from ([phase.name, *line] for line in column_lines(table, str(number)))
        for reading in phase.energy:
            where = f"{reading.source} {reading.domain}"
            yield [phase.name, where, "W", reading.kind, reading.watts, reading.low_watts, reading.high_watts]
            yield [phase.name, where, "J", reading.kind, reading.joules]
        for cause in phase.causes:
            figure: Line = (f"wakeups {cause.name or ''}".rstrip(), "1/s", "measured", cause.wakeups_hz, None, None)
            yield [phase.name, *figure, cause.mechanism, cause.process, cause.thread]


# The terminal report of a load.


def render_terminal(run: LoadRun, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return the report of a load, at most `width` columns."""
    is_command = run.condition.load.get("kind") == "command" and run.condition.workload == "command"
    name = run.condition.name if is_command else f"{run.condition.workload}:{run.condition.name}"
    printed = [f"No window of {name} was measured."]
    if run.metrics:
        first = run.metrics[0]
        estimated = " (estimated)" if first.kind == "estimated" else ""
        what = words(first.name)
        # The names of rates and counts contain the unit.
        unit = "" if first.unit.startswith("1") else f" {first.unit}"
        low, high, interval = first.estimate.low, first.estimate.high, ""
        if low is not None and high is not None:
            interval = f" {interval_text((format_significant(low), format_significant(high) + unit))}"
        verb = "are" if what.startswith("the wake-ups") else "is"
        mean = format_significant(first.estimate.mean)
        printed = text.wrap(f"{name}: {what}{estimated} {verb} {mean}{unit}{interval}.", width)
    options = run.options
    least = "at least " if is_command else ""
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
    printed += text.wrap(" · ".join(parts), width)
    if run.interrupted:
        printed += text.wrap("Ended early: partial results.", width)
    printed += ["", *table.metric_lines(load_table(run, Places(run)), width)]
    if run.system:
        printed += ["", "The system:", *table.metric_lines(load_system_table(run, Places(run)), width)]
    printed += topology_lines(run.condition.name, run.blocks, width)
    if run.traced is not None:
        printed += traced_lines(run.traced, run.condition.name, width)
    idle = next((phase for phase in run.phases if phase.name in ("server", "baseline")), None)
    if idle is not None:
        what = "Idle server" if idle.name == "server" else "Idle host"
        figures = f"{text.number(idle.c0_percent)} % C0, {text.number(idle.wakeups_hz, 1)} wake-ups/s"
        printed += ["", *text.wrap(f"{what}: {figures}.", width)]
    printed += labels.wrap_notes(run, width)
    if run.tool.cpu_percent is not None:
        printed.append(f"powerprof itself: {run.tool.cpu_percent:.2f} % of one CPU.")
    return printed


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


def server_lines(comparison: Comparison, width: int) -> list[str]:
    """Return the replication and storm lines of a comparison; empty for single servers."""
    printed = []
    for arm, name in (("a", comparison.a.name), ("b", comparison.b.name)):
        blocks = [block for block in comparison.blocks if block.arm == arm and not block.dropped]
        printed += topology_lines(name, blocks, width)
    for window in comparison.traced:
        printed += traced_lines(window, comparison.a.name if window.arm == "a" else comparison.b.name, width)
    if len(comparison.traced) == 2 and any(len(window.members) > 1 for window in comparison.traced):
        share = replication_percent(*comparison.traced)
        if share is not None:
            printed += text.wrap(
                f"Replication threads account for {share:.0f} % of the additional idle exits of {comparison.b.name}.",
                width,
            )
    return printed


def topology_lines(name: str, blocks: Sequence[Block], width: int) -> list[str]:
    """Return the storm and replication status of one condition."""
    printed = []
    storms = [block.storm for block in blocks if block.storm is not None]
    if storms:
        printed += text.wrap(f"{name}: {_storm_text(storms)}", width)
    if blocks and blocks[-1].members:
        states = [
            f"{share.name} I/O {status.io_running or '?'}, SQL {'Yes' if status.sql_running else 'No'}"
            + (f" ({status.last_io_error})" if status.last_io_error else "")
            for share in blocks[-1].members
            for status in share.replication
        ]
        if states:
            printed += text.wrap(f"Replication of {name}, by its own status: {' · '.join(states)}", width)
    return printed


def _storm_text(storms: Sequence[StormShare]) -> str:
    rate = sum(storm.counter_hz for storm in storms) / len(storms)
    shown = f"{storms[0].counter} {text.number(rate, 0 if rate >= 10 else 2)}/s"
    if not any(storm.began for storm in storms):
        return f"the storm did not start: this server backs off ({shown})."
    active = sum(storm.raged_percent for storm in storms) / len(storms)
    restarts = text.plural(sum(storm.restarts_count for storm in storms), "time")
    return f"the storm was active {active:.0f} % of the time and was restarted {restarts} within the windows ({shown})."


def traced_lines(window: TraceSummary, name: str, width: int) -> list[str]:
    """Return the threads of a traced window that ended most idle periods, with their servers."""
    record = window.attribution
    total = sum(row.count for row in record.wakeups)
    printed = [
        "",
        *text.wrap(
            f"{name}, traced for {record.window_s:.1f} s: {total / record.window_s:,.0f} idle exits/s by its servers",
            width,
        ),
    ]
    if window.storm is not None and window.storm.raged_percent < RAGED_PERCENT:
        printed += text.wrap(f"In this window {_storm_text([window.storm])}", width)
    if not total:
        return printed
    counted = count_by_thread(window).most_common(_MAX_THREADS)
    rows = [["/s", "server", "thread and its most frequent stack (innermost first)"]]
    rows += [[text.number(count / record.window_s, 1), key[0], key[1]] for key, count in counted]
    entries, indent = text.name_rows(rows, width, left=(1,))
    printed += entries[0]
    for number, (entry, (key, _)) in enumerate(zip(entries[1:], counted, strict=True)):
        stack = top_stack(window, key) if number < _MAX_STACKS else []
        printed += [*entry, *(text.wrap(" ← ".join(stack), width, " " * min(11, indent)) if stack else [])]
    return printed
