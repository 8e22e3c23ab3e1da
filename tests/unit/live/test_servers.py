# SPDX-License-Identifier: Apache-2.0
"""The servers of a host: when they are queried, their role, lag and statements."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.database.replication_status import parse_status
from powerprof.diagnosis.evidence import ReplicaHost, ReplicationChannel
from powerprof.live.identity import ServerIdentity
from powerprof.live.intervals import LiveFinding, ServerState
from powerprof.live.servers import WatchedServers, _QueriedServer, _restrict_to
from powerprof.model.attribution import Thread
from powerprof.system.cgroups import UnitLabels
from tests.unit.diagnosis.examples import evidence
from tests.unit.live.records import attribution, wakeup, waking


# In ten minutes: three saved early queries, and one for each regular query.
@pytest.mark.parametrize(
    ("hurried", "least", "most"), [([False] * 120, 10, 10), ([True, False, False], 2, 2), ([True] * 120, 11, 23)]
)
def test_servers_are_queried_once_per_minute_and_early_if_the_rate_jumps(
    monkeypatch: pytest.MonkeyPatch, hurried: list[bool], least: int, most: int
) -> None:
    servers, found, at_s = WatchedServers(None, 60.0), list[float](), [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: at_s[0])
    monkeypatch.setattr(servers, "_find", lambda: found.append(at_s[0]))
    for hurry in hurried:
        servers.begin_window()
        at_s[0] += 5.0
        if hurry:
            servers.query_early()
    assert least <= len(found) <= most


def replica_status(**row: object) -> ReplicationChannel:
    base = {"Slave_IO_Running": "Yes", "Slave_SQL_Running": "Yes", "Seconds_Behind_Master": 4}
    return ReplicationChannel(status=parse_status({**base, **row}), relay_log_file=None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> _QueriedServer:
    monkeypatch.setattr("powerprof.live.servers.name_of", lambda _: "mariadbd")
    return _QueriedServer(os.getpid(), ServerIdentity("mariadbd:3307", UnitLabels("db.service")))


@pytest.mark.parametrize(
    ("channels", "role", "healthy", "lag_s"),
    [
        ([], "standalone", None, None),
        ([{}], "replica", True, 4.0),
        ([{}, {"Seconds_Behind_Master": 71}], "replica", True, 71.0),
        ([{"Slave_SQL_Running": "No"}, {}], "replica", False, 4.0),
        ([{"Slave_IO_Running": "Connecting", "Seconds_Behind_Master": None}], "replica", False, None),
        ([{"Slave_SQL_Running": None}], "replica", False, 4.0),
    ],
)
def test_a_replica_is_as_late_as_its_slowest_channel(
    server: _QueriedServer, channels: list[dict[str, object]], role: str, healthy: bool | None, lag_s: float | None
) -> None:
    here = evidence(channels_after=[replica_status(**one) for one in channels])
    state = server._state_from(here)
    assert (state.name, state.up, state.role) == ("mariadbd:3307", True, role)
    assert (state.replication_healthy, state.lag_s) == (healthy, lag_s)


def test_statements_of_a_server_are_those_since_the_last_look(server: _QueriedServer) -> None:
    def look(questions: int | None, **more: object) -> ServerState:
        return server._state_from(evidence(status_after={} if questions is None else {"Questions": questions}, **more))

    counts = [look(questions).queries_count for questions in (500, 540, 541, 3, None, 9)]
    assert counts == [None, 40, 1, 0, None, None]
    source = look(20, replicas=[ReplicaHost(server_id=2, host="r", port=1)])
    assert (source.role, source.queries_count, source.name) == ("primary", 11, "mariadbd:3307")
    assert source.place == UnitLabels("db.service")
    server.set_down()
    assert (server.state.up, server.queries) == (False, None)
    assert look(700).queries_count is None


def test_a_count_of_statements_belongs_to_one_interval() -> None:
    servers = WatchedServers(None)
    state = ServerState(name="a:1", up=True, queries_count=40)
    finding = LiveFinding(rule="x", severity="fault", text="t", server="a:1")
    fake: Any = SimpleNamespace(state=state, findings=(finding, finding), pid=1, look=lambda _: False)
    servers._servers = {os.getpid(): fake}
    states, findings = servers.end_window(attribution(), {})
    assert states == (ServerState(name="a:1", up=True, queries_count=None),)
    assert findings == (finding,)


def test_a_server_is_judged_by_its_own_wakeups() -> None:
    record = attribution(
        wakeups=[wakeup(30), wakeup(5, thread=Thread(tid=1, comm="x", pid=99))],
        wakings_without_exit=[waking(), waking(thread=Thread(tid=2, comm="y", pid=70))],
    )
    own = _restrict_to(record, [70])
    assert [one.count for one in own.wakeups] == [30]
    assert [one.thread.tid for one in own.wakings_without_exit] == [2]
