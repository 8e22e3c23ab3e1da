# SPDX-License-Identifier: Apache-2.0
"""Servers of topologies, their CPUs, plans and settings."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from powerprof.cli.bench_options import cpu_sets
from powerprof.database.topology import plan_topology
from powerprof.experiment.bench_data import PlanMismatch, check_plan, plan_text
from powerprof.experiment.bench_options import BenchOptions, check_supported, member_cpus
from powerprof.experiment.bench_settings import _checked, find_global_change, literal
from powerprof.experiment.members_meter import list_relay_logs
from powerprof.experiment.records import StormShare
from powerprof.report.topology import topology_of
from powerprof.system.errors import UsageError
from powerprof.workloads.catalogue import find_one
from powerprof.workloads.definition import Explain, PlanStep
from powerprof.workloads.reading import resolve
from tests.unit.experiment import builders

REF = {"id": 1, "select_type": "SIMPLE", "table": "city", "type": "ref", "key": "name_btree", "rows": "5"}
SCAN = {"id": 1, "select_type": "SIMPLE", "table": "city", "type": "ALL", "key": None, "rows": "20395"}


def _wanted(**step: object) -> Explain:
    return Explain(statement="SELECT 1", plan=[PlanStep(table="city", **step)])  # type: ignore[arg-type]


def test_a_required_plan_passes() -> None:
    check_plan("index", _wanted(type=["ref"], key="name_btree"), [REF])
    check_plan("no-index", _wanted(type=["ALL", "index"], select_type=["SIMPLE"]), [SCAN])
    check_plan("any", Explain(statement="SELECT 1"), [SCAN])


@pytest.mark.parametrize("step", [{"type": ["ref"]}, {"key": "name_btree"}, {"select_type": ["PRIMARY"]}])
def test_another_plan_is_refused_and_shown(step: dict[str, object]) -> None:
    with pytest.raises(PlanMismatch, match=r"found city ALL, 20,395 rows"):
        check_plan("index", _wanted(**step), [SCAN])


def test_a_plan_in_words() -> None:
    assert plan_text(REF) == "city ref on name_btree, 5 rows"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "ON"),
        (16, "16"),
        (0.5, "0.5"),
        ("it's", "'it''s'"),
        ("a\\b", "'a\\\\b'"),
        (None, "DEFAULT"),
        (b"ON", "'ON'"),
    ],
)
def test_values_are_written_for_set_global(value: object, text: str) -> None:
    assert literal(value) == text


def test_names_cannot_carry_sql() -> None:
    assert _checked("query-cache-size") == "query_cache_size"
    with pytest.raises(UsageError):
        _checked("x = 1; DROP TABLE t")


@pytest.mark.parametrize(
    "text",
    [
        "set a = 1, GLOBAL b = 2",
        "SET PERSIST x = 1",
        "SET PERSIST_ONLY x = 1",
        "RESET PERSIST",
        "SET @@GLOBAL . x := 1",
        "SET s = 'x, y', @@global.x = 1",
        "SET/**/GLOBAL/**/x = 1",
        "SET -- now\n GLOBAL # here\n x = 1",
        "/*!50000 SET GLOBAL x = 1 */",
        "SET /*M!100000 GLOBAL */ x = 1",
        "SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET STATEMENT a = 1 FOR SET GLOBAL x = 1",
        "CREATE PROCEDURE p() BEGIN SET @@global.x = 1; END",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO SET GLOBAL x = 1",
        "PREPARE p FROM 'SET GLOBAL x = 1'",
        'EXECUTE IMMEDIATE "SET GLOBAL x = 1"',
    ],
)
def test_sql_with_a_global_variable_is_found(text: str) -> None:
    assert find_global_change(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT @@global.x",
        "SET @a = @@global.x, b = 2",
        "UPDATE t SET a = 1, global = 2",
        "INSERT INTO t VALUES ('set global warming')",
        "-- SET GLOBAL x = 1\nSELECT 1",
        "CREATE TABLE t (a CHAR(3) CHARACTER SET utf8, global INT)",
        "CREATE TABLE t (a SET('x'), global INT)",
    ],
)
def test_sql_without_a_global_variable_passes(text: str) -> None:
    assert find_global_change(text) is None


FIRST = min(os.sched_getaffinity(0))
LAST = max(os.sched_getaffinity(0))


def test_cpu_lists_apply_to_all_servers_or_to_named_ones() -> None:
    assert cpu_sets(None, "--server-cpus") == (None, {})
    assert cpu_sets(f"{FIRST}", "--server-cpus") == ((FIRST,), {})
    both = tuple(sorted({FIRST, LAST}))
    assert cpu_sets(f"router={FIRST},host={FIRST},{LAST}", "--server-cpus") == (
        None,
        {"router": (FIRST,), "host": both},
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0,host=1", "is not a list of CPUs per server"),
        ("=0", "is not a list of CPUs per server"),
        ("host=0,host=1", "is not a list of CPUs per server"),
        ("host=", "is not a list of CPUs"),
        ("host=x", "--server-cpus host= x is not a list of CPUs"),
        ("host=60000", "some are not usable here"),
    ],
)
def test_malformed_cpu_lists_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        cpu_sets(text, "--server-cpus")


def test_a_name_has_precedence_over_a_role() -> None:
    options = BenchOptions(member_cpus={"host": (1,), "host-b": (2,)})
    found = {member.name: member_cpus(member, options) for member in plan_topology("routed-pair")}
    assert found == {"router": None, "host-a": (1,), "host-b": (2,)}


def test_an_unknown_server_is_refused() -> None:
    case = resolve(*find_one("tpcc-routed-pair"))
    check_supported([case], BenchOptions(member_cpus={"router": (0,), "host": (0,)}), apart=True)
    with pytest.raises(UsageError, match=r"--server-cpus replica=…: tpcc:tpcc-routed-pair has no such server"):
        check_supported([case], BenchOptions(member_cpus={"replica": (0,)}), apart=True)


def test_relay_logs_are_counted_by_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "relay.000007").write_bytes(b"x" * 70)
    (tmp_path / "relay.index").write_bytes(b"x" * 999)
    (tmp_path / "binlog.000007").write_bytes(b"x" * 999)
    assert list_relay_logs(tmp_path) == {7: 70}
    assert list_relay_logs(tmp_path / "gone") == {}


def storm(began: bool, raged: float, counter_hz: float) -> StormShare:
    return StormShare(began=began, raged_percent=raged, restarts_count=2, counter="Connections", counter_hz=counter_hz)


def test_a_storm_is_reported_by_its_share_of_the_time() -> None:
    raging = [msgspec.structs.replace(builders.block(n, "b"), storm=storm(True, 80.0 + n, 600.0)) for n in range(3)]
    assert "was active 81 % of the time and was restarted 6 times" in " ".join(topology_of("x", raging))
    calm = [msgspec.structs.replace(builders.block(0, "b"), storm=storm(False, 0.0, 0.07))]
    assert "backs off (Connections 0.07/s)" in " ".join(topology_of("x", calm))
