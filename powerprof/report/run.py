# SPDX-License-Identifier: Apache-2.0
"""The page of a run: idle phases, one window of residency, or a load by itself."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from powerprof.experiment.records import LoadRun
from powerprof.model import text
from powerprof.model.records import IdleRun, Phase, Run
from powerprof.report import idle, labels, residency, servers, table
from powerprof.report.answers import words
from powerprof.report.comparison import executions_of
from powerprof.report.html import charts, svg
from powerprof.report.html.charts import c0_bars
from powerprof.report.html.page import Extras, clean, opened, page
from powerprof.report.labels import answer_and_context, significant, texts
from powerprof.report.metrics import load_system_table, load_table
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
from powerprof.report.table import Places, Table
from powerprof.report.wakeups import causes_table

_OPEN_CAUSES = 12
_CAUSES = 100


def phase_looks(run: Run) -> dict[str, str]:
    """The class of each phase's bars: baselines grey, then the colours of A and B by turns."""
    looks: dict[str, str] = {}
    for phase in run.phases:
        others = len([look for look in looks.values() if look != "bar-idle"])
        look = "bar-idle" if phase.name.startswith("baseline") else ("bar-a", "bar-b")[others % 2]
        looks.setdefault(phase.name, look)
    return looks


def _bar(phase: Phase, looks: dict[str, str]) -> list[svg.BarShare]:
    polled = sum(state.polling_percent or 0.0 for state in phase.states if state.polling)
    shares = [svg.BarShare("C0", max(0.0, (phase.c0_percent or 0.0) - polled), "c0")]
    shares += [
        svg.BarShare(f"{state.name} (polling)", state.polling_percent or 0.0, "poll")
        for state in phase.states
        if state.polling and state.polling_percent
    ]
    return shares + [
        svg.BarShare(clean(state.name, 40), state.residency_percent, looks[state.name])
        for state in phase.states
        if not state.polling and state.residency_percent
    ]


def _causes(run: Run, places: Places, index: int) -> tuple[Table, Table]:
    whole = causes_table(run.phases[index].causes, places, f"/phases/{index}/causes", _CAUSES)
    return opened(whole, _OPEN_CAUSES)


def render(run: Run, extras: Extras) -> str:
    """Return the page of a run of any command."""
    lines_of: Callable[..., list[str]] = {"idle": idle.lines, "residency": residency.lines}.get(run.command, lines)
    places = Places(run)
    answer, context = answer_and_context(lines_of, run)
    chosen = shown_phases(run)
    looks = looks_of([state for phase in run.phases for state in phase.states])
    titles = [clean(phase_title(run, phase), 60) for phase in run.phases]
    bar_looks = phase_looks(run)
    windows = [
        (window, bar_looks[phase.name], f"{title}, window {number}", "")
        for title, phase in zip(titles, run.phases, strict=True)
        for number, window in enumerate(phase.windows, 1)
    ]
    traced = [(index, titles[index]) for index in reversed(chosen) if run.phases[index].causes]
    return page(
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
            (titles[index], svg.state_bar(_bar(run.phases[index], looks), run.phases[index].name))
            for index in chosen
            if run.phases[index].c0_percent is not None and run.phases[index].states
        ],
        course=svg.course(c0_bars(windows), "% C0") if len(windows) > 1 else Markup(),
        strips=charts.of_run(run, titles, bar_looks),
        legend=[
            (title, bar_looks[phase.name])
            for title, phase in zip(titles, run.phases, strict=True)
            if phase.name != "baseline-after"
        ],
        traced=[(index, title, _causes(run, places, index)) for index, title in traced],
        energy=energy_table(run, places),
        splits=[
            (title, texts(split.notes), split_table(split, places, f"/phases/{index}/energy_split"))
            for index, (title, phase) in enumerate(zip(titles, run.phases, strict=True))
            if (split := phase.energy_split) is not None
        ],
        drift=changes_table(run.drift if isinstance(run, IdleRun) else [], places, "/drift", "end − begin"),
        achieved=achieved_table(run, places),
        frequencies=labels.of_run(run),
        cpus=cpus_table(run, places),
        notes=list(
            dict.fromkeys([*labels.all_of(run), *(note for phase in run.phases for note in texts(phase.notes))])
        ),
    )


# `powerprof run` for a terminal: each metric with its interval, beside the idle server.


def lines(run: LoadRun, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    is_command = run.condition.load.get("kind") == "command" and run.condition.workload == "command"
    name = run.condition.name if is_command else f"{run.condition.workload}:{run.condition.name}"
    printed = [f"No window of {name} was measured."]
    if run.metrics:
        first = run.metrics[0]
        interval = ""
        if first.estimate.low is not None and first.estimate.high is not None:
            interval = f" ({significant(first.estimate.low)} – {significant(first.estimate.high)}, 95 %)"
        estimated = " (estimated)" if first.kind == "estimated" else ""
        what = words(first.name)
        # The name of a rate or a number says its unit already.
        unit = "" if first.unit.startswith("1") else f" {first.unit}"
        verb = "are" if what.startswith("the wake-ups") else "is"
        mean = significant(first.estimate.mean)
        printed = text.wrap(f"{name}: {what}{estimated} {verb} {mean}{unit}{interval}.", width)
    options = run.options
    least = "at least " if is_command else ""
    parts = [f"{text.count(options.windows_count)} windows of {least}{options.window_s} s"]
    if executions := executions_of(run.blocks):
        parts.append(executions)
    if options.offered_hz:
        parts.append(f"{options.offered_hz:,.0f} queries/s offered")
    if options.queries_per_block:
        parts.append(f"{options.queries_per_block:,} queries each")
    if run.server is not None:
        parts.append(run.server.version + (", private" if run.server.private else ""))
    printed += text.wrap(" · ".join(parts), width)
    if run.interrupted:
        printed += text.wrap("Ended early: this is what was measured until then.", width)
    printed += ["", *table.metrics(load_table(run, Places(run)), width)]
    if run.system:
        printed += ["", "The system:", *table.metrics(load_system_table(run, Places(run)), width)]
    printed += servers.of_blocks(run.condition.name, run.blocks, width)
    if run.traced is not None:
        printed += servers.traced(run.traced, run.condition.name, width)
    idle = next((phase for phase in run.phases if phase.name in ("server", "baseline")), None)
    if idle is not None:
        what = "Idle server" if idle.name == "server" else "Idle host"
        printed += ["", f"{what}: {text.number(idle.c0_percent)} % C0, {text.number(idle.wakeups_hz, 1)} wake-ups/s."]
    printed += labels.lines(run, width)
    if run.tool.cpu_percent is not None:
        printed.append(f"powerprof itself: {run.tool.cpu_percent:.2f} % of one CPU.")
    return printed
