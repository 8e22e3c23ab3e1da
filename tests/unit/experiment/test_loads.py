# SPDX-License-Identifier: Apache-2.0
"""Clients of each kind of load, their reports, and the blocks that hold them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from powerprof.database.base import Login
from powerprof.experiment import (
    command_client,
    connector_client,
    executions,
    mariadb_slap,
    pgbench,
    sysbench,
    sysbench_gate,
)
from powerprof.experiment.alternating import _sum_counters
from powerprof.experiment.apparatus import Slot
from powerprof.experiment.bench_data import PlanMismatch, check_counters, count_queries, count_rows, subtract_counters
from powerprof.experiment.bench_settings import _number, _text
from powerprof.experiment.block import add_client_time, build_block, refuse_errors
from powerprof.experiment.load import Context, LoadFailed, LoadOrder, LoadResult
from powerprof.experiment.plan import Offer
from powerprof.system.errors import CapabilityError, UsageError
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.definition import Load
from powerprof.workloads.reading import resolve
from tests.unit.experiment.builders import odd_window

# sysbench 1.0.20, --rate=100 --time=3 --histogram=on, shortened.
REPORT = """\
sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.100 |************                             50
       0.200 |****************                         40
       0.500 |****                                     6
       1.000 |**                                       4

SQL statistics:
    ignored errors:                      2      (0.00 per sec.)

General statistics:
    total time:                          3.0162s
    total number of events:              100

Latency (ms):
         min:                                    0.05
         avg:                                    0.20
         max:                                    0.46
         95th percentile:                        0.34
