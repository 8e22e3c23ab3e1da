# SPDX-License-Identifier: Apache-2.0
"""`powerprof idle` for a terminal: the answer, the phases side by side, what woke the CPUs, cost and doubt."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.energy.domains import HostMeters, Total, host_meters, mean_host_energy
from powerprof.energy.model import WIDE, ratio_ends, slope_ends
from powerprof.experiment.judge.cost import delta_of
from powerprof.idle_records import IdleRun
from powerprof.records import Cause, Delta, EnergyReading, Estimate, EstimateRange, Phase, metric_of
from powerprof.report.tables import columns as terminal
from powerprof.report.tables import notes, sums
from powerprof.report.tables.causes import causes_table, same_sleepers
from powerprof.report.tables.phases import phase_title, phases_table
from powerprof.report.tables.table import Places, Table
from powerprof.report.terminal.idleanswer import check, headline, shown_of
from powerprof.report.wording import frequencies
from powerprof.report.wording.notes import texts

_SHOWN_CAUSES = 12
_WHY = 24
# The function of the timers of all threads that sleep.
_SAYS_NOTHING = ("hrtimer_wakeup", "process_timeout")


def _includes_zero(estimate: Estimate) -> bool:
    return estimate.low is not None and estimate.high is not None and estimate.low <= 0.0 <= estimate.high


def _context(run: IdleRun) -> str:
    first = shown_of(run)[0]
    kind = "private" if run.server and run.server.private else "given"
    server = f"{run.server.version}, {kind} · " if run.server else ""
    driver = run.host.get("idle_driver") or "no cpuidle driver"
    return (
        f"{server}{first.cpus} CPUs, {driver} · {len(first.windows)} × "
        f"{text.number(first.window_s, 1).removesuffix('.0')} s windows a phase"
    )


def _table(run: IdleRun, width: int) -> list[str]:
    shown = shown_of(run)
    table = phases_table(run, Places(run), [run.phases.index(phase) for phase in shown])
    return terminal.phases(table, width, _power(run, shown)) + _power_note(run, shown)


def _power(run: IdleRun, shown: Sequence[Phase]) -> list[list[str]]:
    totals = [host_of(run, phase) for phase in shown]
    if not totals or totals[0].source is None:
        return []
    kind = "estimated" if totals[0].kind == "estimated" else f"{totals[0].source}"
    digits = 2 if all((s.watts or 0) < 100 for s in totals) else 1
    change = _power_change(run, shown)
    last = [text.plus_minus(change, digits, sign=True) + " W"] if change else []
    if _is_wide(totals[0]) and len(totals) > 1:
        # Of an absolute figure this doubtful only the difference is worth a row; the figure stands below.
        apart = [None if s.watts is None or totals[0].watts is None else s.watts - totals[0].watts for s in totals[1:]]
        return [[f"power above {shown[0].name}", "", *(_more(watts, digits) for watts in apart), *last]]
    return [[f"power, {kind}", *(text.number(s.watts, digits, " W") for s in totals), *last]]


def _power_change(run: IdleRun, shown: Sequence[Phase]) -> Estimate | None:
    host = host_of(run, shown[0])
    if len(shown) < 2:
        return None
    change = delta_of(run, shown[0].name, shown[-1].name, "watts")
    if change is None and host.source and len(host.domains) == 1:  # in runs saved before
        change = delta_of(run, shown[0].name, shown[-1].name, metric_of("watts", host.source, host.domains[0]))
    return change.difference if change else None


def _is_wide(total: Total) -> bool:
    low, high = total.low_watts, total.high_watts
    return total.kind == "estimated" and low is not None and high is not None and high > WIDE * low


def _more(watts: float | None, digits: int) -> str:
    return text.number(watts, digits, " W") if watts is None or watts < 0 else f"+{text.number(watts, digits, ' W')}"


def _meters(run: IdleRun) -> HostMeters | None:
    """The meters that stand for the host in all phases; runs without windows have the phases' own figures only."""
    return host_meters([energy for phase in run.phases for energy in _readings(phase)])


def host_of(run: IdleRun, phase: Phase) -> Total:
    """The host's energy in a phase, by the meters of the run."""
    return mean_host_energy(_readings(phase), _meters(run))


def _readings(phase: Phase) -> list[list[EnergyReading]]:
    return [window.energy for window in phase.windows] or [phase.energy]


def _power_note(run: IdleRun, shown: Sequence[Phase]) -> list[str]:
    host = host_of(run, shown[0])
    reading = next((r for r in shown[0].energy if r.domain in host.domains and r.source == host.source), None)
    if reading is None:
        return ["  no energy figure: no meter and no model for this CPU (powerprof doctor)"]
    if reading.kind == "measured":
        return [f"  measured by {reading.source}: {', '.join(host.domains)}"]
    parts = [f"estimated, no meter: model “{reading.model}”, with power supply and memory"]
    change = _power_change(run, shown)
    if change is not None and reading.range is not None:
        ends = [change.mean if end is None else end for end in (change.low, change.high)]
        low, high = slope_ends(ends[0], ends[1], reading.range)
        parts.append(f"difference {text.number(low)} to {text.number(high)} W with the model's doubt")
        if low > 0:
            parts += _ratio(host.watts, host_of(run, shown[-1]).watts, reading.range)
    if reading.low_watts is not None and reading.high_watts is not None:
        parts.append(
            f"{shown[0].name} {text.number(host.watts)} W ({text.number(reading.low_watts)} to "
            f"{text.number(reading.high_watts)} possible)"
        )
    return text.wrap(f"{'; '.join(parts)}. More: powerprof energy.", 76, "  ")


