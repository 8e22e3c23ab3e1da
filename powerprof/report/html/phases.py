# SPDX-License-Identifier: Apache-2.0
"""The phases of a run as charts: the share of each idle state, and C0 of the windows over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from markupsafe import Markup

from powerprof.model import text
from powerprof.model.records import Phase, Run, Window
from powerprof.report.html import svg
from powerprof.report.html.svg import Bar
from powerprof.report.html.text import clean_name
from powerprof.report.phases import looks_of, phase_title, shown_phases

STATES_CAPTION = "Share of the time of all CPUs, running and in each idle state (as requested by the kernel)."
_NAMED_BAR = Markup('<p class="bar-name">{}{}</p>\n{}')


def title_of(run: Run, phase: Phase) -> str:
    """Return the name of a phase for a page."""
    return clean_name(phase_title(run, phase), 60)


def choose_looks(run: Run) -> dict[str, str]:
    """Return the style of each phase's bars: grey for baselines, alternating colours for the others."""
    looks: dict[str, str] = {}
    for phase in run.phases:
        others = len([look for look in looks.values() if look != "bar-idle"])
        look = "bar-idle" if phase.name.startswith("baseline") else ("bar-a", "bar-b")[others % 2]
        looks.setdefault(phase.name, look)
    return looks


def draw_state_bars(bars: Iterable[tuple[Markup, str, Sequence[svg.BarShare]]]) -> Markup:
    """Return one bar per name, each with its key and its shares."""
    drawn = (_NAMED_BAR.format(key, name, svg.draw_state_bar(shares, name)) for key, name, shares in bars)
    return Markup("\n").join(drawn)


def draw_phase_states(run: Run) -> Markup:
    """Return the share of C0 and of each idle state in each phase."""
    looks = looks_of([state for phase in run.phases for state in phase.states])
    shown = [phase for index in shown_phases(run) if (phase := run.phases[index]).states]
    known = [phase for phase in shown if phase.c0_percent is not None]
    return draw_state_bars((Markup(), title_of(run, phase), _list_shares(phase, looks)) for phase in known)


def _list_shares(phase: Phase, looks: dict[str, str]) -> list[svg.BarShare]:
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


def draw_windows(run: Run) -> Markup:
    """Return C0 of each window over time; an empty text for one window."""
    looks = choose_looks(run)
    windows = [
        (window, looks[phase.name], f"{title_of(run, phase)}, window {number}", "")
        for phase in run.phases
        for number, window in enumerate(phase.windows, 1)
    ]
    return svg.draw_course(c0_bars(windows), "% C0") if len(windows) > 1 else Markup()


def window_legend(run: Run) -> Markup:
    """Return the caption of the windows over time, with the colour of each phase."""
    key, looks = Markup(' <span class="swatch {}"></span>{}'), choose_looks(run)
    named = [phase for phase in run.phases if phase.name != "baseline-after"]
    keys = Markup().join(key.format(looks[phase.name], title_of(run, phase)) for phase in named)
    return Markup("Time in C0 in each window.{}").format(keys)


def c0_bars(named: Iterable[tuple[Window, str, str, str]]) -> list[Bar]:
    """Return a bar for each (window, class, title, label) whose start is known, as high as its C0."""
    times = [(start, *bar) for bar in named if (start := _start_of(bar[0])) is not None]
    first = min((start for start, *_ in times), default=0.0)
    bars: list[Bar] = []
    for start, window, look, title, label in sorted(times, key=lambda bar: bar[0]):
        # Alternating windows began together and were measured for half of the time each: side by side they have the
        # same length.
        begin = max(start - first, bars[-1].end_s) if bars else start - first
        tooltip = f"{title}: C0 {text.number(window.c0_percent, 2, ' %')}"
        bars.append(Bar(begin, begin + (window.window_s or 0.0), window.c0_percent, look, tooltip, label))
    return bars


def _start_of(window: Window) -> float | None:
    try:
        return datetime.fromisoformat(window.started_at).timestamp()
    except ValueError:
        return None
