# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof idle`: the answer, the phases side by side, wake-up causes, the measuring cost and doubts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from powerprof.energy.domains import Total, host_meters, mean_host_energy
from powerprof.energy.model import WIDE, bound_difference, bound_ratio
from powerprof.experiment.phases import Claim, Finding, ServerCost, find_delta, find_obstacle, judge_costs, server_cost
from powerprof.model import text
from powerprof.model.records import EnergyReading, Estimate, EstimateRange, IdleRun, Phase
from powerprof.report.document import MARKDOWN, NOT_HTML, Document, Part, Section, Sentence, Shown, Tile, View
from powerprof.report.html.page import figure_html
from powerprof.report.phase_parts import SETUP, list_details, list_rows, phase_bars
from powerprof.report.phases import changes_table, phases_table, shown_phases
from powerprof.report.table import Places, Table, phase_lines
from powerprof.system.next_steps import command_line

# The answer: idle exits of the server's threads, with the host's difference as a check.

# A cost is unknown if it may reach the host's total, this many wake-ups/s or this many points of C0.
_USELESS_HZ, _USELESS_POINTS = 25.0, 10.0
# An interval is narrow enough to report "none" within this rate or this share of the server's own rate.
_NARROW_HZ, _NARROW_SHARE = 0.5, 0.1


def shown_of(run: IdleRun) -> list[Phase]:
    """Return the compared phases: baseline, server and clients, in this order."""
    return [run.phases[index] for index in shown_phases(run)]


def answer_of(run: IdleRun) -> str:
    """Return the answer in one or two sentences.

    It uses the traced idle exits of the server, or else the difference between the host's windows.
    """
    obstacle = find_obstacle(run)
    if obstacle is not None:
        if obstacle.kind == "statements":
            rate = text.number(obstacle.value, 1)
            return f"No answer: the server was not idle: {rate} statements/s of other clients in the windows."
        wakings = _server_wakings(run)
        unknown = f"{wakings}The cost is unknown" if wakings else "No answer"
        when = "before the server started" if obstacle.kind == "busy_before" else "all the time"
        return (
            f"{unknown}: the CPUs were {text.number(obstacle.value, 0)} % busy {when}. Measure again when the host is "
            "quiet."
        )
    cost = server_cost(run)
    return _host_answer(run) if cost is None else _server_answer(run, cost)


def _server_wakings(run: IdleRun) -> str:
    """Return how often the server's threads woke, also if no CPU was idle. Empty if wakings were not counted."""
    alone, connected = (
        next((phase.server_exits for phase in run.phases if phase.name == name), None) for name in ("server", "clients")
    )
    first = alone or connected
    if first is None or first.wakings_hz is None:
        return ""
    thread = ""
    if first.most_woken is not None and first.most_woken_hz is not None:
        thread = f" ({text.number(first.most_woken_hz, 1)} of them its thread {text.shorten(first.most_woken, 40)})"
    sentence = f"The threads of an idle {product(run)} wake {text.number(first.wakings_hz, 1)} times a second{thread}"
    if alone is not None and connected is not None and connected.wakings_hz is not None:
        sentence += f", {text.number(connected.wakings_hz, 1)} with {_connections(run)}"
    return f"{sentence}. "


def check(run: IdleRun) -> str:
    """Return the host's difference as a check of the server's own count; empty if the answer already uses it."""
    shown = shown_of(run)
    if find_obstacle(run) is not None or server_cost(run) is None or len(shown) < 2:
        return ""
    claimed = judge_costs(run, shown[0], shown[-1])
    if not claimed:
        return ""
    findings = {claim.finding for claim in claimed}
    figures = " and ".join(_claimed_figure(claim, sign=True) for claim in claimed)
    words = {"costs": "", "drift": " (the baseline drifted as far)", "single": " (one window: no interval)"}
    if findings == {"nothing"}:
        if _is_useless(claimed, shown[0]):
            return f"Whole host: its own noise hides the server ({_claimed_figure(claimed[0], sign=True)})."
        if any((claim.difference.high or 0.0) <= 0 for claim in claimed):
            return f"Whole host: other programs changed during the run ({figures})."
        bounds = " and ".join(_upper_bound(claim) for claim in claimed)
        return f"Whole host: no measurable difference, less than {bounds} (95 %)."
    remarks = "".join(words[finding] for finding in ("drift", "single") if finding in findings)
    return f"Whole host: {figures}{remarks}."


def _server_answer(run: IdleRun, cost: ServerCost) -> str:
    name = product(run)
    clients = _connections(run)
    if cost.alone is None:
        rate = cost.connected
        what = f"An idle {name} with {clients}" if run.options.clients_count else f"An idle {name}"
        return (
            "The server was not traced."
            if rate is None
            else f"{what} {_exit_rate(rate, cost.thread)}.{_busy_note(cost)}"
        )
    first = f"An idle {name} {_exit_rate(cost.alone, cost.thread)}"
    if cost.added is not None:
        first += f"; {_added_by_connections(cost, cost.alone, cost.added, clients)}"
    return f"{first}.{_busy_note(cost)}"


