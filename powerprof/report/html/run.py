"""The page of a run: idle phases, one window of residency, or a load by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from powerprof import text
from powerprof.experiment.records import LoadRun
from powerprof.records import IdleRun, Phase, Run, StateResidency
from powerprof.report import labels
from powerprof.report.html import svg
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import Figures, clean, escape_pointer
from powerprof.report.html.page import page
from powerprof.report.html.states import looks_of
from powerprof.report.kinds import said as said_of

_MAIN = ("baseline", "server", "clients")
_DIGITS = {"c0_percent": 2, "wakeups_hz": 1}


@dataclass(frozen=True)
class PhaseRow:
    """A figure in every shown phase, and how it changed from the first to the last."""

    label: str
    unit: str
    cells: tuple[Markup, ...]
    change: Markup
    look: str = ""
    inner: bool = False


def shown_phases(run: Run) -> list[int]:
    """The phases that are compared: of idle runs baseline, server, clients; else all."""
    found = [index for name in _MAIN for index, phase in enumerate(run.phases) if phase.name == name]
    return found if found and isinstance(run, IdleRun) else list(range(len(run.phases)))


def phase_looks(run: Run) -> dict[str, str]:
    """The class of each phase's bars: baselines grey, then the colours of A and B by turns."""
    looks: dict[str, str] = {}
    for phase in run.phases:
        others = len([look for look in looks.values() if look != "bar-idle"])
        look = "bar-idle" if phase.name.startswith("baseline") else ("bar-a", "bar-b")[others % 2]
        looks.setdefault(phase.name, look)
    return looks


def phase_title(run: Run, phase: Phase) -> str:
    """`16 clients` rather than `clients`."""
    count = run.options.clients_count if isinstance(run, IdleRun) else None
    return f"{count} clients" if phase.name == "clients" and count is not None else clean(phase.name, 60)


def _change(figures: Figures, run: Run, chosen: Sequence[int], metric: str, digits: int) -> Markup:
    first, last = run.phases[chosen[0]].name, run.phases[chosen[-1]].name
    for index, delta in enumerate(run.deltas if isinstance(run, IdleRun) else ()):
        if len(chosen) > 1 and (delta.from_phase, delta.to_phase, delta.metric) == (first, last, metric):
            place = f"/deltas/{index}/difference"
            return figures.fig(f"{place}/mean", digits, sign=True) + figures.interval(
                f"{place}/low", f"{place}/high", digits, sign=True
            )
    return Markup()


def _cell(figures: Figures, place: str, pointer: str, interval: str, digits: int) -> Markup:
    ends = f"{place}/intervals/{escape_pointer(interval)}"
    return figures.fig(f"{place}/{pointer}", digits) + figures.interval(f"{ends}/low", f"{ends}/high", digits)


def _state_index(phase: Phase, name: str) -> int | None:
    return next((index for index, state in enumerate(phase.states) if state.name == name), None)


def phase_rows(figures: Figures, run: Run, chosen: Sequence[int]) -> list[PhaseRow]:
    """C0, every idle state with its average residency, wake-ups, steal."""
    places = [f"/phases/{index}" for index in chosen]
    phases = [run.phases[index] for index in chosen]

    def plain(label: str, name: str, unit: str, change_unit: str) -> PhaseRow:
        digits = _DIGITS.get(name, 2)
        cells = tuple(_cell(figures, place, name, name, digits) for place in places)
        return PhaseRow(label, unit, cells, _change(figures, run, chosen, name, digits), "c0" if change_unit else "")

    rows = [plain("C0 (running)", "c0_percent", "%", "pt")]
    looks = looks_of([state for phase in phases for state in phase.states])
    for name, look in looks.items():
        at = [_state_index(phase, name) for phase in phases]
        states = [None if i is None else phase.states[i] for phase, i in zip(phases, at, strict=True)]
        if all(state is None or (state.polling and not state.entries_count) for state in states):
            continue
        polling = any(state is not None and state.polling for state in states)
        field = "polling_percent" if polling else "residency_percent"

        def cells(field: str, interval: str, at: list[int | None] = at) -> tuple[Markup, ...]:
            return tuple(
                Markup("–") if i is None else _cell(figures, place, f"states/{i}/{field}", interval, 2)
                for place, i in zip(places, at, strict=True)
            )

        change = Markup() if polling else _change(figures, run, chosen, f"{name} residency_percent", 2)
        rows.append(
            PhaseRow(
                clean(name, 60) + (" (polling, in C0)" if polling else ""),
                "%",
                cells(field, f"residency_percent:{name}"),
                change,
                look,
            )
        )
        if not polling:
            rows.append(PhaseRow("average residency", "ms", cells("average_residency_ms", "-"), Markup(), inner=True))
    rows.append(plain("wake-ups from idle", "wakeups_hz", "/s", ""))
    if any(phase.steal_percent for phase in phases):
        rows.append(plain("stolen by the hypervisor", "steal_percent", "%", ""))
    return rows


