# SPDX-License-Identifier: Apache-2.0
"""Loads other than sysbench's, and the options that say where and how long: each on a real server."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from powerprof.database.base import Login
from powerprof.database.given import GivenServer
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.load import Context, LoadResult, ProcessLoad
from powerprof.system import programs
from powerprof.workloads.catalogue import find_one
from powerprof.workloads.reading import resolve
from tests.conftest import Cli, CliResult

QUICK = ["--pairs", "3", "--duration", "0.4", "--meter", "none", "--json", "-"]
# As the official file: it makes a schema `world` with these columns among others.
WORLD_SQL = """\
DROP SCHEMA IF EXISTS world;
CREATE SCHEMA world;
USE world;
CREATE TABLE `country` (`Code` char(3) NOT NULL, `Name` char(52) NOT NULL, `Continent` char(20) NOT NULL DEFAULT 'Asia',
  `SurfaceArea` decimal(10,2) NOT NULL, `Population` int NOT NULL, `Capital` int, PRIMARY KEY (`Code`));
CREATE TABLE `city` (`ID` int NOT NULL AUTO_INCREMENT, `Name` char(35) NOT NULL, `CountryCode` char(3) NOT NULL,
  `District` char(20) NOT NULL, `Population` int NOT NULL, PRIMARY KEY (`ID`));
CREATE TABLE `countrylanguage` (`CountryCode` char(3) NOT NULL, `Language` char(30) NOT NULL,
  `IsOfficial` enum('T','F') NOT NULL DEFAULT 'F', `Percentage` decimal(4,1) NOT NULL,
  PRIMARY KEY (`CountryCode`,`Language`));
INSERT INTO country VALUES ('NLD','Netherlands','Europe',41526.00,15864000,1);
INSERT INTO countrylanguage VALUES ('NLD','Dutch','T',95.6);
INSERT INTO city VALUES (1,'Amsterdam','NLD','Noord-Holland',731200);
INSERT INTO city SELECT seq, CONCAT('Town ', seq), 'NLD', 'Utrecht', 1000 + seq FROM seq_2_to_3000;
"""


def _metric(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next(metric for metric in record["metrics"] if metric["name"] == name)


def _affinities(program: str, parent: int) -> set[frozenset[int]]:
    """The CPUs on which the children of that name may run."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, its_parent = (entry / "comm").read_text().strip(), (entry / "stat").read_text().rpartition(")")[2]
            if name == program and int(its_parent.split()[1]) == parent:
                found.add(frozenset(os.sched_getaffinity(int(entry.name))))
        except OSError:
            continue
    return found


def test_pinned_apart_with_a_control_and_a_precision_on_the_official_world(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path
) -> None:
    world = tmp_path / "world.sql"
    world.write_text(WORLD_SQL)
    words = [
        "--quiet",
        "compare",
        "index",
        "no-index",
        "--world-sql",
        str(world),
        "--server-cpus",
        "0",
        "--client-cpus",
        "1",
    ]
    process = powerprof_cli.start([*words, "--control", "--precision", "50%", *QUICK])
    client: set[frozenset[int]] = set()
    try:
        deadline_s = time.monotonic() + 120
        while process.poll() is None and not client and time.monotonic() < deadline_s:
            client = _affinities("sysbench", process.pid)
            time.sleep(0.05)
        server_cpus = _affinities("mariadbd", process.pid)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert client == {frozenset({1})}
    assert server_cpus == {frozenset({0})}
    record = json.loads(out)
    # Five copies of 3,000 cities, read in full without an index.
    assert 14_900 < _metric(record, "rows_examined_per_query")["b"]["mean"] < 15_600
    server = _metric(record, "c0_ms_per_query_server")
    assert server["b"]["mean"] > 3 * server["a"]["mean"]
    assert record["control"]["kind"] == "run"
    assert record["control"]["pairs_count"] == 6
    assert record["ended"] or any(note.startswith("±") for note in record["notes"]), record["notes"]


SLAP = """\
schema = "powerprof.workload/1"
name = "slapped"
title = "mariadb-slap"
[load]
kind = "slap"
clients = 2
queries = 40
sql = ["SELECT BENCHMARK(20000, MD5('x'))"]
[conditions.heavy]
"""


