# SPDX-License-Identifier: Apache-2.0
"""Servers that replicate: healthy, with a duplicated id, in namespaces, and killed at bad moments."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from powerprof.database import catalogue, sql
from powerprof.database.base import ReplicationStatus
from powerprof.database.private_server import PrivateServer
from powerprof.database.replication_status import read_replication_status
from powerprof.database.server_options import ServerOptions
from powerprof.database.topology import MemberOptions, ServerMember, ServerTopology
from powerprof.system.errors import PowerprofError
from tests.programs.waiting import wait_until
from tests.system.database.conftest import Room, Script

pytestmark = pytest.mark.usefixtures("mariadbd")


def _has(member: ServerMember, query: str) -> bool:
    try:
        with member.server.connect() as connection:
            return bool(sql.fetch_scalar(connection, query))
    except PowerprofError:
        return False


def _replication(member: ServerMember) -> list[ReplicationStatus]:
    with member.server.connect() as connection:
        return read_replication_status(connection)


def _counter(member: ServerMember, name: str) -> int:
    with member.server.connect() as connection:
        ((_, value),) = sql.fetch_rows(connection, f"SHOW GLOBAL STATUS LIKE '{name}'", columns=2)
    return int(value)


def test_a_primary_and_two_replicas(room: Room) -> None:
    with ServerTopology("primary-replica", 3) as topology:
        assert [member.name for member in topology.members] == ["primary", "replica-1", "replica-2"]
        with topology["primary"].server.connect() as connection:
            sql.execute(connection, "CREATE DATABASE shop", "CREATE TABLE shop.t (a INT)")
            sql.execute(connection, "INSERT INTO shop.t VALUES (7)")
        for name in ("replica-1", "replica-2"):
            wait_until(lambda name=name: _has(topology[name], "SELECT a = 7 FROM shop.t"), "replication")
            (status,) = _replication(topology[name])
            assert (status.io_running, status.sql_running, status.source_server_id) == ("Yes", True, 1)
            assert status.source_port == topology["primary"].server.port
            assert status.relay_log_bytes
        assert _replication(topology["primary"]) == []
        assert _counter(topology["primary"], "Slaves_connected") == 2
        names = set(topology["replica-1"].server.thread_names().values())
        assert {"thread/sql/slave_io", "thread/sql/slave_sql"} <= names
        secrets = [member.server.login.password for member in topology.members]
        assert len(set(secrets)) == 3
        topology.check()


def test_what_one_member_writes_reaches_a_ring_and_ends_there(room: Room) -> None:
    with ServerTopology("ring", 2) as topology:
        for member in topology.members:
            with member.server.connect() as connection:
                sql.execute(connection, f"CREATE DATABASE from_{member.name.replace('-', '_')}")
        for member in topology.members:
            for other in ("from_node_1", "from_node_2"):
                query = f"SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name='{other}'"
                wait_until(lambda member=member, query=query: _has(member, query), "replication")
        assert [_replication(member)[0].source_server_id for member in topology.members] == [2, 1]
        before = [_counter(member, "Binlog_bytes_written") for member in topology.members]
        time.sleep(0.5)
        assert [_counter(member, "Binlog_bytes_written") for member in topology.members] == before


def test_a_replica_with_its_sources_id_is_refused(room: Room) -> None:
    with pytest.raises(PowerprofError, match=r"replica-1 does not replicate: .*(same|equal).*server.?id"):
        ServerTopology("primary-replica", 2, members={"replica-1": MemberOptions(server_id=1)}).__enter__()


def test_one_member_that_does_not_start_ends_all(room: Room) -> None:
    with pytest.raises(PowerprofError, match="unknown variable 'no_such=1'"):
        ServerTopology("ring", 3, members={"node-3": MemberOptions(settings={"no_such": 1})}).__enter__()


def test_each_server_has_a_network_of_its_own_and_a_killed_one_is_named(room: Room, root: None) -> None:
    def interfaces(pid: int) -> dict[str, int]:
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        return {line.split(":")[0].strip(): int(line.split(":")[1].split()[0]) for line in lines}

    ours = os.readlink("/proc/self/ns/net")
    before = interfaces(os.getpid()).keys()
    with ServerTopology("primary-replica", 2, network_namespaces=True) as topology:
        assert topology.notes == []
        networks = {os.readlink(f"/proc/{member.server.pid}/ns/net") for member in topology.members}
        assert len(networks | {ours}) == 3
        assert os.readlink("/proc/self/ns/net") == ours
        assert interfaces(os.getpid()).keys() == before
        assert all(interfaces(member.server.pid)["eth0"] > 0 for member in topology.members)
        assert _replication(topology["replica-1"])[0].source_host == "10.77.0.1"
        assert not psutil.Process(topology["primary"].server.pid).username().startswith("root")
        os.kill(topology["replica-1"].server.pid, signal.SIGKILL)
        wait_until(lambda: not topology["replica-1"].server.alive(), "the end of the replica")
        with pytest.raises(PowerprofError, match=r"private server replica-1 .* was killed by SIGKILL"):
            topology.check()


_HOLD = """
    import time
    from powerprof.database.topology import ServerTopology
    with ServerTopology("primary-replica", 3, network_namespaces=True):
        print("ready", flush=True)
        time.sleep(120)
"""


def _networks(room: Room) -> set[str]:
    found = set()
    for pid in room.processes():
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("moment_s", [0.7, 2.0])
def test_kill_while_a_topology_starts(room: Room, script: Script, moment_s: float) -> None:
    process = script(_HOLD)
    time.sleep(moment_s)
    process.kill()
    process.communicate(timeout=60)
    room.wait_empty()
    assert _networks(room) == set()
    # A network without a name that is left would still show as an entry here.
    assert not list(Path("/run/netns").glob("powerprof*")) if Path("/run/netns").exists() else True


@pytest.mark.nightly
def test_the_historical_server_is_fetched_and_storms(room: Room) -> None:
    """Needs the network. 5.5.9's replicas that share an id push one another out at full speed (MySQL bug 33815)."""
    catalogue.fetch_entry(catalogue.find_server("mysql-5.5.9"), lambda question: True)
    build = catalogue.load_build("mysql-5.5.9")
    with PrivateServer(build=build, port="ephemeral") as server, server.connect() as connection:
        assert sql.fetch_scalar(connection, "SELECT @@version") == "5.5.9"
        assert os.readlink(f"/proc/{server.pid}/exe") == str(build.binary)
        assert psutil.Process(server.pid).name() == "mysqld"
    members = {name: MemberOptions(server_id=2) for name in ("replica-1", "replica-2")}
    options = ServerOptions(build=build)
    with ServerTopology("primary-replica", 3, options=options, members=members) as topology:
        rates = []
        for _ in range(10):
            # Metastable: the storm may end, a restart of one replica begins it anew.
            with topology["replica-1"].server.connect() as connection:
                sql.execute(connection, "STOP SLAVE", "START SLAVE")
            before = _counter(topology["primary"], "Connections")
            time.sleep(1)
            rates.append(_counter(topology["primary"], "Connections") - before)
        assert max(rates) >= 20, rates
