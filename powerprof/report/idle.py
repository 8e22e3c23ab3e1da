# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof idle`: the answer, the phases side by side, wake-up causes, the measuring cost and doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from powerprof.energy.model import WIDE
from powerprof.energy.total import Total, host_meters, mean_host_energy
from powerprof.energy.uncertainty import bound_difference, bound_ratio
from powerprof.experiment.phases import Finding, find_delta, judge_costs
from powerprof.experiment.server_cost import find_obstacle
from powerprof.model import text
from powerprof.model.records import EnergyReading, Estimate, EstimateRange, IdleRun, Phase
from powerprof.report import labels
from powerprof.report.document import MARKDOWN, NOT_HTML, Document, Part, Section, Sentence, Shown, Tile, View
from powerprof.report.html.text import figure_html
from powerprof.report.idle_answer import answer_of, check, shown_of
from powerprof.report.layouts import phase_lines
from powerprof.report.phase_parts import SETUP, list_details, list_rows, phase_bars
from powerprof.report.phases import changes_table, phases_table, shown_phases
from powerprof.report.table import Places, Table
from powerprof.system.next_steps import command_line


def _context_line(run: IdleRun) -> str:
    first = shown_of(run)[0]
    kind = "private" if run.server and run.server.private else "given"
    server = f"{run.server.version}, {kind} · " if run.server else ""
    driver = run.host.get("idle_driver") or "no cpuidle driver"
    return (
        f"{server}{first.cpus} CPUs, {driver} · {len(first.windows)} × "
        f"{text.number(first.window_s, 1).removesuffix('.0')} s windows per phase"
    )


def _power_rows(run: IdleRun, shown: Sequence[Phase]) -> list[list[str]]:
    totals = [host_of(run, phase) for phase in shown]
    if not totals or totals[0].source is None:
        return []
    kind = "estimated" if totals[0].kind == "estimated" else f"{totals[0].source}"
    digits = 2 if all((s.watts or 0) < 100 for s in totals) else 1
    change = _power_change(run, shown)
    last = [labels.plus_minus(change, digits, sign=True) + " W"] if change else []
    low, high = totals[0].low_watts, totals[0].high_watts
    is_wide = kind == "estimated" and low is not None and high is not None and high > WIDE * low
    if is_wide and len(totals) > 1:
        # With such a doubtful absolute figure, only the difference gets a row. The figure is printed below.
        apart = [None if s.watts is None or totals[0].watts is None else s.watts - totals[0].watts for s in totals[1:]]
        added = [
            text.number(w, digits, " W") if w is None or w < 0 else f"+{text.number(w, digits, ' W')}" for w in apart
        ]
        return [[f"power above {shown[0].name}", "", *added, *last]]
    return [[f"power, {kind}", *(text.number(s.watts, digits, " W") for s in totals), *last]]


def _power_change(run: IdleRun, shown: Sequence[Phase]) -> Estimate | None:
    if len(shown) < 2:
        return None
    change = find_delta(run, shown[0].name, shown[-1].name, "watts")
    return change.difference if change else None


def host_of(run: IdleRun, phase: Phase) -> Total:
    """Return the host's energy in a phase, from the run's meters."""
    # The same meters stand for the host in all phases. Runs without windows have figures per phase only.
    meters = host_meters([energy for each in run.phases for energy in _readings(each)])
    return mean_host_energy(_readings(phase), meters)


def _readings(phase: Phase) -> list[list[EnergyReading]]:
    return [window.energy for window in phase.windows] or [phase.energy]


def _power_note(run: IdleRun, shown: Sequence[Phase]) -> str:
    """Return the source of the power, and how far an estimate may be wrong."""
    host = host_of(run, shown[0])
    reading = next((r for r in shown[0].energy if r.domain in host.domains and r.source == host.source), None)
    if host.watts is None and host.reason is not None:
        return f"power unknown: {host.reason}; for each meter's own figure: {command_line('energy')}"
    if reading is None:
        return f"no energy figure: no meter and no model for this CPU ({command_line('doctor')})"
    if reading.kind == "measured":
        return f"measured by {reading.source}: {', '.join(host.domains)}"
    parts = [f"estimated, no meter: model “{reading.model}”, with power supply and memory"]
    change = _power_change(run, shown)
    if change is not None and reading.range is not None:
        ends = [change.mean if end is None else end for end in (change.low, change.high)]
        low, high = bound_difference(ends[0], ends[1], reading.range)
        _, least, most = labels.format_together((change.mean, low, high))
        parts.append(f"difference {least} to {most} W with the model's uncertainty")
        if low > 0:
            parts += _power_ratio(host.watts, host_of(run, shown[-1]).watts, reading.range)
    if reading.low_watts is not None and reading.high_watts is not None:
        mean, least, most = labels.format_together((host.watts or 0.0, reading.low_watts, reading.high_watts))
        parts.append(f"{shown[0].name} {mean if host.watts is not None else '?'} W ({least} to {most} possible)")
    return f"{'; '.join(parts)}. More: {command_line('energy')}"


