# SPDX-License-Identifier: Apache-2.0
"""Members and links of topologies, and impossible ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database import runtree
from powerprof.database.builds import ServerBuild
from powerprof.database.preparation import ServerOptions
from powerprof.database.topology import MemberOptions, ServerTopology, plan_topology, replication_settings
from powerprof.system.errors import UsageError


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
    topology = ServerTopology("primary-replica", 3, options=common, members={"replica-2": own})
    first, plain, changed = (topology._member_options(plan, None, "127.0.0.1") for plan in topology.plans)
    logs = {"log-bin": "binlog", "relay-log": "relay", "sync_binlog": 1, "max_connections": 5}
    assert plain.settings == {**logs, "report-host": "replica-1", "server-id": 2}
    assert changed.settings == {
        **{**logs, "relay-log": "own", "max_connections": 7},
        **{"report-host": "replica-2", "server-id": 77},
    }
    assert changed.environment == {"MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": "3"}
    assert (changed.affinity, plain.affinity, first.name) == ((0,), None, "primary")
    assert {member.port for member in (first, plain, changed)} == {"ephemeral"}
    assert topology._member_options(topology.plans[0], 9, "10.77.0.1").port == runtree.BRIDGED_PORT
    (single,) = ServerTopology("standalone", options=common).plans
    alone = ServerTopology("standalone", options=common)._member_options(single, None, "127.0.0.1")
    assert (alone.port, alone.settings, alone.partners) == (4001, common.settings, False)
