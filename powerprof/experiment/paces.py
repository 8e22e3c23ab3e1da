# SPDX-License-Identifier: Apache-2.0
"""Count the wake-ups per thread of a server over several traced windows, and read the settings that change them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from powerprof.diagnosis import server_queries
from powerprof.diagnosis.evidence import Evidence, ThreadWakeups
from powerprof.diagnosis.thread_pace import find_periodic_thread, list_settings
from powerprof.diagnosis.thread_wakeups import list_thread_wakeups
from powerprof.experiment.records import TraceSummary
from powerprof.measure.means import interval
from powerprof.model.metrics import unit_of
from powerprof.model.records import Estimate, RunMetric

if TYPE_CHECKING:
    from powerprof.database.base import Server


WAKINGS = "server_wakings_hz"
EXITS = "server_exits_hz"


class ThreadPace(msgspec.Struct, frozen=True, kw_only=True):
    """The threads of one name in one window. `remedy`: the setting that slows or stops them."""

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
    """A thread over all traced windows."""

    thread: str
    wakings: Estimate | None
    exits: Estimate
    period_ms: float | None = None
    remedy: str = ""


def read_pace_settings(server: Server) -> dict[str, str]:
    """Read the settings of this server that change the pace of threads; empty for PostgreSQL."""
    if server.login.family == "postgresql":
        return {}
    with server.connect() as connection:
        return server_queries.read_settings(connection)


def build_pace_window(traced: TraceSummary, family: str, variables: Mapping[str, str]) -> PaceWindow:
    """Return the threads of a traced window, most woken first."""
    window_s = traced.attribution.window_s
    evidence = Evidence(version="", family=family, window_s=window_s, variables=dict(variables))
    by_name: dict[str, list[ThreadWakeups]] = defaultdict(list)
    for row in list_thread_wakeups(traced.attribution):
        by_name[_label_thread(row)].append(row)
    threads = [_build_thread_pace(name, rows, evidence) for name, rows in by_name.items()]
    threads.sort(key=lambda thread: thread.wakings_hz or thread.exits_hz, reverse=True)
    return PaceWindow(window_s=window_s, threads=threads)


def _label_thread(row: ThreadWakeups) -> str:
    """Return the server's own name of a thread, else that of a known thread with this stack, else its program's."""
    if row.name is not None:
        return row.name.removeprefix("thread/")
    periodic = find_periodic_thread(row)
    return periodic.name if periodic else row.comm


def _build_thread_pace(name: str, rows: Sequence[ThreadWakeups], evidence: Evidence) -> ThreadPace:
    counted = [row.wakings_hz for row in rows if row.wakings_hz is not None]
    regular = [row for row in rows if row.period_ms is not None]
    periodic = find_periodic_thread(rows[0])
    return ThreadPace(
        thread=name,
        wakings_hz=sum(counted) if counted else None,
        exits_hz=sum(row.rate_hz for row in rows),
        period_ms=max(regular, key=lambda row: row.rate_hz).period_ms if regular else None,
        remedy="; ".join(list_settings(periodic, evidence)) if periodic else "",
    )


def summarise_paces(windows: Sequence[PaceWindow]) -> list[Pace]:
    """Return each thread over the windows, most woken first."""
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
                wakings=_estimate_rate([*woken, *absent]) if woken else None,
                exits=_estimate_rate([*(thread.exits_hz for thread in seen), *absent]),
                # Regularity in a minority of windows is chance.
                period_ms=regular[len(regular) // 2] if 2 * len(regular) > len(windows) else None,
                remedy=seen[0].remedy,
            )
        )
    return sorted(rates, key=lambda thread: thread.wakings.mean if thread.wakings else thread.exits.mean, reverse=True)


def pace_metrics(windows: Sequence[PaceWindow]) -> list[RunMetric]:
    """Return the sums over all threads of the server, one value per window."""
    if not windows:
        return []
    woken = [sum(thread.wakings_hz or 0.0 for thread in window.threads) for window in windows]
    ended = [sum(thread.exits_hz for thread in window.threads) for window in windows]
    return [
        RunMetric(name=name, unit=unit_of(name), kind="measured", estimate=_estimate_rate(values), values=list(values))
        for name, values in ((WAKINGS, woken), (EXITS, ended))
    ]


def _estimate_rate(values: Sequence[float]) -> Estimate:
    """Return the mean with its interval, cut at 0."""
    estimate = interval(values)
    return estimate if estimate.low is None else msgspec.structs.replace(estimate, low=max(0.0, estimate.low))
