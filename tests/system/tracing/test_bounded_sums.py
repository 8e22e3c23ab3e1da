# SPDX-License-Identifier: Apache-2.0
"""`--max-cost` of `offcpu`, `syscalls`, `functions` and `profile`: intervals contain the known rates of a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.programs import ground_truth

_RATES = {"nanosleep": 4001.0, "poll": 997.0, "epoll": 2003.0}


@pytest.fixture(scope="module")
def sleepers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ground_truth.build("sleepers", tmp_path_factory.mktemp("sleepers"))


def _rows(record: dict[str, Any], verb: str) -> dict[str, dict[str, Any]]:
    if verb == "offcpu":
        return {row["thread"]: row for row in record["threads"]}
    if verb == "functions":
        return {row["function"].removeprefix("wait_"): row for row in record["functions"]}
    names = {"clock_nanosleep": "nanosleep", "poll": "poll", "epoll_wait": "epoll"}
    return {row["thread"]: row for row in record["calls"] if names.get(row["name"]) == row["thread"]}


@pytest.mark.parametrize("verb", ["offcpu", "syscalls", "functions"])
def test_slices_stand_for_the_calls_of_a_window(root_bpf: None, powerprof_cli: Cli, sleepers: Path, verb: str) -> None:
    more = ["wait_*"] if verb == "functions" else []
    with ground_truth.running(sleepers, 60.0, *(f"{name}={rate:g}" for name, rate in _RATES.items())) as truth:
        words = [verb, *more, "--pid", str(truth["pid"]), "--max-cost", "0.175%", "--duration", "4"]
        result = powerprof_cli([*words, "--no-save", "--json", "-"], timeout=120)
    assert result.code == 0, result.err
    record = json.loads(result.out)
    bound = record["bound"]
    assert bound["slices_count"] >= 1 and 0 < bound["traced_percent"] < 90 and bound["max_cost_percent"] == 0.175
    rows = _rows(record, verb)
    for name, rate in _RATES.items():
        # The program may be slower than its rate on a busy host, and never faster.
        count = 4 * rate
        assert rows[name]["low_count"] <= 1.02 * count, (name, rows[name])
        assert rows[name]["high_count"] >= 0.5 * count, (name, rows[name])


def test_the_bound_lowers_the_frequency_of_samples(root_bpf: None, powerprof_cli: Cli, sleepers: Path) -> None:
    with ground_truth.running(sleepers, 60.0) as truth:
        words = ["profile", "--pid", str(truth["pid"]), "--max-cost", "0.0125%", "--frequency", "999"]
        result = powerprof_cli([*words, "--duration", "1", "--no-save", "--json", "-"], timeout=120)
    assert result.code == 0, result.err
    bound = json.loads(result.out)["bound"]
    assert bound["frequency_hz"] < 999 and bound["max_cost_percent"] == 0.0125 and bound["slices_count"] == 0
