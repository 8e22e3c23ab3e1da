# SPDX-License-Identifier: Apache-2.0
"""A private PostgreSQL: its rights, its processes, its end; and the comparison that the study's page tells of."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import janitor, postgresql, sql
from powerprof.database.base import StatementError
from powerprof.database.connections import IdleConnections
from powerprof.database.private_server import PrivateServer
from powerprof.system.errors import CapabilityError
from powerprof.system.server_roles import read_roles
from tests.conftest import Cli


@pytest.fixture(scope="module")
def build() -> None:
    """The host has a PostgreSQL."""
    try:
        postgresql.find_build()
    except CapabilityError as error:
        pytest.skip(f"no capability: PostgreSQL ({error.hint})")


@pytest.fixture(scope="module")
def server(build: None, shared_cache: Path) -> Iterator[PrivateServer]:
    """One for all tests here."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(shared_cache))
        with PrivateServer(family="postgresql", connections=8) as running:
            yield running


def test_it_runs_as_no_root_and_its_account_is_no_superuser(server: PrivateServer) -> None:
    assert server.version.startswith("PostgreSQL ")
    for pid in postgresql.list_processes(server.pid):
        assert Path(f"/proc/{pid}").stat().st_uid != 0
    with server.connect() as connection:
        found = dict(sql.fetch_rows(connection, "SELECT usename, usesuper FROM pg_user"))
        assert found == {"postgres": "t", "powerprof": "f"}
        for statement in (
            "COPY pg_class TO PROGRAM 'cat'",
            "COPY pg_class TO '/tmp/x'",
            "SELECT pg_read_file('/etc/passwd')",
        ):
            with pytest.raises(StatementError, match=r"42501"):
                sql.execute(connection, statement)
        with pytest.raises(StatementError, match=r"SELECT failed \(division by zero \[22012\]\)"):
            sql.fetch_scalar(connection, "SELECT 1/0")
        # After a refusal the connection is as good as before.
        assert sql.fetch_scalar(connection, "SELECT 6 * 7") == "42"


def test_its_processes_are_named_by_their_titles(server: PrivateServer) -> None:
    with server.connect(database="template1"), IdleConnections(server, 3) as clients:
        assert clients.lost_count() == 0
        names = server.thread_names()
    assert server.pid not in names
    said = sorted(names.values())
    assert said.count(f"backend of postgres for {server.login.user}") == 3
    assert said.count(f"backend of template1 for {server.login.user}") == 1
    assert {"checkpointer", "background writer", "walwriter"} <= set(said)


def test_nothing_of_it_is_left_not_even_a_busy_process(build: None) -> None:
    with PrivateServer(family="postgresql") as server:
        busy = server.connect()
        pid = int(str(sql.fetch_scalar(busy, "SELECT pg_backend_pid()")))
        tree = server.tree.path
        # As it is when powerprof was killed: the kernel has killed the first process, the others go on.
        assert pid in janitor.marked_pids(str(tree))
        assert read_roles([pid]) == {pid: f"backend of postgres for {server.login.user}"}
    assert not tree.exists()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_index_saves_cpu_time_and_the_plans_are_saved(powerprof_cli: Cli, build: None, sysbench: Path) -> None:
    record = _compared(powerprof_cli, "pg:index", "pg:no-index")
    plans = {plan["arm"]: plan["rows"][0] for plan in record["plans"]}
    assert plans["a"]["key"] == "name_btree"
    assert plans["b"]["type"] == "Seq Scan"
    # The two take turns within a window: at the gate each query is counted, and none is cut at an edge.
    assert record["options"]["turn_s"] > 0
    assert record["blocks"][0]["window"]["window_s"] > 0.5
    assert _times_as_much(record) > 2


def _compared(cli: Cli, a: str, b: str) -> dict[str, Any]:
    options = ["--pairs", "3", "--duration", "0.6", "--meter", "none", "--no-save", "--json", "-"]
    done = cli(["compare", a, b, *options])
    assert done.code == 0, done.err
    record: dict[str, Any] = json.loads(done.out)
    for block in record["blocks"]:
        # Poisson arrivals of a rate: what ended in the window is near what was offered.
        assert 0.5 < block["queries"] / (block["offered_hz"] * block["window"]["window_s"]) < 1.5
    return record


def _times_as_much(record: dict[str, Any]) -> float:
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    server = metrics["c0_ms_per_query_server"]
    return float(server["b"]["mean"] / server["a"]["mean"])


@pytest.mark.parametrize("condition", [pytest.param("no-index", marks=pytest.mark.nightly), "pgbench-no-index"])
def test_whole_windows_count_what_the_client_was_answered(
    powerprof_cli: Cli, build: None, sysbench: Path, condition: str
) -> None:
    options = [*("--rate", "60", "--repeat", "2", "--duration", "1", "--meter", "none", "--no-save", "--json", "-")]
    done = powerprof_cli(["run", f"pg:{condition}", *options])
    assert done.code == 0, done.err
    said = {metric["name"]: metric["estimate"]["mean"] for metric in json.loads(done.out)["metrics"]}
    # 60 expected, ± 8 by chance.
    assert 30 < said["queries_hz"] < 90
    assert said["latency_p50_ms"] > 0
    assert said["c0_ms_per_query_server"] > 0.5
