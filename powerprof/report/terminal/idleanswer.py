# SPDX-License-Identifier: Apache-2.0
"""The answer of `powerprof idle`: what the server's own threads did, and the host's difference as its check."""

from __future__ import annotations

import re
from collections.abc import Sequence

from powerprof import text
from powerprof.experiment.judge.cost import Claim, claims
from powerprof.experiment.judge.servercost import ServerCost, busy_before, busy_while_counted, server_cost
from powerprof.idle_records import IdleRun
from powerprof.records import Estimate, Phase

# A cost that may be as large as all that the host does, or this many points of C0, is not known at all.
_USELESS_HZ, _USELESS_POINTS = 25.0, 10.0
# An interval within these, a second or of the server's own rate, is narrow enough to say "none".
_NARROW_HZ, _NARROW_SHARE = 0.5, 0.1


def shown_of(run: IdleRun) -> list[Phase]:
    """The phases that are compared, in their order."""
    named = {phase.name: phase for phase in run.phases}
    return [named[name] for name in ("baseline", "server", "clients") if name in named] or run.phases[:1]


def headline(run: IdleRun) -> str:
    """The answer in one or two sentences: from the server's own idle exits where they were traced, else from the
    difference of the host's windows."""
    for busy, when in ((busy_before(run), "before the server started"), (busy_while_counted(run), "all the time")):
        if busy is not None:
            known = _woken(run)
            lost = f"{known}What this costs is unknown" if known else "No answer"
            return f"{lost}: the CPUs were {text.number(busy, 0)} % busy {when}. Measure again when the host is quiet."
    cost = server_cost(run)
    return _host(run) if cost is None else _server(run, cost)


def _woken(run: IdleRun) -> str:
    """How often the server's threads woke: known where no CPU idles, too. Empty where it was not counted."""
    alone, connected = (
        next((phase.server_exits for phase in run.phases if phase.name == name), None) for name in ("server", "clients")
    )
    first = alone or connected
    if first is None or first.wakings_hz is None:
        return ""
    thread = ""
    if first.most_woken is not None and first.most_woken_hz is not None:
        thread = f" ({text.number(first.most_woken_hz, 1)} of them its thread {text.cut(first.most_woken, 40)})"
    known = f"The threads of an idle {product(run)} wake {text.number(first.wakings_hz, 1)} times a second{thread}"
    if alone is not None and connected is not None and connected.wakings_hz is not None:
        known += f", {text.number(connected.wakings_hz, 1)} with {_connections(run)}"
    return f"{known}. "


def check(run: IdleRun) -> str:
    """The host's difference of windows, where the answer is the server's own count; else nothing."""
    shown = shown_of(run)
    if busy_before(run) or busy_while_counted(run) or server_cost(run) is None or len(shown) < 2:
        return ""
    claimed = claims(run, shown[0], shown[-1])
    if not claimed:
        return ""
    findings = {claim.finding for claim in claimed}
    figures = " and ".join(_figure(claim, sign=True) for claim in claimed)
    words = {"costs": "", "drift": " (the baseline drifted as far)", "single": " (one window: no interval)"}
    if findings == {"nothing"}:
        if _is_useless(claimed, shown[0]):
            return f"Whole host: its own noise hides the server ({_figure(claimed[0], sign=True)})."
        bounds = " and ".join(_bound(claim) for claim in claimed)
        return f"Whole host: no measurable difference, less than {bounds} (95 %)."
    remarks = "".join(words[finding] for finding in ("drift", "single") if finding in findings)
    return f"Whole host: {figures}{remarks}."


def _server(run: IdleRun, cost: ServerCost) -> str:
    name = product(run)
    clients = _connections(run)
    if cost.alone is None:
        rate = cost.connected
        what = f"An idle {name} with {clients}" if run.options.clients_count else f"An idle {name}"
        return "The server was not traced." if rate is None else f"{what} {_ends(rate, cost.thread)}.{_hidden(cost)}"
    first = f"An idle {name} {_ends(cost.alone, cost.thread)}"
    if cost.added is not None:
        first += f"; {_added(cost, cost.alone, cost.added, clients)}"
    return f"{first}.{_hidden(cost)}"


def _hidden(cost: ServerCost) -> str:
    if cost.busy_percent is None:
        return ""
    unknown = ", and what connections add is unknown" if cost.alone is not None and cost.connected is not None else ""
    busy = text.number(cost.busy_percent, 0)
    return f" The CPUs were up to {busy} % busy meanwhile: an idle host may show more{unknown}."


