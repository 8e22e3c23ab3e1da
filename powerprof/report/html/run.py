# SPDX-License-Identifier: Apache-2.0
"""The page of a run: idle phases, one window of residency, or a load by itself."""

from __future__ import annotations

from markupsafe import Markup

from powerprof.experiment.records import LoadRun
from powerprof.idle_records import IdleRun
from powerprof.records import Phase, Run
from powerprof.report.documents.kinds import answer_and_context
from powerprof.report.html import strips, svg
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.html.tables import opened
from powerprof.report.html.windows import c0_bars
from powerprof.report.tables import notes
from powerprof.report.tables.causes import causes_table
from powerprof.report.tables.metrics import load_system_table, load_table
from powerprof.report.tables.phases import (
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
from powerprof.report.tables.table import Places, Table
from powerprof.report.wording import frequencies
from powerprof.report.wording.notes import texts

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
    """The page."""
    places = Places(run)
    answer, context = answer_and_context(run)
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
        strips=strips.of_run(run, titles, bar_looks),
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
        frequencies=frequencies.of_run(run),
        cpus=cpus_table(run, places),
        notes=list(dict.fromkeys([*notes.all_of(run), *(note for phase in run.phases for note in texts(phase.notes))])),
    )
