# SPDX-License-Identifier: Apache-2.0
"""Builders of a host's window and of the result of a measurement. All figures differ, and steal is not 0."""

from __future__ import annotations

from typing import Any

from powerprof.database.server_report import ServerReport
from powerprof.energy.split import Consumer, split_host_energy
from powerprof.energy.total import Total
from powerprof.model.records import EnergyReading, EnergySource, EnergySplit, Window
from powerprof.queries.join import Parts, join_trace
from powerprof.queries.pricing import MeasuredStatements
from tests.unit.queries.sample import trace

WINDOW_S, CPUS = 2.5, 4
IDLE_WATTS, JOULES, WAKEUP_JOULES = 4.0, 30.0, 0.004


def reading(**more: Any) -> EnergyReading:
    given: dict[str, Any] = {
        "source": "rapl",
        "domain": "package-0",
        "kind": "measured",
        "joules": JOULES,
        "watts": JOULES / WINDOW_S,
        "scope": "package",
    }
    return EnergyReading(**{**given, **more})


def window(**more: Any) -> Window:
    """Return a window of 2.5 s on 4 CPUs: 37.5 % in C0, of which 6 % were stolen."""
    given: dict[str, Any] = {
        "started_at": "2026-01-01T00:00:00.000Z",
        "window_s": WINDOW_S,
        "cpus": CPUS,
        "c0_percent": 37.5,
        "idle_percent": 62.5,
        "wakeups_hz": 120.0,
        "states": [],
        "steal_percent": 6.0,
        "tool_cpu_s": 0.05,
        "tool_wakeups_count": 10,
        "energy": [reading()],
        "notes": ["a note of the window"],
    }
    return Window(**{**given, **more})


class KnownFloor:
    """The energy of a host whose idle floor and price of a wake-up were measured."""

    source = EnergySource(metered=True, why="rapl")

    def __init__(self, idle_watts: float | None = IDLE_WATTS, wakeup_joules: float = WAKEUP_JOULES) -> None:
        self._idle_watts, self._wakeup_joules = idle_watts, wakeup_joules

    def complete(self, window: Window) -> Window:
        return window

    def split(
        self, whole: Total, window_s: float, cpus: int, c0_percent: float | None, consumers: list[Consumer], **more: Any
    ) -> EnergySplit | None:
        prices = {"idle_watts": self._idle_watts, "wakeup_joules": self._wakeup_joules}
        return split_host_energy(whole, window_s, c0_percent, cpus, consumers, **prices, **more)


def measured(parts: Parts | None = None, **more: Any) -> MeasuredStatements:
    """Return a window of 1.1 s of the server's CPU time, of which the parts explain 0.99 s."""
    given: dict[str, Any] = {
        "method": "probes",
        "parts": parts or join_trace(trace(), ServerReport()),
        "known": ServerReport(),
        "window": window(),
        "window_s": WINDOW_S,
        "process_cpu_s": 1.1,
        "cost_s": 0.02,
        "bpf_s": 0.015,
        "seen_count": 500,
        "calls_count": 417,
        "notes": ["a note of the trace"],
        "gap_before_s": 0.25,
        "lost_count": 3,
        "unreadable_count": 5,
        "cut_count": 7,
    }
    return MeasuredStatements(**{**given, **more})