"""


def test_a_report_of_sysbench_is_read() -> None:
    result = sysbench.parse_report(REPORT, elapsed_s=3.1)
    assert (result.queries, result.elapsed_s, result.mean_ms, result.errors) == (100, 3.0162, 0.20, 2)
    assert (result.p50_ms, result.p95_ms, result.p99_ms) == (0.1, 0.5, 1.0)


@pytest.mark.parametrize("text", ["", "FATAL: unable to connect", REPORT[:400]])
def test_malformed_reports_are_refused(text: str) -> None:
    with pytest.raises(LoadFailed, match="gave no report"):
        sysbench.parse_report(text, 1.0)


def test_percentiles_of_a_histogram() -> None:
    assert sysbench.find_percentile([(1.0, 1), (2.0, 98), (3.0, 1)], 50) == 2.0
    assert sysbench.find_percentile([(1.0, 99), (3.0, 1)], 99) == 1.0
    assert sysbench.find_percentile([], 50) is None


def test_a_report_of_mariadb_slap_is_read() -> None:
    text = "Benchmark\n\tAverage number of seconds to run all queries: 0.125 seconds\n\tNumber of clients"
    result = mariadb_slap.parse_mariadb_slap(text, 0.2, 1001, Load(clients=4))
    assert (result.queries, result.elapsed_s) == (1000, 0.125)  # each client runs a whole share
    with pytest.raises(LoadFailed):
        mariadb_slap.parse_mariadb_slap("error", 0.2, 10, Load())


def test_a_command_can_report_its_queries() -> None:
    result = command_client.parse_command("working…\nqueries=1200\np95_ms: 2.5\n", 4.0)
    assert (result.queries, result.p95_ms, result.p99_ms, result.elapsed_s) == (1200, 2.5, None, 4.0)
    assert command_client.parse_command("", 1.0).queries is None


def test_an_account_of_postgresql_is_named_by_its_sockets_folder_and_port(tmp_path: Path) -> None:
    login = Login(user="u", socket=Path("/run/x/.s.PGSQL.5433"), database="shop", family="postgresql")
    text = sysbench.write_config(Load(), SimpleNamespace(login=login))  # type: ignore[arg-type]
    assert text.splitlines() == [
        "db-driver=pgsql",
        "pgsql-user=u",
        "pgsql-password=",
        "pgsql-host=/run/x",
        "pgsql-port=5433",
        "pgsql-db=shop",
    ]


def test_places_of_a_command_are_filled_and_unknown_ones_refused() -> None:
    assert command_client._fill_places("--socket={socket}", {"socket": "/run/s"}) == "--socket=/run/s"
    with pytest.raises(UsageError, match=r"no such place \{sokcet\}"):
        command_client._fill_places("{sokcet}", {"socket": "/run/s"})


def test_only_the_client_account_can_read_its_files(tmp_path: Path) -> None:
    context = _java_context(tmp_path)
    path = context.file("client.cnf", b"secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_uid == path.parent.stat().st_uid
    link = context.place / "link"
    link.symlink_to(tmp_path / "elsewhere")
    context.file("link", b"x")
    assert not (tmp_path / "elsewhere").exists()


def test_statements_become_scripts_of_pgbench() -> None:
    load = Load(kind="pgbench")
    assert pgbench.write_pgbench_scripts(["SELECT {{uniform 1 9}}, {{uniform 2 3}};"], load) == [
        "\\set powerprof0 random(1, 9)\n\\set powerprof1 random(2, 3)\nSELECT :powerprof0, :powerprof1;\n"
    ]
    assert pgbench.write_pgbench_scripts(["SELECT 1", "SELECT 2"], Load(kind="pgbench", transaction=True)) == [
        "BEGIN;\nSELECT 1;\nSELECT 2;\nEND;\n"
    ]
    for statement in ("SELECT 1;\n  \\shell rm -r x", "\\setshell a id", "SELECT {{sequence}}"):
        with pytest.raises(UsageError):
            pgbench.write_pgbench_scripts([statement], load)


_SELECT = "SELECT Name FROM City WHERE ID = {{uniform 1 4079}} AND Population > {{uniform 5 9}}"


def _java_context(tmp_path: Path) -> Context:
    login = Login(user="powerprof", password="a\\b=é", host="127.0.0.1", port=3307, database="world")
    return Context(SimpleNamespace(), login, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("protocol", "connector", "said"),
    [
        ("text", "mysql-connector-j", ("jdbc:mysql://", "useServerPrepStmts=false", "cachePrepStmts=false")),
        ("prepare-each", "mysql-connector-j", ("jdbc:mysql://", "useServerPrepStmts=true", "cachePrepStmts=false")),
        ("prepare-once", "mariadb-connector-j", ("jdbc:mariadb://", "useServerPrepStmts=true", "cachePrepStmts=true")),
    ],
)
def test_the_settings_of_a_java_connector(tmp_path: Path, protocol: str, connector: str, said: tuple[str, ...]) -> None:
    load = Load(kind="connector-j", protocol=protocol, connector=connector, sql=[_SELECT])  # type: ignore[arg-type]
    order = LoadOrder(duration_s=2.5, rate_hz=1000.0, seed=7)
    text = connector_client.format_connector_properties(load, [_SELECT], _java_context(tmp_path), order)
    assert all(word in text for word in said)
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["sql"] == "SELECT Name FROM City WHERE ID = ? AND Population > ?"
    assert (lines["bounds"], lines["rate_hz"], lines["duration_s"], lines["queries"]) == (
        "1 4079 5 9",
        "1000",
        "2.5",
        "0",
    )
    # As java.util.Properties.load takes it.
    assert lines["connector.password"] == "a\\\\b=\\u00e9"


@pytest.mark.parametrize(
    "load",
    [
        Load(kind="connector-j", sql=["SELECT 1", "SELECT 2"]),
        Load(kind="connector-j", sql=["SELECT {{sequence}}"]),
        Load(kind="connector-j", sql=["SELECT 1"], reconnect=True),
    ],
)
def test_unsupported_statements_of_a_java_connector_are_refused(tmp_path: Path, load: Load) -> None:
    with pytest.raises(UsageError, match="connector-j"):
        connector_client.format_connector_properties(load, load.sql, _java_context(tmp_path), LoadOrder(duration_s=1.0))


def test_a_missing_jdk_or_connector_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(kind="connector-j", sql=["SELECT 1"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match=r"^java is not installed") as caught:
        connector_client.start_connector(load, load.sql, _java_context(tmp_path), LoadOrder(duration_s=1.0))
    assert caught.value.hint == "apt install default-jdk-headless"
    # A runtime alone cannot run a source file.
    monkeypatch.setattr(connector_client.program_search, "need", _only_java)
    with pytest.raises(CapabilityError, match=r"^javac is not installed"):
        connector_client.start_connector(load, load.sql, _java_context(tmp_path), LoadOrder(duration_s=1.0))
    monkeypatch.setattr(connector_client.program_search, "need", lambda name, package: Path("/bin/false"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CapabilityError, match="mysql-connector-j has not been fetched") as caught:
        connector_client.start_connector(load, load.sql, _java_context(tmp_path), LoadOrder(duration_s=1.0))
    assert caught.value.hint == "fetch it: powerprof servers fetch mysql-connector-j"


def _only_java(name: str, package: str) -> Path:
    if name == "java":
        return Path("/bin/false")
    raise CapabilityError(f"{name} is not installed", f"apt install {package}")


def test_answers_are_counted_from_the_start_up_to_the_end() -> None:
    result = LoadResult(queries=9, elapsed_s=3.0, ends_s=(0.9, 1.0, 1.7, 2.49, 2.5, 2.6))
    assert (result.between(1.0, 2.5), LoadResult(queries=9, elapsed_s=3.0).between(1.0, 2.5)) == (3, None)


def test_the_log_of_pgbench_has_microseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of two clients: client, number, µs, script, s, µs of the end."""
    (tmp_path / "pgbench-log.71").write_text("0 1 2300 0 1700000001 250000\n0 2 skipped 0 1700000001 300000\n")
    (tmp_path / "pgbench-log.72").write_text(
        "1 1 4700 0 1700000002 500000 9\n1 2 900 0 1700000003 750000\nnonsense\n1 2\n"
    )
    monkeypatch.setattr(pgbench.time, "time", lambda: 1_700_000_000.0)
    monkeypatch.setattr(pgbench.time, "monotonic", lambda: 400.0)
    counted = "number of transactions actually processed: 3\nnumber of failed transactions: 2 (1 %)\n"
    found = pgbench.parse_pgbench(f"{counted}latency average = 2.633 ms", 4.5, tmp_path)
    assert (found.queries, found.errors, found.mean_ms, found.elapsed_s) == (3, 2, 2.633, 4.5)
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == (2.3, 4.7, 4.7)
    assert sorted(found.ends_s or ()) == pytest.approx([401.25, 402.5, 403.75])
    with pytest.raises(LoadFailed, match="gave no report"):
        pgbench.parse_pgbench("pgbench: error: connection failed", 1.0, tmp_path)
    commands = command_client.parse_command("queries=7\np50_ms=1.5\np95_ms=2.5\np99_ms=3.5\nqueries=9\n", 4.0)
    assert (commands.queries, commands.p50_ms, commands.p95_ms, commands.p99_ms) == (9, 1.5, 2.5, 3.5)