def _run(cli: Cli, condition: str, *words: str) -> CliResult:
    return cli(["run", condition, "--repeat", "2", "--duration", "0.4", "--meter", "none", "--json", "-", *words])


def _queries(record: dict[str, Any]) -> list[float]:
    """Return the queries of each window, which is a little longer than the work."""
    windows = record["phases"][-1]["windows"]
    rates = _metric(record, "queries_hz")["values"]
    return [rate_hz * window["window_s"] for rate_hz, window in zip(rates, windows, strict=True)]


def test_mariadb_slap_does_equal_work(powerprof_cli: Cli, mariadbd: Path, tmp_path: Path) -> None:
    (tmp_path / "slapped").mkdir()
    (tmp_path / "slapped/workload.toml").write_text(SLAP)
    done = _run(powerprof_cli, "slapped:heavy", "--workloads", str(tmp_path))
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert _queries(record) == pytest.approx([40, 40], rel=0.1)
    server_ms = _metric(record, "c0_ms_per_query_server")["estimate"]["mean"]
    assert 1 < server_ms < 100  # 20,000 rounds of MD5 take some milliseconds
    # The server does this work on all CPUs, and in the time to the solution.
    assert 40 * server_ms <= 1e3 * _metric(record, "time_to_solution_s")["estimate"]["mean"] * (os.cpu_count() or 1)


CLIENT = """\
#!/usr/bin/env python3
import os, subprocess, sys, time
defaults, queries, seconds, statement = sys.argv[1:]
start = time.monotonic()
text = (statement + ";\\n") * int(queries)
subprocess.run(["mariadb", "--defaults-file=" + defaults, "--skip-column-names", "--batch"], input=text, text=True,
               check=True, stdout=subprocess.DEVNULL)
assert os.environ["MYSQL_PWD"]
print("queries=" + queries)
print("p95_ms=1.5")
"""
COMMAND = """\
schema = "powerprof.workload/1"
name = "own"
title = "a program of the user's"
[load]
kind = "command"
queries = 25
[conditions.heavy]
load.argv = ["./client.py", "{defaults_file}", "{queries}", "0", "SELECT BENCHMARK(20000, MD5('x'))"]
[conditions.broken]
load.argv = ["./client.py", "{defaults_file}", "{queries}", "0", "SELECT no_such_column"]
"""


def test_a_program_of_the_user_can_be_the_client(powerprof_cli: Cli, mariadbd: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "workload.toml").write_text(COMMAND)
    (folder / "client.py").write_text(CLIENT)
    (folder / "client.py").chmod(0o700)
    words = ("--workloads", str(tmp_path), "--trust")
    done = _run(powerprof_cli, "own:heavy", *words)
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert _queries(record) == pytest.approx([25, 25], rel=0.1)
    assert _metric(record, "latency_p95_ms")["estimate"]["mean"] == 1.5
    assert 1 < _metric(record, "c0_ms_per_query_server")["estimate"]["mean"] < 100
    failed = _run(powerprof_cli, "own:broken", *words)
    assert failed.code == 1
    assert "error: client.py failed with 1: " in failed.err


def test_the_cpu_time_of_a_client_is_without_other_programs(tmp_path: Path) -> None:
    """A meter's program ends while the client runs."""
    login = Login(user="u", host="127.0.0.1", port=3306)
    context = Context(GivenServer(login), login, tmp_path)
    context.file("x", b"")
    running = ProcessLoad(["/bin/sleep", "0.5"], context, lambda text, elapsed_s: LoadResult(7, elapsed_s))
    try:
        burn = "import time\nwhile time.process_time() < 0.5: pass"
        programs.run([sys.executable, "-S", "-c", burn])
        result = running.finish(60)
    finally:
        running.kill()
    assert result.queries == 7 and not running.alive()
    assert result.client_cpu_s is not None and 0 < result.client_cpu_s < 0.2


def test_servers_of_a_topology_have_cpus_by_name_and_role(mariadbd: Path) -> None:
    case = resolve(*find_one("primary-primary"))
    with Bench([case], BenchOptions(member_cpus={"node-1": (0,), "node": (1,)}), print) as bench:
        cpus = {name: os.sched_getaffinity(server.pid or 0) for name, server in bench.members(case).items()}
    assert cpus == {"node-1": {0}, "node-2": {1}}
