# SPDX-License-Identifier: Apache-2.0
"""How often each thread of a server wakes, over several traced windows, and which setting is known to change that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from powerprof.diagnosis import asking
from powerprof.diagnosis.collect import rows_of
from powerprof.diagnosis.evidence import Evidence, ThreadWakeups
from powerprof.diagnosis.periodic import known, settings_of
from powerprof.figures import RunMetric
from powerprof.records import Estimate
from powerprof.windows.summary import interval

if TYPE_CHECKING:
    from powerprof.database.clients.base import Server
    from powerprof.experiment.records import TraceSummary

WAKINGS = "server_wakings_hz"
EXITS = "server_exits_hz"


class ThreadPace(msgspec.Struct, frozen=True, kw_only=True):
    """The threads of one name in one window: how often they were woken, how many idle periods that ended, and the
    period where one of them is regular. `remedy` is the setting that is known to slow or end it."""

    thread: str
    wakings_hz: float | None
    exits_hz: float
    period_ms: float | None = None
    remedy: str = ""


class PaceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One traced window of a server."""

    window_s: float
    threads: list[ThreadPace]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """A thread over all traced windows: one in which it did not wake counts as 0."""

    thread: str
    wakings: Estimate | None
    exits: Estimate
    period_ms: float | None = None
    remedy: str = ""


def settings_in_force(server: Server) -> dict[str, str]:
    """The settings that are known to change a thread's pace, as this server has them; empty where it is not asked."""
    if server.login.family == "postgresql":
        return {}
    with server.connect() as connection:
        return asking.variables(connection)


def pace_window(traced: TraceSummary, family: str, variables: Mapping[str, str]) -> PaceWindow:
    """What a traced window says of each thread, most woken first."""
    window_s = traced.attribution.window_s
    evidence = Evidence(version="", family=family, window_s=window_s, variables=dict(variables))
    by_name: dict[str, list[ThreadWakeups]] = defaultdict(list)
    for row in rows_of(traced.attribution):
        by_name[_label(row)].append(row)
    threads = [_pace(name, rows, evidence) for name, rows in by_name.items()]
    threads.sort(key=lambda thread: thread.wakings_hz or thread.exits_hz, reverse=True)
    return PaceWindow(window_s=window_s, threads=threads)


def _label(row: ThreadWakeups) -> str:
    """The server's own name of it; where it has none, that of a known thread with this stack, else the program's."""
    if row.name is not None:
        return row.name.removeprefix("thread/")
    periodic = known(row)
    return periodic.name if periodic else row.comm


def _pace(name: str, rows: Sequence[ThreadWakeups], evidence: Evidence) -> ThreadPace:
    counted = [row.wakings_hz for row in rows if row.wakings_hz is not None]
    regular = [row for row in rows if row.period_ms is not None]
    periodic = known(rows[0])
    return ThreadPace(
        thread=name,
        wakings_hz=sum(counted) if counted else None,
        exits_hz=sum(row.rate_hz for row in rows),
        period_ms=max(regular, key=lambda row: row.rate_hz).period_ms if regular else None,
        remedy="; ".join(settings_of(periodic, evidence)) if periodic else "",
    )


def paces(windows: Sequence[PaceWindow]) -> list[Pace]:
    """Each thread over the windows, most woken first."""
    by_name: dict[str, list[ThreadPace]] = defaultdict(list)
    for window in windows:
        for thread in window.threads:
            by_name[thread.thread].append(thread)
    rates = []
    for name, seen in by_name.items():
        absent = [0.0] * (len(windows) - len(seen))
        woken = [thread.wakings_hz for thread in seen if thread.wakings_hz is not None]
        regular = sorted(thread.period_ms for thread in seen if thread.period_ms is not None)
        rates.append(
            Pace(
                thread=name,
                wakings=_rate([*woken, *absent]) if woken else None,
                exits=_rate([*(thread.exits_hz for thread in seen), *absent]),
                # Where it was regular in one window by chance, it is not.
                period_ms=regular[len(regular) // 2] if 2 * len(regular) > len(windows) else None,
                remedy=seen[0].remedy,
            )
        )
    return sorted(rates, key=lambda thread: thread.wakings.mean if thread.wakings else thread.exits.mean, reverse=True)


def pace_metrics(windows: Sequence[PaceWindow]) -> list[RunMetric]:
    """What all threads of the server make together, a value a window."""
    if not windows:
        return []
    woken = [sum(thread.wakings_hz or 0.0 for thread in window.threads) for window in windows]
    ended = [sum(thread.exits_hz for thread in window.threads) for window in windows]
    return [
        RunMetric(name=name, unit="1/s", kind="measured", estimate=_rate(values), values=list(values))
        for name, values in ((WAKINGS, woken), (EXITS, ended))
    ]


def _rate(values: Sequence[float]) -> Estimate:
    """The mean with its interval: none of it below 0."""
    estimate = interval(values)
    return estimate if estimate.low is None else msgspec.structs.replace(estimate, low=max(0.0, estimate.low))
