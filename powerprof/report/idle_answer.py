# SPDX-License-Identifier: Apache-2.0
"""The answer of an idle run: idle exits of the server's threads, with the host's difference as a check."""

from __future__ import annotations

import re
from collections.abc import Sequence

from powerprof.experiment.phases import Cost, judge_costs, own_change
from powerprof.experiment.server_cost import ServerCost, find_obstacle, server_cost
from powerprof.model import text
from powerprof.model.records import Estimate, IdleRun, Phase
from powerprof.report import labels
from powerprof.report.phases import shown_phases

# A cost is unknown if it may reach the host's total, this many wake-ups/s or this many points of C0.
_USELESS_HZ, _USELESS_POINTS = 25.0, 10.0


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
            counted = "requests" if _is_postgresql(run) else "statements"
            return f"No answer: the server was not idle: {rate} {counted}/s of other clients in the windows."
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
        most = text.number(first.most_woken_hz, 1)
        thread = f" ({most} of them its {_worker(run)} {text.shorten(first.most_woken, 40)})"
    workers = "processes" if _is_postgresql(run) else "threads"
    sentence = f"The {workers} of an idle {product(run)} wake {text.number(first.wakings_hz, 1)} times a second{thread}"
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
    findings = {cost.finding for cost in claimed}
    figures = " and ".join(_claimed_figure(cost, sign=True) for cost in claimed)
    if "others" in findings:
        own = text.signed(own_change(shown[0], shown[-1]), 2)
        return f"Whole host: other programs changed during the run ({figures}; the server itself {own} points)."
    words = {"costs": "", "drift": " (the baseline drifted as far)", "single": " (one window: no interval)"}
    if findings == {"nothing"}:
        if _is_useless(claimed, shown[0]):
            return f"Whole host: its own noise hides the server ({_claimed_figure(claimed[0], sign=True)})."
        if any((cost.difference.high or 0.0) <= 0 for cost in claimed):
            return f"Whole host: other programs changed during the run ({figures})."
        bounds = " and ".join(_upper_bound(cost) for cost in claimed)
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
            else f"{what} {_exit_rate(rate, cost.thread, _worker(run))}.{_busy_note(cost)}"
        )
    first = f"An idle {name} {_exit_rate(cost.alone, cost.thread, _worker(run))}"
    if cost.added is not None:
        first += f"; {_added_by_connections(cost, cost.added, clients)}"
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


def _exit_rate(rate: Estimate, thread: tuple[str, float] | None, worker: str) -> str:
    if not rate.mean:
        return f"wakes no CPU (less than {labels.format_bound(rate.high)} times a second)"
    rate_text = f"wakes the CPUs {labels.plus_minus(rate, 1)} times a second"
    if thread is None:
        return rate_text
    share = "all" if thread[1] >= 0.99 * rate.mean else text.number(thread[1], labels.decimals_of(rate, 1))
    return f"{rate_text} ({share} of them its {worker} {text.shorten(thread[0], 40)})"


def _added_by_connections(cost: ServerCost, added: Estimate, clients: str) -> str:
    low, high = added.low or 0.0, added.high or 0.0
    add = "adds" if clients.startswith("1 ") else "add"
    if low > 0:
        return f"{clients} {add} {labels.plus_minus(added, 1)}"
    if high < 0:
        rate = cost.connected
        return f"with {clients} fewer: {'?' if rate is None else labels.plus_minus(rate, 1)}"
    return f"{clients} {add} less than {labels.format_bound(high)} (95 %)"


def product(run: IdleRun) -> str:
    """Return `MariaDB 10.11`, `MySQL 9.7` or `PostgreSQL 15`; `server` if the version is unknown."""
    version = (run.server.version if run.server is not None else None) or ""
    known = re.match(r"(?:(MariaDB|MySQL) (\d{1,3}\.\d{1,3})|(PostgreSQL) (\d{1,3}))", version)
    return "server" if known is None else " ".join(part for part in known.groups() if part)


def _worker(run: IdleRun) -> str:
    """Return what does the work of the server."""
    return "process" if _is_postgresql(run) else "thread"