def test_the_work_behind_a_gate_is_that_since_a_tally() -> None:
    before, after = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    before[100], after[100], after[300], after[500] = 7, 27, 18, 2
    found = sysbench_gate.Tally(47, 91_000, after).since(sysbench_gate.Tally(7, 11_000, before))
    assert (found.queries, found.mean_ms) == (40, pytest.approx(2.0))

    def middle_ms(bucket: int) -> float:
        return 0.001 * 1e8 ** ((bucket + 0.5) / 1023)

    assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx([middle_ms(n) for n in (100, 300, 500)])
    assert sysbench_gate.Tally(7, 11_000, before).since(sysbench_gate.Tally(7, 11_000, before)).mean_ms is None
    assert sysbench.find_percentile([(1.0, 9), (2.0, 90), (3.0, 1)], 95) == 2.0


def test_counters_are_differences_without_those_of_the_reading() -> None:
    moved = subtract_counters(
        {"Questions": 1000, "Com_commit": 7, "gone": 1}, {"Questions": 1431, "Com_commit": 3, "new": 5}
    )
    assert moved == {"Questions": 431, "Com_commit": 0}
    assert count_queries({"Questions": 431, "Connections": 6, "Com_commit": 210}) == 424
    assert count_queries({"Questions": 431, "Com_commit": 210}, transactions=True) == 210
    assert count_queries({"Questions": 3, "Connections": 6}) == 0 and count_rows({}) is None
    assert count_rows({"Handler_read_rnd_next": 500, "Handler_read_key": 1, "Questions": 9}) == 501
    # 2 % of 1,000 queries and 40 for the edges.
    check_counters("c", {"Com_begin": 2.0}, {"Com_begin": 2059}, 1000)
    for wrong in (2061, 1939):
        with pytest.raises(PlanMismatch, match=f"moved {wrong / 1000:.3g} times"):
            check_counters("c", {"Com_begin": 2.0}, {"Com_begin": wrong}, 1000)
    for counted, queries in (({}, 1000), ({"Com_begin": 2000}, 0), ({"Com_begin": 2000}, None)):
        with pytest.raises(PlanMismatch, match="does not count Com_begin"):
            check_counters("c", {"Com_begin": 2.0}, counted, queries)  # type: ignore[arg-type]
    assert _sum_counters([{"a": 3, "b": 5}, {"a": 4}, {"a": 1, "b": 2}]) == {"a": 8, "b": 7}


def test_the_time_of_an_ended_client_is_in_percent_of_all_cpus() -> None:
    window = odd_window(1)
    client = add_client_time(window, 0.87).processes[-1]
    assert (client.name, client.cpu_s, client.percent) == ("client", 0.87, pytest.approx(100 * 0.87 / (2.7 * 3)))
    assert add_client_time(window, None) is window
    command = executions._add_command(window, 0.87).processes[0]
    assert (command.name, command.percent) == ("command", pytest.approx(100 * 0.87 / (2.7 * 3)))
    assert executions._add_command(replace(window, window_s=None), 0.87).processes[0].percent is None


