# SPDX-License-Identifier: Apache-2.0
"""Members and links of topologies, and impossible ones."""

from __future__ import annotations

import pytest

from powerprof.database.topology import MemberOptions, plan_topology, replication_settings
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
