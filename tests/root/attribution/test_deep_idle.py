# SPDX-License-Identifier: Apache-2.0
"""Deep idle of real windows: every period is saved or counted as lost, and the kernel counts the same misses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from powerprof.attribution.attribute import trace_target
from powerprof.attribution.deep_idle import DeepRequest, build_deep_idle
from powerprof.attribution.requests import AttributeRequest
from powerprof.energy.domains import NO_METER
from powerprof.system.targets import resolve
from powerprof.tracing import idle_tables
from tests.conftest import Cli
from tests.root.attribution.conftest import Attributed


def test_every_period_of_a_window_is_in_the_answer(
    attribute: Callable[..., Attributed], wakes: Callable[..., Any], powerprof_cli: Cli
) -> None:
    with wakes("twins=89", "fast=301") as running:
        found = attribute(running.pid, "--deep", "--as", "skylake-server", "--without", "wakes")
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
    again = powerprof_cli(["attribute", "--from", str(found.run), "--deep", "--as", "skylake-server", "--json", "-"])
    assert json.loads(again.out)["deep"]["scopes"] == deep["scopes"]


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