def _ends(rate: Estimate, thread: tuple[str, float] | None) -> str:
    if not rate.mean:
        return f"wakes no CPU (less than {text.number(rate.high, 1)} times a second)"
    known = f"wakes the CPUs {_plus_minus(rate)} times a second"
    if thread is None:
        return known
    of_it = "all" if thread[1] >= 0.99 * rate.mean else text.number(thread[1], 1)
    return f"{known} ({of_it} of them its thread {text.cut(thread[0], 40)})"


def _added(cost: ServerCost, alone: Estimate, added: Estimate, clients: str) -> str:
    low, high = added.low or 0.0, added.high or 0.0
    if low > 0:
        return f"{clients} add {_plus_minus(added)}"
    if high < 0:
        rate = cost.connected.mean if cost.connected is not None else None
        return f"with {clients} fewer: {text.number(rate, 1)}"
    half = text.half_width(added) or 0.0
    if half <= max(_NARROW_HZ, _NARROW_SHARE * alone.mean):
        return f"{clients} add none ({_plus_minus(added)})"
    return f"{clients} add less than {text.number(high, 1)} (95 %)"


def _plus_minus(rate: Estimate) -> str:
    return text.plus_minus(rate, 1)


def product(run: IdleRun) -> str:
    """`MariaDB 10.11`, `MySQL 9.7`; `server` where the version does not say."""
    version = run.server.version if run.server is not None else ""
    number = re.match(r"\D{0,20}(\d{1,3}\.\d{1,3})", version)
    if number is None:
        return "server"
    return f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {number[1]}"


def _connections(run: IdleRun) -> str:
    count = run.options.clients_count
    return f"{text.count(count)} silent connection{'' if count == 1 else 's'}"


def _host(run: IdleRun) -> str:
    """What the last phase costs over the first, by the host's own figures in both."""
    shown = shown_of(run)
    if len(shown) < 2:
        if not run.interrupted:
            return "Only one phase was measured."
        return f"{'Ended early' if run.failure else 'Interrupted'}, before there was anything to compare."
    first, last = shown[0], shown[-1]
    if last.name != "clients":
        what, has = "An idle server costs", "has"
    elif first.name == "baseline":
        what = f"An idle server with {_connections(run)} costs"
        has = "has"
    else:
        what = f"{_connections(run)} cost"
        has = "have"
    claimed = claims(run, first, last)
    if not claimed:
        return "C0 and wake-ups are unknown on this host."
    kinds = {claim.finding for claim in claimed}
    sure = [_figure(claim) for claim in claimed if claim.finding == "costs"]
    rest = " and ".join(_figure(claim) for claim in claimed if claim.finding != "costs")
    if not sure and "single" in kinds:
        return f"One window a phase has no interval: {rest} more. A cost needs two or more (--repeat)."
    if not sure and "drift" in kinds:
        drifted = " and ".join(_figure(claim) for claim in claimed if claim.finding == "drift")
        others = [_figure(claim) for claim in claimed if claim.finding != "drift"]
        unsure = f"; the rest is inconclusive: {' and '.join(others)}" if others else ""
        return (
            f"No answer: the host changed meanwhile: {drifted}, but the baseline drifted as far{unsure}. Measure again "
            "when it is quiet."
        )
    if not sure:
        bounds = " and ".join(_bound(claim) for claim in claimed)
        if _is_useless(claimed, first):
            return (
                f"No answer: the host's windows differ too much: up to {bounds} are possible (95 %). Measure again "
                "when it is quiet, or with longer windows (--duration)."
            )
        who = what.removesuffix(" costs").removesuffix(" cost")
        return f"{who} {has} no measurable cost: less than {bounds} (95 %)."
    if not rest:
        return f"{what} {' and '.join(sure)}."
    why = "the baseline drifted as far as the rest" if "drift" in kinds else "the rest is inconclusive"
    return f"{what} {sure[0]}; {why}: {rest}."


def _bound(claim: Claim) -> str:
    """The most that it may cost: what was not found is not nothing."""
    high = max(0.0, claim.difference.high or 0.0)
    if claim.metric == "wakeups_hz":
        return f"+{text.number(high, 1)} wake-ups/s"
    return f"+{text.number(high, 1)} points of C0"


def _is_useless(claimed: Sequence[Claim], first: Phase) -> bool:
    """Is an interval so wide that it excludes nothing?"""
    most = {claim.metric: claim.difference.high or 0.0 for claim in claimed}
    points = max((high for metric, high in most.items() if metric != "wakeups_hz"), default=0.0)
    return most.get("wakeups_hz", 0.0) > max(_USELESS_HZ, first.wakeups_hz or 0.0) or points > _USELESS_POINTS


def _figure(claim: Claim, *, sign: bool = False) -> str:
    if claim.metric == "wakeups_hz":
        return f"{text.plus_minus(claim.difference, 1, sign=sign)} wake-ups/s"
    return f"{text.plus_minus(claim.difference, sign=sign)} points of C0"