def _busy_note(cost: ServerCost) -> str:
    if cost.busy_percent is None:
        return ""
    unknown = (
        ", and the effect of the connections is unknown"
        if cost.alone is not None and cost.connected is not None
        else ""
    )
    busy = text.number(cost.busy_percent, 0)
    return f" The CPUs were up to {busy} % busy during the window: an idle host may show more{unknown}."


def _exit_rate(rate: Estimate, thread: tuple[str, float] | None) -> str:
    if not rate.mean:
        return f"wakes no CPU (less than {_bound(rate.high)} times a second)"
    rate_text = f"wakes the CPUs {text.plus_minus(rate, 1)} times a second"
    if thread is None:
        return rate_text
    share = "all" if thread[1] >= 0.99 * rate.mean else text.number(thread[1], 1)
    return f"{rate_text} ({share} of them its thread {text.shorten(thread[0], 40)})"


def _added_by_connections(cost: ServerCost, alone: Estimate, added: Estimate, clients: str) -> str:
    low, high = added.low or 0.0, added.high or 0.0
    add = "adds" if clients.startswith("1 ") else "add"
    if low > 0:
        return f"{clients} {add} {text.plus_minus(added, 1)}"
    if high < 0:
        rate = cost.connected.mean if cost.connected is not None else None
        return f"with {clients} fewer: {text.number(rate, 1)}"
    half = text.half_width(added) or 0.0
    if half <= max(_NARROW_HZ, _NARROW_SHARE * alone.mean):
        return f"{clients} {add} none ({text.plus_minus(added, 1)})"
    return f"{clients} {add} less than {_bound(high)} (95 %)"


def product(run: IdleRun) -> str:
    """Return `MariaDB 10.11` or `MySQL 9.7`; `server` if the version is unknown."""
    version = (run.server.version if run.server is not None else None) or ""
    number = re.match(r"\D{0,20}(\d{1,3}\.\d{1,3})", version)
    if number is None:
        return "server"
    return f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {number[1]}"


def _connections(run: IdleRun) -> str:
    return text.plural(run.options.clients_count or 0, "silent connection")


def _host_answer(run: IdleRun) -> str:
    """Return the cost of the last phase compared with the first, from the host's figures."""
    shown = shown_of(run)
    if len(shown) < 2:
        return "No answer: only one phase was measured."
    first, last = shown[0], shown[-1]
    if last.name != "clients":
        who, costs_verb, has = "An idle server", "costs", "has"
    elif first.name == "baseline":
        who, costs_verb, has = f"An idle server with {_connections(run)}", "costs", "has"
    elif run.options.clients_count == 1:
        who, costs_verb, has = _connections(run), "costs", "has"
    else:
        who, costs_verb, has = _connections(run), "cost", "have"
    claimed = judge_costs(run, first, last)
    if not claimed:
        return "C0 and wake-ups are unknown on this host."
    kinds = {claim.finding for claim in claimed}
    costs = [_claimed_figure(claim) for claim in claimed if claim.finding == "costs"]
    rest = " and ".join(_claimed_figure(claim) for claim in claimed if claim.finding != "costs")
    if not costs and "single" in kinds:
        return f"One window per phase gives no interval: {rest} more. Measure two or more (--repeat)."
    if not costs and "drift" in kinds:
        drifted = " and ".join(_claimed_figure(claim) for claim in claimed if claim.finding == "drift")
        others = [_claimed_figure(claim) for claim in claimed if claim.finding != "drift"]
        unsure = f"; the rest is inconclusive: {' and '.join(others)}" if others else ""
        return (
            f"No answer: the host changed during the run: {drifted}, but the baseline drifted as far{unsure}. "
            "Measure again when it is quiet."
        )
    if not costs and any((claim.difference.high or 0.0) <= 0 for claim in claimed):
        less = " and ".join(_claimed_figure(claim, sign=True) for claim in claimed)
        return f"No answer: the rest of the host changed during the run: {less}. Measure again when it is quiet."
    if not costs:
        bounds = " and ".join(_upper_bound(claim) for claim in claimed)
        if _is_useless(claimed, first):
            return (
                f"No answer: the host's windows differ too much: up to {bounds} are possible (95 %). Measure again "
                "when it is quiet, or with longer windows (--duration)."
            )
        return f"{who} {has} no measurable cost: less than {bounds} (95 %)."
    if not rest:
        return f"{who} {costs_verb} {' and '.join(costs)}."
    reason = "the baseline drifted as far as the rest" if "drift" in kinds else "the rest is inconclusive"
    return f"{who} {costs_verb} {costs[0]}; {reason}: {rest}."