def _bar(phase: Phase, looks: dict[str, str]) -> list[svg.Share]:
    polled = sum(state.polling_percent or 0.0 for state in phase.states if state.polling)
    shares = [svg.Share("C0", max(0.0, (phase.c0_percent or 0.0) - polled), "c0")]
    shares += [
        svg.Share(f"{state.name} (polling)", state.polling_percent or 0.0, "poll")
        for state in phase.states
        if state.polling and state.polling_percent
    ]
    return shares + [
        svg.Share(clean(state.name, 40), state.residency_percent or 0.0, looks[state.name])
        for state in phase.states
        if not state.polling and _drawn(state)
    ]


def _drawn(state: StateResidency) -> bool:
    return bool(state.residency_percent)


def _course(run: Run) -> list[svg.Bar]:
    timed = []
    for phase in run.phases:
        for number, window in enumerate(phase.windows, 1):
            try:
                start = datetime.fromisoformat(window.started_at).timestamp()
            except ValueError:
                continue
            timed.append((start, phase, number, window))
    first = min((start for start, *_ in timed), default=0.0)
    looks = phase_looks(run)
    return [
        svg.Bar(
            start - first,
            start - first + (window.window_s or 0.0),
            window.c0_percent,
            looks[phase.name],
            f"{phase_title(run, phase)}, window {number}: C0 {text.number(window.c0_percent, 2, ' %')}",
        )
        for start, phase, number, window in sorted(timed, key=lambda one: one[0])
    ]


def render(run: Run, extras: Extras) -> str:
    """The page."""
    figures, said = Figures(run), said_of(run)
    metrics = run.metrics if isinstance(run, LoadRun) else []
    chosen = shown_phases(run)
    looks = looks_of([state for phase in run.phases for state in phase.states])
    bars = [
        (phase_title(run, run.phases[i]), svg.state_bar(_bar(run.phases[i], looks), run.phases[i].name))
        for i in chosen
        if run.phases[i].c0_percent is not None and run.phases[i].states
    ]
    return page(
        "run.html.j2",
        run,
        figures,
        title=said[0],
        answer=said[0],
        context=said[1],
        titles=[phase_title(run, run.phases[index]) for index in chosen],
        rows=phase_rows(figures, run, chosen) if chosen else [],
        bars=bars,
        course=svg.course(_course(run), "% C0") if sum(len(phase.windows) for phase in run.phases) > 1 else Markup(),
        legend=[
            (phase_title(run, phase), phase_looks(run)[phase.name])
            for phase in run.phases
            if phase.name != "baseline-after"
        ],
        traced=[(index, phase_title(run, run.phases[index])) for index in reversed(chosen) if run.phases[index].causes],
        energies=[(index, phase_title(run, phase)) for index, phase in enumerate(run.phases) if phase.energy],
        metrics=metrics,
        drift=run.drift if isinstance(run, IdleRun) else [],
        metric_labels=[labels.metric(metric.name) for metric in metrics],
        metric_units=[labels.prefix(metric.unit, metric.estimate.mean) for metric in metrics],
        label=labels.metric,
        notes=notes_of(run),
        period=text.period,
    )


def notes_of(run: Run) -> list[str]:
    """The run's notes and its phases', each once."""
    return list(dict.fromkeys([*run.notes, *(note for phase in run.phases for note in phase.notes)]))
