# SPDX-License-Identifier: Apache-2.0
"""Blocks and windows with the figures that a test is about."""

from __future__ import annotations

from powerprof.experiment.records import Arm, Block
from powerprof.model.records import EnergyReading, ProcessTime, StateResidency, Window


def window(
    c0_percent: float = 10.0,
    *,
    server_s: float = 0.4,
    client_s: float = 0.1,
    window_s: float = 2.0,
    watts: float | None = 3.0,
    wakeups_hz: float = 500.0,
    steal_percent: float = 0.0,
    frequency_mhz: float | None = None,
) -> Window:
    """A window of two CPUs."""
    energy = []
    if watts is not None:
        energy.append(
            EnergyReading(source="model", domain="cpus", kind="estimated", joules=watts * window_s, watts=watts)
        )
    processes = [
        ProcessTime(name=name, cpu_s=cpu_s, percent=100 * cpu_s / (2 * window_s))
        for name, cpu_s in (("server", server_s), ("client", client_s), ("powerprof", 0.0))
    ]
    idle = StateResidency(
        name="C1",
        residency_percent=100 - c0_percent,
        average_residency_ms=2.0,
        entries_hz=wakeups_hz,
        time_us=(100 - c0_percent) / 100 * 2 * window_s * 1e6,
        entries_count=int(wakeups_hz * window_s),
    )
    return Window(
        started_at="2026-01-01T00:00:00Z",
        window_s=window_s,
        cpus=2,
        c0_percent=c0_percent,
        idle_percent=100 - c0_percent,
        wakeups_hz=wakeups_hz,
        states=[idle],
        steal_percent=steal_percent,
        frequency_mhz=frequency_mhz,
        energy=energy,
        processes=processes,
    )


def block(
    pair: int,
    arm: Arm,
    *,
    queries: int | None = 100,
    dropped: bool = False,
    attempts: int = 1,
    p95_ms: float | None = 2.0,
    offered_hz: float | None = 50.0,
    one: Window | None = None,
) -> Block:
    """A block of a pair."""
    return Block(
        pair=pair,
        arm=arm,
        dropped=dropped,
        attempts_count=attempts,
        queries=queries,
        offered_hz=offered_hz,
        window=one or window(),
        p50_ms=1.0,
        p95_ms=p95_ms,
        p99_ms=3.0,
        mean_ms=1.5,
        rows_examined=500,
    )


def blocks(pairs: int, a_server_s: float, b_server_s: float, *, spread: float = 0.002) -> list[Block]:
    """Pairs whose server time per query differs; a small deterministic spread stands for noise."""
    found = []
    for pair in range(pairs):
        wobble = spread * ((pair * 7) % 5 - 2)
        found.append(block(pair, "a", one=window(10 + pair % 3, server_s=a_server_s * (1 + wobble))))
        found.append(block(pair, "b", one=window(20 + pair % 3, server_s=b_server_s * (1 - wobble), watts=4.0)))
    return found
