# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof residency`: the answer, the idle states and the doubts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from powerprof.model import text
from powerprof.model.records import Run, StateResidency, Window
from powerprof.report.document import NOT_TERMINAL, Document, Part, Section, Sentence, Shown, View
from powerprof.report.layouts import figure_lines
from powerprof.report.phase_parts import SETUP, list_details, list_rows, phase_bars
from powerprof.report.phases import looks_of, phases_table, shown_phases
from powerprof.report.table import ALL, HTML, Cell, Column, Places, Table, TableRow, Words, figure_columns


def document(run: Run, view: View) -> Document:
    """Return the report of the only window of a run."""
    return Document(
        record=run,
        answer=_answer(run.phases[0].windows[0]),
        context=_context_line(run),
        parts=partial(_list_parts, run),
        rows=partial(list_rows, run),
        setup=SETUP,
        derived=view.extras.derived,
    )


def _list_parts(run: Run) -> Iterator[Part]:
    places, window = Places(run), run.phases[0].windows[0]
    whole = phases_table(run, places, shown_phases(run))
    # The idle states have their own table.
    others = [row for row in whole.rows if not row.look and not row.inner]
    parts: list[Part] = [Shown(_states_table(window, places), figure_lines)]
    parts += [Sentence(line, look="muted") for line in _accounting(window)]
    parts += [phase_bars(run), Shown(replace(whole, rows=others), look="phases", forms=NOT_TERMINAL)]
    yield Section("The window", parts, "phases")
    yield Section("Limits of idle states", [Sentence(line) for line in _limits(run, window)], "limits")
    yield from list_details(run, places, cpus=ALL)


def _limits(run: Run, window: Window) -> list[str]:
    """Return the settings that forbid idle states, and the share of idle periods that were long enough for more.

    The kernel counts `below` against all deeper states that are not disabled, so also against those that a latency
    limit excludes (cpuidle_enter_state in drivers/cpuidle/cpuidle.c).
    """
    limits = run.host.get("idle_limits") or []
    sentences = [f"{limit[:1].upper()}{limit[1:]}." for limit in limits]
    entries = sum(state.entries_hz or 0.0 for state in window.states)
    below = [state.below_hz for state in window.states]
    if limits and entries and None not in below:
        share = 100.0 * sum(value or 0.0 for value in below) / entries
        rate = f"{share:.0f} % of the {_rate(entries)} idle periods"
        sentences.append(f"{rate} were long enough for a deeper state than they had.")
    return sentences


def _answer(window: Window) -> str:
    deepest = max(
        (state for state in window.states if state.residency_percent),
        default=None,
        key=lambda state: state.residency_percent or 0.0,
    )
    if window.c0_percent is not None:
        unknown = window.unknown_cpus_count
        subject = f"{window.cpus} of {window.cpus + unknown} CPUs" if unknown else "The CPUs"
        answer = f"{subject} ran {_percent(window.c0_percent)} of the time"
        if window.wakeups_hz is not None:
            answer += f" and woke from idle {_rate(window.wakeups_hz)}"
        if unknown:
            answer += "; the other is unknown" if unknown == 1 else f"; the other {unknown} are unknown"
        return answer + "."
    if deepest is not None:
        time = "idle time" if window.percent_of == "idle_time" else "time"
        return f"{_percent(deepest.residency_percent)} of the {time} was in {deepest.name}."
    return "Residency is unknown on this host."


def _context_line(run: Run) -> str:
    window, driver = run.phases[0].windows[0], run.host.get("idle_driver")
    # A recording may hide its CPUs.
    count = f"{window.cpus} CPU{'s' if window.cpus != 1 else ''}" if window.cpus else ""
    parts = [part for part in (", ".join(filter(None, (count, driver and f"driver {driver}"))),) if part]
    if window.window_s is not None:
        parts.append(f"{window.window_s:.2f} s")
    parts.append(
        {"procfs": "from /proc/stat", "cpuidle": "states as requested by the kernel"}.get(
            window.residency_source, f"measured by {window.residency_source}, states as requested"
        )
    )
    return " · ".join(parts)


def _states_table(window: Window, places: Places) -> Table:
    """Return C0 and each idle state: its share, its entries, and those that were too deep, too shallow or rejected."""
    at = "/phases/0/windows/0"
    c0: dict[str, Cell] = {"name": Words("C0 (running)", ours=True), "share": places.figure(f"{at}/c0_percent", 2, "%")}
    is_known = window.c0_percent is not None and bool(window.states)
    looks, counted = looks_of(window.states), window.window_s is None and any(s.entries_count for s in window.states)
    rows = [TableRow(c0, short="C0 (running)", look="c0", forms=ALL if is_known else HTML)]
    rows += [
        _state_row(state, f"{at}/states/{number}", places, looks[state.name], counted=counted)
        for number, state in enumerate(window.states)
    ]
    columns = [
        Column("name", "state", left=True),
        *figure_columns(share="residency" if window.percent_of == "wall_time" else "of idle", average="average"),
        *figure_columns(entries="entries", above="too deep", below="too shallow"),
        *(figure_columns(rejected="rejected") if any(state.rejected_hz for state in window.states) else []),
    ]
    # A column without figures is left out.
    return Table([each for each in columns if any(each.key in row.cells for row in rows)], rows, "idle states")


def _state_row(state: StateResidency, at: str, places: Places, look: str, *, counted: bool) -> TableRow:
    share = "polling_percent" if state.polling else "residency_percent"
    cells: dict[str, Cell] = {"name": Words(state.name, "(polling)" if state.polling else "")}
    if getattr(state, share) is not None:
        cells["share"] = places.figure(f"{at}/{share}", 2, "%")
    if state.average_residency_ms is not None:
        cells["average"] = places.figure(f"{at}/average_residency_ms", wording=_duration(state.average_residency_ms))
    if counted:
        cells["entries"] = places.figure(f"{at}/entries_count", 0)
    rates = {"above": state.above_hz, "below": state.below_hz, "rejected": state.rejected_hz}
    for key, rate in rates.items() if counted else {"entries": state.entries_hz, **rates}.items():
        if rate is not None:
            cells[key] = places.figure(f"{at}/{key}_hz", 0 if rate >= 1000 else 1, "/s")
    return TableRow(cells, short=f"{state.name}{' (polling)' if state.polling else ''}", look=look)


def _accounting(window: Window) -> list[str]:
    """Return how the CPUs ran, the idle exits that no figure includes, and the doubt about C0."""
    named = (
        ("user", window.user_percent),
        ("system", window.system_percent),
        ("interrupts", window.irq_percent),
        ("stolen", window.steal_percent),
    )
    sentences = [" · ".join(f"{name} {_percent(value)}" for name, value in named if value is not None)]
    if window.edge_exits_count:
        count = window.edge_exits_count
        sentences.append(f"{text.plural(count, 'idle exit')} caused by reading the counters excluded")
    if window.residual_percent:
        sum_percent = _percent(100.0 + window.residual_percent)
        sentences.append(f"the states sum to {sum_percent} of the time: C0 set to 0")
    return sentences


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} %"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}/s" if value >= 1000 else f"{value:.1f}/s"


def _duration(ms: float) -> str:
    if ms < 1:
        return f"{ms * 1e3:.3g} µs"
    return f"{ms / 1e3:,.1f} s" if ms >= 10_000 else f"{ms:.3g} ms" if ms < 100 else f"{ms:,.0f} ms"