def _ratio(before: float | None, after: float | None, span: EstimateRange) -> list[str]:
    """How many times as much it was: known better than the watts, because one model is wrong in both alike."""
    ends = None if before is None or after is None or before <= 0 else ratio_ends(before, after, span)
    if ends is None or before is None or after is None:
        return []
    low, high = min(ends[0], after / before), max(ends[1], after / before)
    return [f"{text.number(after / before)} times as much ({text.number(low)} to {text.number(high)})"]


def _cause_rows(table: Table, left: Sequence[Cause], width: int) -> list[str]:
    rows = [["/s", "%", "why", "who", "every" if any("every" in row.cells for row in table.rows) else ""]]
    for row in table.rows:
        why, who = row.words("why"), row.words("who")
        named = f"{why.text} {why.more}".rstrip() if why.text == "device" else why.text
        more = who.more or ("" if why.more in _SAYS_NOTHING else why.more)
        cells = [row.words("rate").text, row.words("percent").text, text.cut(named, _WHY), f"{who.text}  {more}"]
        rows.append([*cells, row.words("every").text.removeprefix("every ")])
    hz_width, why_width, every_width = (max(len(row[at]) for row in rows) for at in (0, 2, 4))
    room = max(20, width - max(7, hz_width) - 7 - why_width - 4 - (every_width + 2 if every_width else 0))
    lines = []
    for hz, percent, reason, name, period in rows:
        who_cell = text.cut(name.rstrip(), room).ljust(room)
        lines.append(f"{hz:>7}  {percent:>5}  {reason:<{why_width}}  {who_cell}  {period:>{every_width}}".rstrip())
    if left:
        rest = sum(cause.wakeups_hz for cause in left)
        lines.append(f"{text.number(rest, 1):>7}  {'':>5}  {text.some(table.left_count, 'more cause')}")
    return lines


def _causes(run: IdleRun, width: int) -> list[str]:
    phase = next((phase for phase in reversed(shown_of(run)) if phase.causes), None)
    if phase is None or phase.conservation is None:
        seen = [phase.conservation for phase in shown_of(run) if phase.conservation is not None]
        blind = next((counts for counts in seen if sums.is_blind(counts)), None)
        if blind is not None:
            return ["", *text.wrap(sums.verdict(blind), width)]
        return ["", *text.wrap(sums.balance(seen[-1], ""), width - 2, "  ")] if seen else []
    c = phase.conservation
    title = f"What woke the CPUs, {phase_title(run, phase)}"
    named = f"{text.number(c.coverage_percent, 1)} % of {text.count(c.idle_exits_count)} idle exits named"
    table = causes_table(phase.causes, Places(run), f"/phases/{run.phases.index(phase)}/causes", _SHOWN_CAUSES)
    left = [cause for group in same_sleepers(phase.causes)[_SHOWN_CAUSES:] for cause in group]
    heading = f"{title}{named.rjust(max(len(named) + 2, width - len(title)))}"
    return ["", heading, *_cause_rows(table, left, width), *text.wrap(sums.balance(c, ""), width - 2, "  ")]


def _cost(run: IdleRun) -> str:
    tool = run.tool
    parts = [f"{text.number(tool.cpu_percent, 3)} % CPU"]
    if tool.wakeups_hz is not None:
        parts.append(f"{text.number(tool.wakeups_hz, 1)} wake-ups/s while tracing")
    if tool.lost_count is not None:
        parts.append(f"{tool.lost_count} events lost")
    return f"powerprof itself: {', '.join(parts)}.{_drift(run)}"


def _drift(run: IdleRun) -> str:
    """How the second baseline differs from the first: the figures only where that is significant."""
    changes = [delta for delta in run.drift if delta.metric in ("c0_percent", "wakeups_hz")]
    if not changes:
        return ""
    drifted = [_moved(delta) for delta in changes if not _includes_zero(delta.difference)]
    if not drifted:
        return " No significant baseline drift."
    return f" Baseline drift: {' and '.join(drifted)}; trust no smaller difference."


def _moved(delta: Delta) -> str:
    unit = "wake-ups/s" if delta.metric == "wakeups_hz" else "points of C0"
    return f"{text.plus_minus(delta.difference, 1 if delta.metric == 'wakeups_hz' else 2, sign=True)} {unit}"


def _split(run: IdleRun) -> list[str]:
    """Where the joules of the last phase went."""
    phase = shown_of(run)[-1]
    return [sums.joules(phase.energy_split, f", {phase_title(run, phase)}")] if phase.energy_split else []


def _notes(run: IdleRun) -> list[str]:
    """What is to be known of the windows. Where an estimate comes from stands below the table, with its interval."""
    source = run.energy_source
    # Why there is no meter is the answer of doctor.
    written = [f"Note: energy: {source.why}."] if source is not None and source.metered else []
    sentences = dict.fromkeys([*notes.of(run), *(note for phase in run.phases for note in texts(phase.notes))])
    return written + [f"Note: {note}." for note in sentences]


def lines(run: IdleRun, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The whole report. `width` is the terminal's."""
    printed = [
        *text.wrap(headline(run), width),
        *(text.wrap(check(run), width) if check(run) else ()),
        *text.wrap(_context(run), width),
        "",
        *_table(run, width),
        *_causes(run, width),
        "",
    ]
    printed += text.wrap(_cost(run), width)
    for line in (*_split(run), *frequencies.of_run(run), *_notes(run)):
        printed += text.wrap(line, width)
    if run.interrupted:
        why = f"Ended early: {run.failure}" if run.failure else "Interrupted"
        printed += text.wrap(f"{why.rstrip('.')}. This is what was measured until then.", width)
    return printed