def _upper_bound(claim: Claim) -> str:
    """Return the highest possible cost. An undetected cost is not a zero cost."""
    unit = "wake-ups/s" if claim.metric == "wakeups_hz" else "points of C0"
    return f"+{_bound(claim.difference.high)} {unit}"


def _bound(value: float | None) -> str:
    """Return an upper bound with as many digits as it needs: a small bound is not 0."""
    digits = 1 if value is None or value >= 0.05 or value <= 0 else min(6, -math.floor(math.log10(value)))
    return text.number(value, digits)


def _is_useless(claimed: Sequence[Claim], first: Phase) -> bool:
    """Return whether an interval is so wide that it excludes nothing."""
    most = {claim.metric: claim.difference.high or 0.0 for claim in claimed}
    points = max((high for metric, high in most.items() if metric != "wakeups_hz"), default=0.0)
    return most.get("wakeups_hz", 0.0) > max(_USELESS_HZ, first.wakeups_hz or 0.0) or points > _USELESS_POINTS


def _claimed_figure(claim: Claim, *, sign: bool = False) -> str:
    if claim.metric == "wakeups_hz":
        return f"{text.plus_minus(claim.difference, 1, sign=sign)} wake-ups/s"
    return f"{text.plus_minus(claim.difference, sign=sign)} points of C0"


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
    last = [text.plus_minus(change, digits, sign=True) + " W"] if change else []
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
        parts.append(f"difference {text.number(low)} to {text.number(high)} W with the model's uncertainty")
        if low > 0:
            parts += _power_ratio(host.watts, host_of(run, shown[-1]).watts, reading.range)
    if reading.low_watts is not None and reading.high_watts is not None:
        parts.append(
            f"{shown[0].name} {text.number(host.watts)} W ({text.number(reading.low_watts)} to "
            f"{text.number(reading.high_watts)} possible)"
        )
    return f"{'; '.join(parts)}. More: {command_line('energy')}"


def _power_ratio(before: float | None, after: float | None, span: EstimateRange) -> list[str]:
    """Return the ratio of the powers. It is more certain than the watts: a wrong model errs alike in both phases."""
    ends = None if before is None or after is None or before <= 0 else bound_ratio(before, after, span)
    if ends is None or before is None or after is None:
        return []
    low, high = min(ends[0], after / before), max(ends[1], after / before)
    return [f"{text.number(after / before)} times as much ({text.number(low)} to {text.number(high)})"]


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
            drifted.append(f"{text.plus_minus(delta.difference, digits, sign=True)} {unit}")
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


# The tiles of a page.

_ADDED = {"wakeups_hz": ("wake-ups", "/s", 1), "c0_percent": ("C0", "points", 2)}
_FINDINGS: dict[Finding, str] = {
    "costs": "larger than the host's drift",
    "nothing": "not significant",
    "drift": "not larger than the host's drift",
    "single": "one window per phase: no interval",
}


def _list_tiles(run: IdleRun) -> list[Tile]:
    """Return the change from the first phase to the last, and its certainty."""
    shown, places = shown_of(run), Places(run)
    if len(shown) < 2:
        return []
    tiles = _server_tiles(run, places)
    for claim in judge_costs(run, shown[0], shown[-1]):
        heading, unit, digits = _ADDED[claim.metric]
        delta = find_delta(run, shown[0].name, shown[-1].name, claim.metric)
        index = run.deltas.index(delta) if delta is not None else 0
        value = figure_html(places.figure(f"/deltas/{index}/difference/mean", digits, unit, sign=True))
        half = text.half_width(claim.difference)
        spread = "" if half is None else f"± {text.number(half, digits)}, "
        look = "" if claim.finding == "costs" else "inconclusive"
        tiles.append(Tile(f"{heading}, whole host, added", value, f"{spread}{_FINDINGS[claim.finding]}", look))
    windows = max((len(phase.windows) for phase in run.phases), default=0)
    if not tiles:
        return []
    return [*tiles, Tile("Confidence, 95 % interval", Markup("{} windows").format(windows), "in each phase")]


def _server_tiles(run: IdleRun, places: Places) -> list[Tile]:
    """Return the rate of idle periods that the server ended, as the trace counted it."""
    for index, phase in enumerate(run.phases):
        if phase.server_exits is not None:
            at = f"/phases/{index}/server_exits/wakeups_hz"
            half = text.half_width(phase.server_exits.wakeups_hz)
            note = "" if half is None else f"± {text.number(half, 1)}, counted in {phase.server_exits.window_s:.0f} s"
            value = figure_html(places.figure(f"{at}/mean", 1, "/s"))
            # If the headline gives no answer, the count is inconclusive too.
            look = "inconclusive" if find_obstacle(run) is not None else ""
            return [Tile("Idle periods ended by the server", value, note, look)]
    return []
