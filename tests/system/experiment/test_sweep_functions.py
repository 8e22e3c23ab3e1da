# SPDX-License-Identifier: Apache-2.0
"""sweep --on-cpu: at every point the server's own functions under its load, a window a round, and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("root_bpf")

PLAIN = """\
schema = "powerprof.workload/1"
name = "plain"
title = "no tables, so that a server is ready at once"
[load]
sql = ["SELECT BENCHMARK(20000, MD5('a'))"]
[conditions.one]
"""


def test_what_the_server_runs_is_sampled_at_each_point(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/workload.toml").write_text(PLAIN)
    words = ["--clients", "1,2", "--repeat", "3", "--duration", "0.4", "--energy-source", "none", "--on-cpu"]
    done = powerprof_cli(["sweep", "plain:one", "--workloads", str(tmp_path), *words, "--json", "-"], timeout=180)
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["options"]["on_cpu"] is True
    for point in record["points"]:
        assert point["error"] is None and len(point["on_cpu"]) == len(point["blocks"]) == 3
        for window in point["on_cpu"]:
            # 1.5 s of at least half a CPU, 997 times a second.
            assert window["samples_count"] > 300
            shares = {one["function"]: one["percent"] for one in window["functions"]}
            assert sum(shares.values()) == pytest.approx(100.0, abs=1.0)
            # The statement is MD5 and nothing else: its library is where the server runs.
            # Without its symbols a function is where it is entered, and MD5 is several.
            assert sum(one["percent"] for one in window["functions"] if "crypto" in one["module"]) > 10, shares
    printed = powerprof_cli(["report", "sweep-0001"])
    assert "Functions of the server, % of its samples, over clients:" in printed.out
