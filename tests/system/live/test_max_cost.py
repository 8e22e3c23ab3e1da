# SPDX-License-Identifier: Apache-2.0
"""`watch --max-cost` on a busy host: slices are traced, and rows add up to the kernel's count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.programs import ground_truth

# More switches than the budget of a target that uses nothing allows.
_RATES = {"nanosleep": 4001.0, "poll": 997.0, "epoll": 2003.0}


@pytest.fixture(scope="module")
def sleepers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ground_truth.build("sleepers", tmp_path_factory.mktemp("sleepers"))


def _intervals(cli: Cli, pid: object, *words: str) -> list[dict[str, object]]:
    result = cli(
        ["watch", "--pid", str(pid), "--interval", "3", "--meter", "none", "--json-lines", *words], timeout=120
    )
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_slices_stand_for_intervals(root_bpf: None, powerprof_cli: Cli, sleepers: Path) -> None:
    rates = [f"{name}={rate_hz:g}" for name, rate_hz in _RATES.items()]
    with ground_truth.running(sleepers, 180.0, *rates) as truth:
        intervals = _intervals(powerprof_cli, truth["pid"], "--count", "8", "--max-cost", "1%")
    traced = [float(str(interval["traced_percent"])) for interval in intervals]
    assert min(traced) < 50 and all(0 <= percent <= 100 for percent in traced)
    assert all(interval["max_cost_percent"] == 1.0 for interval in intervals)
    # Programs that are detached cost nothing.
    costs = [interval["tool"]["bpf_s"] for interval in intervals]  # type: ignore[index]
    assert all(cost == 0 for cost, percent in zip(costs, traced, strict=True) if not percent)


@pytest.mark.parametrize("words", [("--max-cost", "none"), ("--max-cost", "100%")])
def test_everything_is_traced_below_the_bound(
    words: tuple[str, ...], root_bpf: None, powerprof_cli: Cli, sleepers: Path
) -> None:
    with ground_truth.running(sleepers, 60.0) as truth:
        intervals = _intervals(powerprof_cli, truth["pid"], "--count", "2", *words)
    assert [interval["traced_percent"] for interval in intervals] == [100.0, 100.0]
