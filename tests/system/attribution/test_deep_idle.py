# SPDX-License-Identifier: Apache-2.0
"""Deep idle of real windows: every period is saved or counted as lost, and the kernel counts the same misses."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerprof.attribution.attribute import trace_target
from powerprof.attribution.capture import Capture
from powerprof.attribution.deep_idle import build_deep_idle
from powerprof.attribution.deep_what_if import DeepRequest
from powerprof.attribution.requests import AttributeRequest
from powerprof.energy.request import NO_METER
from powerprof.system.targets import resolve
from powerprof.tracing import idle_tables
from tests.conftest import Cli
from tests.programs.truth import compiled
from tests.system.attribution.conftest import Attributed
from tests.system.cure.test_cure import Truth


def test_every_period_of_a_window_is_in_the_answer(
    attribute: Callable[..., Attributed], wakes: Callable[..., Any], powerprof_cli: Cli
) -> None:
    with wakes("twins=89", "fast=301") as running:
        found = attribute(running.pid, "--as", "skylake-server", "--without", "wakes", command="deep-idle")
    deep, balance = found.record["deep"], found.record["conservation"]
    host = deep["scopes"][0]
    parts = [host[f"{part}_s"] for part in ("ended", "open", "running", "unknown")]
    assert sum(parts) == pytest.approx(host["window_s"], abs=1e-6)
    assert sum(row["stretch_s"] for row in host["breakers"]) == pytest.approx(host["ended_s"], abs=1e-6)
    assert deep["periods_count"] + deep["lost_count"] == balance["idle_exits_count"] - balance["lost_count"]
    mine = sum(row["count"] for row in host["breakers"] if row["pid"] == running.pid)
    assert mine <= sum(row["count"] for row in found.record["wakeups"])
    after = deep["what_if"]["scopes"][0]
    assert after["ended_s"] + after["open_s"] >= host["ended_s"] + host["open_s"] - 1e-6
    check = deep["governor"]
    if check is not None and check["kernel_above_count"] is not None and check["is_complete"]:
        for name in ("above", "below"):
            apart = abs(check[f"{name}_count"] - check[f"kernel_{name}_count"])
            assert apart <= max(5, 0.02 * deep["periods_count"]), check
    again = powerprof_cli(["deep-idle", "--from", str(found.run), "--as", "skylake-server", "--json", "-"])
    assert json.loads(again.out)["deep"]["scopes"] == deep["scopes"]


def count_alone(taken: Capture, first: int, last: int) -> tuple[float, Counter[int]]:
    """Return the seconds in which no CPU ran, by a grid of microseconds, and the exits by process at such moments."""
    exits = taken.exit_records()
    running = np.zeros((last - first) // 1000 + 1, dtype=np.int64)
    for edge in taken.edges:
        mine = np.sort(exits[exits["cpu"] == edge.cpu], order="sequence")
        begin = np.append(first, mine["exit_ns"].astype(np.int64))
        end = np.append(mine["enter_ns"].astype(np.int64), last)
        places = (np.clip(np.stack([begin, end]), first, last) - first) // 1000
        np.add.at(running, places[0], 1)
        np.add.at(running, places[1], -1)
    running = np.cumsum(running)
    ended = exits[(exits["exit_ns"] > first) & (exits["exit_ns"] < last - 1000)]
    is_alone = running[(ended["exit_ns"].astype(np.int64) - first) // 1000 - 1] == 0
    return float((running[:-1] == 0).sum()) / 1e6, Counter(ended["next_tgid"][is_alone].tolist())


def test_stretches_and_breakers_are_the_arithmetic_of_known_timers(
    attribute: Callable[..., Attributed], compilers: Sequence[str], tmp_path: Path
) -> None:
    """Each CPU has a thread with a timer. A waking while all CPUs idle ends a stretch, whatever else the host does."""
    program = compiled(compilers[0], "slack_truth.c", tmp_path)
    threads = [Truth(program, tmp_path, poll_ms) for poll_ms in (5, 12)]
    try:
        for thread, cpu in zip(threads, sorted(os.sched_getaffinity(0)), strict=False):
            os.sched_setaffinity(thread.tid, {cpu})
        found = attribute(threads[0].pid, command="deep-idle")
    finally:
        for thread in threads:
            thread.end()
    host, taken = found.record["deep"]["scopes"][0], found.captured
    first, last = max(edge.start_ns for edge in taken.edges), min(edge.end_ns for edge in taken.edges)
    together_s, alone = count_alone(taken, first, last)
    grid_s = 1e-6 * len(taken.exit_records())
    assert host["ended_s"] + host["open_s"] == pytest.approx(together_s, rel=0.01, abs=grid_s)
    assert host["running_s"] == pytest.approx(host["window_s"] - together_s, rel=0.01, abs=grid_s)
    counted = Counter[int]()
    for row in host["breakers"]:
        counted[row["pid"]] += row["count"]
    for thread, poll_s in zip(threads, (0.005, 0.012), strict=True):
        assert counted[thread.pid] == pytest.approx(alone[thread.pid], rel=0.01, abs=2)
        assert counted[thread.pid] <= host["window_s"] / poll_s + 1
        if host["running_s"] < 0.05 * host["window_s"]:
            assert counted[thread.pid] >= 0.9 * host["window_s"] / (poll_s + 0.0002)


@pytest.mark.usefixtures("root_bpf")
def test_periods_beyond_the_limit_make_the_rest_unknown(
    wakes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_tables, "EVERY_PERIOD_LIMIT", 5)
    with wakes("twins=89") as running:
        request = AttributeRequest(duration_s=1.0, energy=NO_METER, every_period=True)
        taken = trace_target(resolve([str(running.pid)]), request, dict, lambda _: None)
    deep = build_deep_idle(taken, DeepRequest())
    total = sum(edge.traced_count or 0 for edge in taken.edges)
    assert total > 5 + len(taken.edges), "the CPUs hardly idled"
    assert deep.periods_count <= 5 + len(taken.edges)  # each CPU's open period is saved besides
    assert deep.periods_count + deep.lost_count == total
    assert taken.sample_lost_count > 0
    host = deep.scopes[0]
    assert host.ended_s + host.open_s + host.running_s + host.unknown_s == pytest.approx(host.window_s, abs=1e-6)
    assert host.unknown_s > 0 or host.running_s == pytest.approx(host.window_s, rel=0.02)