def _power_ratio(before: float | None, after: float | None, span: EstimateRange) -> list[str]:
    """Return the ratio of the powers. It is more certain than the watts: a wrong model errs alike in both phases."""
    ends = None if before is None or after is None or before <= 0 else bound_ratio(before, after, span)
    if ends is None or before is None or after is None:
        return []
    low, high = min(ends[0], after / before), max(ends[1], after / before)
    mean, least, most = labels.format_together((after / before, low, high))
    return [f"{mean} times as much ({least} to {most})"]


def _tool_line(run: IdleRun) -> str:
    tool = run.tool
    parts = [f"{text.number(tool.cpu_percent, 3)} % CPU"]
    if tool.wakeups_hz is not None:
        parts.append(f"{text.number(tool.wakeups_hz, 1)} wake-ups/s while tracing")
    if tool.lost_count is not None:
        parts.append(f"{tool.lost_count} events lost")
    return f"powerprof itself: {', '.join(parts)}.{_drift(run)}"


def _drift(run: IdleRun) -> str:
    """Return how the second baseline differs from the first. Figures appear only if the difference is significant."""
    changes = [delta for delta in run.drift if delta.metric in ("c0_percent", "wakeups_hz")]
    if not changes:
        return ""
    drifted = []
    for delta in changes:
        low, high = delta.difference.low, delta.difference.high
        if low is None or high is None or not low <= 0.0 <= high:
            unit, digits = ("wake-ups/s", 1) if delta.metric == "wakeups_hz" else ("points of C0", 2)
            drifted.append(f"{labels.plus_minus(delta.difference, digits, sign=True)} {unit}")
    if not drifted:
        return " No significant baseline drift."
    return f" Baseline drift: {' and '.join(drifted)}. Smaller differences are not meaningful."


def document(run: IdleRun, view: View) -> Document:
    """Return the report: the phases side by side, the wake-up causes, and the cost of measuring."""
    return Document(
        record=run,
        answer=answer_of(run),
        context=_context_line(run),
        lead=[Sentence(check(run))],
        parts=partial(_list_parts, run),
        rows=partial(list_rows, run),
        tiles=partial(_list_tiles, run),
        setup=SETUP,
        derived=view.extras.derived,
    )


def _list_parts(run: IdleRun) -> Iterator[Part]:
    places, shown = Places(run), shown_of(run)
    table = phases_table(run, places, shown_phases(run))
    parts: list[Part] = [
        Shown(table, partial(_phase_lines, run), "phases"),
        Sentence(_power_note(run, shown), look="detail"),
        phase_bars(run),
        Shown(changes_table(run.deltas, places, "/deltas", "change"), forms=MARKDOWN),
    ]
    yield Section("Phase by phase" if len(shown) > 1 else "The window", parts, "phases")
    yield from list_details(run, places)
    yield Section("", [Sentence(_tool_line(run))], forms=NOT_HTML)


def _phase_lines(run: IdleRun, table: Table, width: int) -> list[str]:
    """Return the phases for a terminal, with their power."""
    return phase_lines(table, width, _power_rows(run, shown_of(run)))


_ADDED = {"wakeups_hz": ("wake-ups", "/s", 1), "c0_percent": ("C0", "points", 2)}
_FINDINGS: dict[Finding, str] = {
    "costs": "larger than the host's drift",
    "nothing": "not significant",
    "drift": "not larger than the host's drift",
    "single": "one window per phase: no interval",
    "others": "other programs changed",
}


def _list_tiles(run: IdleRun) -> list[Tile]:
    """Return the change from the first phase to the last, and its certainty."""
    shown, places = shown_of(run), Places(run)
    if len(shown) < 2:
        return []
    tiles = _server_tiles(run, places)
    for cost in judge_costs(run, shown[0], shown[-1]):
        heading, unit, digits = _ADDED[cost.metric]
        delta = find_delta(run, shown[0].name, shown[-1].name, cost.metric)
        at = f"/deltas/{run.deltas.index(delta) if delta is not None else 0}/difference"
        value = places.figure(f"{at}/mean", digits, unit, ends=at, sign=True)
        look = "" if cost.finding == "costs" else "inconclusive"
        note = f"{value.half_width}{', ' if value.ends else ''}{_FINDINGS[cost.finding]}"
        tiles.append(Tile(f"{heading}, whole host, added", figure_html(value), note, look))
    windows = max((len(phase.windows) for phase in run.phases), default=0)
    if not tiles:
        return []
    return [*tiles, Tile("Confidence, 95 % interval", Markup("{} windows").format(windows), "in each phase")]


def _server_tiles(run: IdleRun, places: Places) -> list[Tile]:
    """Return the rate of idle periods that the server ended, as the trace counted it."""
    for index, phase in enumerate(run.phases):
        if phase.server_exits is not None:
            at = f"/phases/{index}/server_exits/wakeups_hz"
            value = places.figure(f"{at}/mean", 1, "/s", ends=at)
            note = f"{value.half_width}, counted in {phase.server_exits.window_s:.0f} s" if value.ends else ""
            # If the headline gives no answer, the count is inconclusive too.
            look = "inconclusive" if find_obstacle(run) is not None else ""
            return [Tile("Idle periods ended by the server", figure_html(value), note, look)]
    return []