def test_a_block_holds_the_report_of_its_client_and_the_counters() -> None:
    apparatus: Any = SimpleNamespace(offer=Offer("rate", 70.0, None, (), ()))
    result = LoadResult(
        queries=5, elapsed_s=2.0, p50_ms=1.1, p95_ms=2.2, p99_ms=3.3, mean_ms=1.4, errors=6, client_cpu_s=0.7
    )
    moved = {"minor_faults": 41, "Handler_read_key": 30, "Handler_read_rnd_next": 12, "Com_commit": 4}
    found = build_block(
        apparatus, Slot(3, "b", True, 9), 2, odd_window(), result, moved, queries=55, solution_s=1.9,
        solution_energy=odd_window().energy,
    )  # fmt: skip
    assert (found.pair, found.arm, found.dropped, found.attempts_count, found.queries) == (3, "b", True, 2, 55)
    assert (found.offered_hz, found.p50_ms, found.p95_ms, found.p99_ms, found.mean_ms) == (70.0, 1.1, 2.2, 3.3, 1.4)
    assert (found.errors_count, found.client_cpu_s, found.solution_s) == (6, 0.7, 1.9)
    assert (found.rows_examined, found.minor_faults_count) == (42, 41)
    assert found.status == {"Handler_read_key": 30, "Handler_read_rnd_next": 12, "Com_commit": 4}
    assert found.solution_energy == odd_window().energy
    silent = build_block(apparatus, Slot(3, "b", True, 9), 2, odd_window(), result, moved, queries=None)
    assert silent.rows_examined is None
    with pytest.raises(LoadFailed):
        build_block(apparatus, Slot(3, "b", True, 9), 2, odd_window(), result, moved, queries=0)


def test_failed_statements_fail_a_block_except_those_of_transactions() -> None:
    case = resolve(*find_condition("index"))
    result = LoadResult(queries=5, elapsed_s=2.0, errors=3)
    with pytest.raises(LoadFailed, match="3 queries failed"):
        refuse_errors(case, result)
    refuse_errors(case, replace(result, errors=0))
    for load in (replace(case.load, transaction=True), Load(kind="tpcc")):
        refuse_errors(replace(case, load=load), result)


@pytest.mark.parametrize(("code", "expected"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_a_killed_command_has_the_exit_code_of_a_shell(code: str, expected: int) -> None:
    command = executions.Command(("sh", "-c", code), may_fail=True)
    found = executions._execute(command, executions.OpenWindow())
    assert found.code == expected and found.elapsed_s > 0
    assert 0 <= found.cpu_s <= found.elapsed_s * (os.cpu_count() or 1)


def test_children_from_before_a_command_are_not_its_own() -> None:
    """One still runs; one has ended with CPU time that nobody has waited for."""
    sleeping = subprocess.Popen(["sleep", "60"])
    ended = subprocess.Popen([sys.executable, "-c", "sum(range(9_000_000))"])
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        command = executions.Command(("true",), may_fail=False)
        assert executions._execute(command, executions.OpenWindow()).cpu_s < 0.1
        assert command.leftovers_count == 0 and sleeping.poll() is None
    finally:
        sleeping.kill()
        sleeping.wait()
        ended.wait()


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("-3", -3), ("0.5", 0.5), ("ON", "ON")])
def test_a_moved_value_is_set_as_it_was(text: str, value: object) -> None:
    assert _number(text) == value and type(_number(text)) is type(value)
    assert [_text(each) for each in (True, False, 1e-7, 12, "x")] == ["ON", "OFF", "0.0000001", "12", "x"]


@pytest.mark.parametrize("seed", range(10))
def test_the_work_between_two_tallies_is_their_difference(seed: int) -> None:
    draw = np.random.default_rng(seed)
    buckets = [draw.integers(0, 50, 1024) for _ in range(2)]
    before = sysbench_gate.Tally(int(buckets[0].sum()), int(draw.integers(1, 10**9)), buckets[0])
    more = sysbench_gate.Tally(int(buckets[1].sum()), int(draw.integers(1, 10**9)), buckets[1])
    after = sysbench_gate.Tally(before.done + more.done, before.total_us + more.total_us, buckets[0] + buckets[1])
    found = after.since(before)
    assert found.queries == more.done
    assert found.mean_ms is not None and found.mean_ms * more.done == pytest.approx(more.total_us / 1e3)
    assert found.p50_ms is not None and found.p95_ms is not None and found.p50_ms <= found.p95_ms
