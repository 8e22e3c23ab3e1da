# SPDX-License-Identifier: Apache-2.0
"""powerprof compare on a real server: the published direction, in JSON that holds what the contract says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli

QUICK = ["--pairs", "3", "--duration", "0.4", "--meter", "none"]
_LEFT_OUT = r"other programs ran during (\d+) of the pairs"


def _metric(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next(metric for metric in record["metrics"] if metric["name"] == name)


def test_no_index_costs_many_times_more_than_index(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    words = ["compare", "index", "no-index", "--pairs", "5", "--duration", "0.4", "--fail-if-worse", "--json", "-"]
    done = powerprof_cli(words)
    record = json.loads(done.out)
    # So few and short windows can be inconclusive if other programs need the CPUs.
    is_worse = record["metrics"][0]["verdict"] == "b_higher"
    assert done.code == (4 if is_worse else 0), done.err
    assert ("error: no-index is worse than index" in done.err) == is_worse
    assert record["schema"] == "powerprof.comparison/1"
    assert record["id"] == "compare-0001"
    assert (record["a"]["name"], record["b"]["name"]) == ("index", "no-index")
    # Pairs in which other programs ran more than in the others are left out, and counted.
    pairs = {block["pair"] for block in record["blocks"] if not block["dropped"]}
    left_out = sum(int(found[1]) for note in record["notes"] if (found := re.match(_LEFT_OUT, note)))
    assert len(pairs) >= 5
    assert record["order"].count("a") == record["order"].count("b") == len(pairs) - left_out >= 3
    assert record["blocks_count"] == len(record["order"])
    assert [block["dropped"] for block in record["blocks"]][:3] == [True, True, False]
    server = record["metrics"][0]
    assert server["name"] == "c0_ms_per_query_server"
    # Seen: 20 to 48 times; 5 leaves room for a host that is busy with something else.
    assert server["b"]["mean"] > 5 * server["a"]["mean"]
    rows = _metric(record, "rows_examined_per_query")
    assert rows["a"]["mean"] < 20
    assert rows["b"]["mean"] == pytest.approx(20_395, rel=0.01)
    plans = {plan["arm"]: plan["rows"][0] for plan in record["plans"]}
    assert (plans["a"]["type"], plans["a"]["key"]) == ("ref", "name_btree")
    assert plans["b"]["type"] in ("ALL", "index")
    assert {process["name"] for process in record["blocks"][2]["window"]["processes"]} == {
        "server",
        "client",
        "powerprof",
    }
    assert _metric(record, "joules_per_query")["kind"] in ("measured", "estimated")
    again = powerprof_cli(["report", "compare-0001"])
    assert again.code == 0
    assert "times as much server CPU time per query as index" in " ".join(again.out.split())
    assert max(map(len, again.out.splitlines())) <= 80


def test_equal_work_is_measured_to_its_end(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    done = powerprof_cli(
        ["compare", "index", "no-index", *QUICK, "--design", "work", "--queries", "60", "--json", "-", "--no-save"]
    )
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert (record["design"], record["queries_per_block"], record["id"]) == ("work", 60, None)
    kept = [block for block in record["blocks"] if not block["dropped"]]
    assert {block["queries"] for block in kept} == {60}
    for block in kept:
        assert block["window"]["window_s"] >= block["solution_s"] - 0.05
    by_arm = {arm: min(block["solution_s"] for block in kept if block["arm"] == arm) for arm in "ab"}
    assert by_arm["b"] > by_arm["a"]


@pytest.mark.nightly  # test_loads_and_options.py has a control with other options.
def test_a_condition_is_compared_with_itself(powerprof_cli: Cli, mariadbd: Path, sysbench: Path) -> None:
    """The control that the documentation names: one server, whose tables are made once."""
    done = powerprof_cli(["compare", "index", "index", "--pairs", "3", "--duration", "0.4", "--json", "-"])
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert (record["a"]["name"], record["b"]["name"]) == ("index", "index (again)")
    assert record["a"]["work"] == record["b"]["work"]
    # Seen: −3 to +4 %; a false difference would have to be several times that.
    means = [record["metrics"][0][arm]["mean"] for arm in "ab"]
    assert means[1] == pytest.approx(means[0], rel=0.5)
    assert _metric(record, "rows_examined_per_query")["difference"]["b_minus_a"] == pytest.approx(0.0, abs=0.5)
