# SPDX-License-Identifier: Apache-2.0
"""Members and links of topologies, and impossible ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.database import runtree, topology
from powerprof.database.base import StatementError
from powerprof.database.builds import ServerBuild
from powerprof.database.server_options import ServerOptions
from powerprof.database.topology import MemberOptions, ServerTopology, plan_topology, replication_settings
from powerprof.system.errors import PowerprofError, UsageError
from tests.programs.answers import Answers


def test_each_kind_has_its_members_and_links() -> None:
    def links(kind: str, count: int | None = None) -> list[tuple[str, str, str | None, int]]:
        return [(one.name, one.role, one.source, one.server_id) for one in plan_topology(kind, count)]  # type: ignore[arg-type]

    assert links("standalone") == [("standalone", "standalone", None, 1)]
    assert links("primary-replica", 3) == [
        ("primary", "primary", None, 1),
        ("replica-1", "replica", "primary", 2),
        ("replica-2", "replica", "primary", 3),
    ]
    assert links("primary-primary") == [("node-1", "node", "node-2", 1), ("node-2", "node", "node-1", 2)]
    assert [source for _, _, source, _ in links("ring", 4)] == ["node-4", "node-1", "node-2", "node-3"]


def test_server_ids_may_be_the_same() -> None:
    same = plan_topology("primary-replica", 3, {"replica-2": MemberOptions(server_id=2)})
    assert [one.server_id for one in same] == [1, 2, 2]
    same = plan_topology("primary-replica", 3, {"replica-2": MemberOptions(settings={"server_id": "2"})})
    assert [one.server_id for one in same] == [1, 2, 2]


@pytest.mark.parametrize(
    ("kind", "count", "members"),
    [
        ("star", None, {}),
        ("standalone", 2, {}),
        ("primary-primary", 3, {}),
        ("ring", 1, {}),
        ("ring", 33, {}),
        ("primary-replica", 0, {}),
        ("primary-replica", -1, {}),
        ("ring", 2, {"node-3": MemberOptions()}),
        ("ring", 2, {"node-1": MemberOptions(server_id=0)}),
        ("ring", 2, {"node-1": MemberOptions(server_id=2**32)}),
        ("ring", 2, {"node-1": MemberOptions(settings={"server-id": "x"})}),
        ("ring", 2, {"node-1": MemberOptions(settings={"server-id": True})}),
    ],
)
def test_what_cannot_be_is_refused(kind: str, count: int | None, members: dict[str, MemberOptions]) -> None:
    with pytest.raises(UsageError):
        plan_topology(kind, count, members)  # type: ignore[arg-type]


def test_only_a_ring_passes_on_what_it_got() -> None:
    (ring,) = {replication_settings(one, "ring").get("log-slave-updates") for one in plan_topology("ring", 3)}
    assert ring is True
    assert "log-slave-updates" not in replication_settings(plan_topology("primary-primary")[0], "primary-primary")
    assert replication_settings(plan_topology("standalone")[0], "standalone") == {}


BUILD = ServerBuild(Path("/usr/sbin/mariadbd"), "mariadb", (10, 11, 9), "Ver")


def test_a_members_own_options_take_precedence() -> None:
    own = MemberOptions(
        settings={"relay-log": "own", "max_connections": 7},
        environment={"MALLOC_ARENA_MAX": "1"},
        server_id=77,
        affinity=(0,),
    )
    common = ServerOptions(
        port=4001,
        settings={"max_connections": 5, "sync_binlog": 1},
        environment={"MALLOC_ARENA_MAX": "2", "MALLOC_TOP_PAD_": "3"},
        build=BUILD,
    )
    servers = ServerTopology("primary-replica", 3, options=common, members={"replica-2": own})
    first, plain, changed = (servers._member_options(plan, None, "127.0.0.1") for plan in servers.plans)
    logs = {"log-bin": "binlog", "relay-log": "relay", "sync_binlog": 1, "max_connections": 5}
    assert plain.settings == {**logs, "report-host": "replica-1", "server-id": 2}
    assert changed.settings == {
        **{**logs, "relay-log": "own", "max_connections": 7},
        **{"report-host": "replica-2", "server-id": 77},
    }
    assert changed.environment == {"MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": "3"}
    assert (changed.affinity, plain.affinity, first.name) == ((0,), None, "primary")
    assert {member.port for member in (first, plain, changed)} == {"ephemeral"}
    assert servers._member_options(servers.plans[0], 9, "10.77.0.1").port == runtree.BRIDGED_PORT
    (single,) = ServerTopology("standalone", options=common).plans
    alone = ServerTopology("standalone", options=common)._member_options(single, None, "127.0.0.1")
    assert (alone.port, alone.settings, alone.partners) == (4001, common.settings, False)


ORIGIN = topology.Origin("10.77.0.1", 3307, "repl", "s3cret", "binlog.000004", 4711)
_OLD = (
    "CHANGE MASTER TO MASTER_HOST='10.77.0.1', MASTER_PORT=3307, MASTER_USER='repl', MASTER_PASSWORD='s3cret', "
    "MASTER_LOG_FILE='binlog.000004', MASTER_LOG_POS=4711"
)


@pytest.mark.parametrize("is_mariadb", [True, False])
@pytest.mark.parametrize("retry_s", [None, 7])
def test_a_replica_begins_at_the_position_of_its_source(is_mariadb: bool, retry_s: int | None) -> None:
    replica = Answers({})
    topology._start_replica(replica, ORIGIN, is_mariadb, retry_s)
    retry, gtid = ", MASTER_CONNECT_RETRY=7" * (retry_s is not None), ", MASTER_USE_GTID=no" * is_mariadb
    assert replica.sent == [f"{_OLD}{retry}{gtid}", "START SLAVE"]
    assert "s3cret" not in repr(ORIGIN)


def test_a_new_release_gets_its_own_words() -> None:
    unknown = StatementError("syntax", None, 1064)
    replica = Answers({"CHANGE MASTER": unknown, "START SLAVE": unknown})
    topology._start_replica(replica, ORIGIN, False, None)
    new = _OLD.replace("CHANGE MASTER TO", "CHANGE REPLICATION SOURCE TO").replace(" MASTER_", " SOURCE_")
    assert replica.sent[1::2] == [f"{new}, GET_SOURCE_PUBLIC_KEY=1", "START REPLICA"]
    with pytest.raises(PowerprofError, match="no statement that joins a replica"):
        topology._start_replica(Answers({"CHANGE": unknown}), ORIGIN, False, None)


@pytest.mark.parametrize(
    ("family", "version", "creates"),
    [
        ("mariadb", (10, 1, 3), True),
        ("mariadb", (10, 1, 2), False),
        ("mysql", (5, 7, 6), True),
        ("mysql", (5, 7, 5), False),
    ],
)
@pytest.mark.parametrize("namespace", [None, 9])
def test_a_source_has_an_account_for_its_replicas(
    family: str, version: tuple[int, int, int], creates: bool, namespace: int | None
) -> None:
    answers = Answers({"SHOW MASTER STATUS": [("binlog.000004", "4711", "", "")]})
    server = SimpleNamespace(
        connect=lambda: answers,
        build=SimpleNamespace(family=family, version=version),
        options=SimpleNamespace(address="10.77.0.1"),
        port=None if namespace else 4001,
    )
    member: Any = SimpleNamespace(server=server, namespace=namespace)
    origin = topology._prepare_source(member)
    assert (origin.host, origin.port) == ("10.77.0.1", 3306 if namespace else 4001)
    assert (origin.file, origin.position, len(origin.password)) == ("binlog.000004", 4711, 32)
    host = "%" if namespace else "127.0.0.1"
    grant = f"GRANT REPLICATION SLAVE ON *.* TO 'powerprof_repl'@'{host}'"
    expected = [f"CREATE USER IF NOT EXISTS 'powerprof_repl'@'{host}' IDENTIFIED BY '{origin.password}'", grant]
    assert answers.sent[1:-2] == (expected if creates else [f"{grant} IDENTIFIED BY '{origin.password}'"])
    assert (answers.sent[0], answers.sent[-2]) == ("SET SESSION sql_log_bin=0", "SET SESSION sql_log_bin=1")
    server.connect = lambda: Answers({})
    with pytest.raises(PowerprofError, match="writes no binary log"):
        topology._prepare_source(member)