def _is_postgresql(run: IdleRun) -> bool:
    return product(run).startswith("PostgreSQL")


def _connections(run: IdleRun) -> str:
    return text.plural(run.options.clients_count or 0, "silent connection")


def _host_answer(run: IdleRun) -> str:
    """Return the cost of the last phase compared with the first, from the host's figures."""
    shown = shown_of(run)
    if len(shown) < 2:
        return "No answer: only one phase was measured."
    first, last = shown[0], shown[-1]
    if last.name != "clients":
        who, verb, has = "An idle server", "costs", "has"
    elif first.name == "baseline":
        who, verb, has = f"An idle server with {_connections(run)}", "costs", "has"
    elif run.options.clients_count == 1:
        who, verb, has = _connections(run), "costs", "has"
    else:
        who, verb, has = _connections(run), "cost", "have"
    claimed = judge_costs(run, first, last)
    if not claimed:
        return "C0 and wake-ups are unknown on this host."
    kinds = {cost.finding for cost in claimed}
    if "others" in kinds:
        changed = " and ".join(_claimed_figure(cost, sign=True) for cost in claimed)
        own = text.signed(own_change(first, last), 2)
        added = f" with {_connections(run)}" if last.name == "clients" else ""
        return (
            f"The server's own CPU time changed by {own} points of C0{added}. Other programs changed by more "
            f"({changed}), so the host's wake-ups are no answer. Measure again when it is quiet."
        )
    costs = [_claimed_figure(cost) for cost in claimed if cost.finding == "costs"]
    rest = " and ".join(_claimed_figure(cost) for cost in claimed if cost.finding != "costs")
    if not costs and "single" in kinds:
        return f"One window per phase gives no interval: {rest} more. Measure two or more (--repeat)."
    if not costs and "drift" in kinds:
        drifted = " and ".join(_claimed_figure(cost) for cost in claimed if cost.finding == "drift")
        others = [_claimed_figure(cost) for cost in claimed if cost.finding != "drift"]
        unsure = f"; the rest is inconclusive: {' and '.join(others)}" if others else ""
        return (
            f"No answer: the host changed during the run: {drifted}, but the baseline drifted as far{unsure}. "
            "Measure again when it is quiet."
        )
    if not costs and any((cost.difference.high or 0.0) <= 0 for cost in claimed):
        less = " and ".join(_claimed_figure(cost, sign=True) for cost in claimed)
        return f"No answer: the rest of the host changed during the run: {less}. Measure again when it is quiet."
    if not costs:
        bounds = " and ".join(_upper_bound(cost) for cost in claimed)
        if _is_useless(claimed, first):
            return (
                f"No answer: the host's windows differ too much: up to {bounds} are possible (95 %). Measure again "
                "when it is quiet, or with longer windows (--duration)."
            )
        return f"{who} {has} no measurable cost: less than {bounds} (95 %)."
    if not rest:
        return f"{who} {verb} {' and '.join(costs)}."
    reason = "the baseline drifted as far as the rest" if "drift" in kinds else "the rest is inconclusive"
    return f"{who} {verb} {costs[0]}; {reason}: {rest}."


def _upper_bound(cost: Cost) -> str:
    """Return the highest possible cost. An undetected cost is not a zero cost."""
    unit = "wake-ups/s" if cost.metric == "wakeups_hz" else "points of C0"
    return f"+{labels.format_bound(cost.difference.high)} {unit}"


def _is_useless(claimed: Sequence[Cost], first: Phase) -> bool:
    """Return whether an interval is so wide that it excludes nothing."""
    most = {cost.metric: cost.difference.high or 0.0 for cost in claimed}
    points = max((high for metric, high in most.items() if metric != "wakeups_hz"), default=0.0)
    return most.get("wakeups_hz", 0.0) > max(_USELESS_HZ, first.wakeups_hz or 0.0) or points > _USELESS_POINTS


def _claimed_figure(cost: Cost, *, sign: bool = False) -> str:
    if cost.metric == "wakeups_hz":
        return f"{labels.plus_minus(cost.difference, 1, sign=sign)} wake-ups/s"
    return f"{labels.plus_minus(cost.difference, sign=sign)} points of C0"
