# SPDX-License-Identifier: Apache-2.0
"""Private servers that replicate from one another, or one that routes to others, started and removed together."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from powerprof.database import runtree, sql
from powerprof.database.base import StatementError
from powerprof.database.builds import ServerBuild
from powerprof.database.mysql import find_build
from powerprof.database.private_server import PrivateServer
from powerprof.database.replication_status import read_replication_status
from powerprof.database.runtree import RunTree
from powerprof.database.server_options import ServerOptions
from powerprof.database.settings import Setting
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.foreign_text import whole

if TYPE_CHECKING:
    from powerprof.database.base import Sql


Kind = Literal["standalone", "primary-replica", "primary-primary", "ring", "routed-pair"]
Role = Literal["standalone", "primary", "replica", "node", "router", "host"]
_MAX_MEMBERS = 32
_MAX_SERVER_ID = 4_294_967_295
_MARKER_SCHEMA = "powerprof_marker"
_REPLICATION_HINT = "look at the settings and statements that its condition has for it (workload.toml)"


class MemberOptions(msgspec.Struct, frozen=True):
    """Options of one member. Settings and environment are added to the common ones; the rest replaces them.

    `server_id` may be used by another member too. `connect_retry_s` is MASTER_CONNECT_RETRY.
    """

    settings: Mapping[str, Setting] = msgspec.field(default_factory=dict)
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    server_id: int | None = None
    connect_retry_s: int | None = None
    affinity: tuple[int, ...] | None = None
    binary: Path | None = None
    build: ServerBuild | None = None


class MemberPlan(msgspec.Struct, frozen=True):
    """A planned member. `source` is the name of the member that it replicates from."""

    name: str
    role: Role
    source: str | None
    server_id: int
    options: MemberOptions


def plan_topology(
    kind: Kind, count: int | None = None, members: Mapping[str, MemberOptions] | None = None
) -> list[MemberPlan]:
    """Return the members of a topology of `count` servers: at least 2 for primary-replica and ring, which default to 2.

    Their names are standalone; primary, replica-1, replica-2, …; node-1, node-2, …; or router, host-a, host-b.
    Raise UsageError for an impossible count and for options of an unknown member.
    """
    fixed = {"standalone": 1, "primary-primary": 2, "routed-pair": 3}.get(kind)
    if kind not in get_args(Kind):
        raise UsageError(f"no topology is called {kind!r}", f"one of {', '.join(get_args(Kind))}")
    count = count if count is not None else fixed or 2
    if (fixed is not None and count != fixed) or not (fixed or 2) <= count <= _MAX_MEMBERS:
        wanted = fixed if fixed is not None else f"2 to {_MAX_MEMBERS}"
        raise UsageError(f"a {kind} topology has {wanted} servers, not {count}", "topology.servers says how many")
    links = _link_members(kind, count)
    options = dict(members or {})
    unknown = sorted(set(options) - {name for name, _, _ in links})
    if unknown:
        raise UsageError(f"there is no member {unknown[0]!r}", f"there are: {', '.join(name for name, _, _ in links)}")
    plans = []
    for number, (name, role, source) in enumerate(links, 1):
        member_options = options.get(name, MemberOptions())
        server_id = member_options.server_id
        if server_id is None:
            server_id = _find_server_id(member_options.settings, number)
        if not 1 <= server_id <= _MAX_SERVER_ID:
            raise UsageError(f"{server_id} is not a server id", f"1 to {_MAX_SERVER_ID}")
        plans.append(MemberPlan(name, role, source, server_id, member_options))
    return plans


def _link_members(kind: Kind, count: int) -> list[tuple[str, Role, str | None]]:
    """Return name, role and source of each member."""
    if kind == "standalone":
        return [("standalone", "standalone", None)]
    if kind == "routed-pair":
        return [("router", "router", None), ("host-a", "host", None), ("host-b", "host", None)]
    if kind == "primary-replica":
        replicas = [f"replica-{number}" for number in range(1, count)]
        return [("primary", "primary", None), *((name, "replica", "primary") for name in replicas)]
    names = [f"node-{number}" for number in range(1, count + 1)]
    # Each node replicates from the one before it, the first from the last.
    return [(name, "node", names[number - 1]) for number, name in enumerate(names)]


def _find_server_id(settings: Mapping[str, Setting], default: int) -> int:
    for name, value in settings.items():
        if name.lower().replace("-", "_") == "server_id":
            number = None if isinstance(value, bool) else whole(str(value))
            if number is None:
                raise UsageError(f"{value!r} is not a server id", f"1 to {_MAX_SERVER_ID}")
            return number
    return default


def replication_settings(member: MemberPlan, kind: Kind) -> dict[str, Setting]:
    """Return the settings that a member needs as source and replica. Its own settings take precedence."""
    if kind in ("standalone", "routed-pair"):
        return {}
    settings: dict[str, Setting] = {
        "server-id": member.server_id,
        "log-bin": "binlog",
        "relay-log": "relay",
        "report-host": member.name,
    }
    if kind == "ring":
        # Events of one member pass through the other ones (MariaDB manual, ring replication).
        settings["log-slave-updates"] = True
    return settings


class ServerMember(msgspec.Struct, frozen=True):
    """One running server of a topology. `source` is the name of the member that it replicates from."""

    name: str
    role: Role
    source: str | None
    server_id: int
    server: PrivateServer
    namespace: int | None


class ServerTopology(Closeable):
    """A group of private servers: `with ServerTopology("primary-replica", 3) as topology:` runs one with two replicas.

    `options` apply to all members, `members` (by name, see `plan_topology`) to single ones. On entry every replica
    has applied a row that its source wrote. With `network_namespaces` each server has its own network; if the host
    cannot provide them, the servers share loopback and `notes` gives the reason. Raises UsageError, CapabilityError,
    and PowerprofError if a server does not start or a replica does not replicate.
    """

    def __init__(
        self,
        kind: Kind,
        count: int | None = None,
        *,
        options: ServerOptions | None = None,
        members: Mapping[str, MemberOptions] | None = None,
        network_namespaces: bool = False,
    ) -> None:
        self.kind = kind
        self.plans = plan_topology(kind, count, members)
        self.notes: list[str] = []
        self.members: tuple[ServerMember, ...] = ()
        self._options = options or ServerOptions()
        self._network_namespaces = network_namespaces
        self._stack = ExitStack()

    def close(self) -> None:
        """Stop and remove all servers."""
        self._stack.close()

    def __getitem__(self, name: str) -> ServerMember:
        """Return the member of that name. Raise KeyError."""
        return next(member for member in self.members if member.name == name)

    def check(self) -> None:
        """Raise PowerprofError if a member has ended."""
        for member in self.members:
            member.server.check()

    def _open(self) -> None:
        tree = self._stack.enter_context(RunTree())
        network = self._open_network()
        members: list[ServerMember] = []
        for number, plan in enumerate(self.plans):
            namespace = network.namespaces[number] if network else None
            address = network.addresses[number] if network else "127.0.0.1"
            server = PrivateServer(self._member_options(plan, namespace, address), tree=tree)
            self._stack.callback(server.stop)
            server.start()
            members.append(ServerMember(plan.name, plan.role, plan.source, plan.server_id, server, namespace))
        for member in members:
            member.server.wait_ready()
        self.members = tuple(members)
        if self.kind == "routed-pair":
            connect_router(self["router"].server, {m.name: m.server for m in self.members if m.role == "host"})
        else:
            self._start_replication()

    def _open_network(self) -> runtree.BridgedNetwork | None:
        if not self._network_namespaces or self.kind == "standalone":
            return None
        reason = runtree.find_refusal()
        if reason is not None:
            self.notes.append(f"all servers share loopback: no network namespaces, {reason}")
            return None
        return self._stack.enter_context(runtree.BridgedNetwork(len(self.plans)))

    def _member_options(self, member: MemberPlan, namespace: int | None, address: str) -> ServerOptions:
        own, common = member.options, self._options
        has_own_program = own.binary is not None or own.build is not None
        build = own.build if has_own_program else common.build
        if build is None:
            program = own if has_own_program else common
            build = find_build(program.binary)
        port = common.port if self.kind == "standalone" else "ephemeral" if namespace is None else runtree.BRIDGED_PORT
        return msgspec.structs.replace(
            common,
            name=member.name,
            port=port,
            build=build,
            namespace=namespace,
            address=address,
            partners=self.kind != "standalone",
            settings={
                **common.settings,
                **replication_settings(member, self.kind),
                **own.settings,
                **({} if self.kind == "standalone" else {"server-id": member.server_id}),
            },
            environment={**common.environment, **own.environment},
            affinity=own.affinity or common.affinity,
        )

    def _start_replication(self) -> None:
        """Start one link after the other: with duplicate server ids a later replica disconnects an earlier one."""
        deadline = time.monotonic() + self._options.timeout_s
        sources = {member.source for member in self.members if member.source}
        origins = {name: _prepare_source(self[name]) for name in sources}
        for member, plan in zip(self.members, self.plans, strict=True):
            if member.source is None:
                continue
            with self[member.source].server.connect() as source, member.server.connect() as replica:
                is_mariadb = member.server.build.family == "mariadb"
                _start_replica(replica, origins[member.source], is_mariadb, plan.options.connect_retry_s)
                _wait_for_marker(replica, _write_marker(source), member.name, deadline)


class Origin(msgspec.Struct, frozen=True):
    """A source for its replicas: address, account, and the position in its binary log where they begin."""

    host: str
    port: int
    user: str
    password: str
    file: str
    position: int

    __repr__ = object.__repr__  # without the password


def _prepare_source(source: ServerMember) -> Origin:
    """Create the replication account of a source and return the end of its binary log before any marker."""
    server = source.server
    user, password = "powerprof_repl", secrets.token_urlsafe(24)[:32]
    # A replica in another namespace has another address, and no other process is in that network.
    account = f"'{user}'@'{'%' if source.namespace is not None else '127.0.0.1'}'"
    grant = f"GRANT REPLICATION SLAVE ON *.* TO {account}"
    has_create_user = server.build.version >= ((10, 1, 3) if server.build.family == "mariadb" else (5, 7, 6))
    with server.connect() as connection:
        # The account itself is not replicated.
        sql.execute(connection, "SET SESSION sql_log_bin=0")
        if has_create_user:
            sql.execute(connection, f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{password}'", grant)
        else:
            sql.execute(connection, f"{grant} IDENTIFIED BY '{password}'")
        sql.execute(connection, "SET SESSION sql_log_bin=1")
        read_log_end = partial(sql.fetch_rows, connection, columns=2)
        answer = sql.run_first_known(read_log_end, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS") or []
    position = sql.parse_count(answer[0][1]) if answer else None
    if position is None:
        raise PowerprofError("the source writes no binary log", "set log-bin")
    return Origin(
        server.options.address, server.port or runtree.BRIDGED_PORT, user, password, str(answer[0][0]), position
    )


def _start_replica(replica: Sql, origin: Origin, is_mariadb: bool, connect_retry_s: int | None) -> None:
    """Send CHANGE MASTER and START SLAVE. The password is sent as SQL and is on no command line."""
    words = [
        f"MASTER_HOST='{origin.host}'",
        f"MASTER_PORT={origin.port}",
        f"MASTER_USER='{origin.user}'",
        f"MASTER_PASSWORD='{origin.password}'",
        f"MASTER_LOG_FILE='{origin.file}'",
        f"MASTER_LOG_POS={origin.position}",
    ]
    if connect_retry_s is not None:
        words.append(f"MASTER_CONNECT_RETRY={connect_retry_s}")
    if is_mariadb:
        # The studies use positions. With GTIDs an event that returns through a ring is not applied again.
        words.append("MASTER_USE_GTID=no")
    # MySQL 8.4 accepts only the new words, and sends a password only to a server whose public key it has.
    modern = ", ".join(word.replace("MASTER_", "SOURCE_", 1) for word in (*words, "GET_SOURCE_PUBLIC_KEY=1"))
    change = partial(sql.execute, replica)
    _run_first_known(change, f"CHANGE MASTER TO {', '.join(words)}", f"CHANGE REPLICATION SOURCE TO {modern}")
    _run_first_known(change, "START SLAVE", "START REPLICA")


def _run_first_known(change: Callable[[str], None], *statements: str) -> None:
    """Run the first statement that the server can parse."""

    def run(statement: str) -> bool:
        change(statement)
        return True

    if sql.run_first_known(run, *statements) is None:
        raise PowerprofError("the server has no statement that joins a replica to its source", "MariaDB or MySQL do")


def _write_marker(source: Sql) -> str:
    """Write a row that shows when a replica works. Return its token."""
    token = secrets.token_hex(8)
    sql.execute(
        source,
        f"CREATE DATABASE IF NOT EXISTS {_MARKER_SCHEMA}",
        f"CREATE TABLE IF NOT EXISTS {_MARKER_SCHEMA}.marker (token CHAR(16) PRIMARY KEY) ENGINE=InnoDB",
        f"INSERT INTO {_MARKER_SCHEMA}.marker VALUES ('{token}')",  # noqa: S608 - constants and hexadecimal digits
    )
    return token


def _wait_for_marker(replica: Sql, token: str, name: str, deadline: float) -> None:
    """Wait until the replica has applied the row. Raise PowerprofError for a replication error or after `deadline`."""
    query = f"SELECT COUNT(*) FROM {_MARKER_SCHEMA}.marker WHERE token='{token}'"  # noqa: S608 - as above
    change = partial(sql.execute, replica)
    restarted_s = time.monotonic()
    while True:
        try:
            if sql.fetch_scalar(replica, query):
                return
        except StatementError as error:
            if error.number not in (1049, 1146):  # The schema or the table does not exist yet.
                raise
        for status in read_replication_status(replica):
            if (status.io_state or "").startswith("Waiting to reconnect") and time.monotonic() > restarted_s + 1:
                # Another replica with its server id disconnected it. It would wait for its retry (60 s by default).
                _run_first_known(change, "STOP SLAVE", "STOP REPLICA")
                _run_first_known(change, "START SLAVE", "START REPLICA")
                restarted_s = time.monotonic()
            if status.sql_running is False and status.last_sql_error:
                number = status.last_sql_error_number
                raise PowerprofError(
                    f"{name} does not replicate: error {number}, {status.last_sql_error}", _REPLICATION_HINT
                )
            if status.io_running == "No" and status.last_io_error:
                raise PowerprofError(f"{name} does not replicate: {status.last_io_error}", _REPLICATION_HINT)
        if time.monotonic() > deadline:
            states = "; ".join(f"{row.io_state}, {row.last_io_error}" for row in read_replication_status(replica))
            raise PowerprofError(
                f"{name} did not apply its source's marker row in time ({states or 'no status'})",
                "the host may be too busy: try again when it is idle",
            )
        time.sleep(0.02)


def connect_router(router: PrivateServer, hosts: Mapping[str, PrivateServer]) -> None:
    """Register the hosts by name in a router. Raise CapabilityError if it has no Spider engine."""
    if router.build.family != "mariadb":
        raise CapabilityError("a routed pair needs MariaDB: Spider is its storage engine", "leave out --server-build")
    with router.connect() as connection:
        try:
            # The plugin creates its own system tables.
            sql.execute(connection, "INSTALL SONAME 'ha_spider'")
        except PowerprofError as error:
            raise CapabilityError(
                f"the router has no Spider engine ({error.message})", "apt install mariadb-plugin-spider"
            ) from error
        for name, server in hosts.items():
            login = server.login
            sql.execute(
                connection,
                f"CREATE SERVER `{name}` FOREIGN DATA WRAPPER mysql OPTIONS (HOST '{server.options.address}', "
                f"PORT {server.port}, USER '{login.user}', PASSWORD '{login.password}')",
            )


def create_routed_tables(connection: Sql, schema: str, tables: Mapping[str, Sequence[str]]) -> None:
    """Create a Spider table for each table of each host. The engine reads their columns from the host."""
    for host, names in tables.items():
        for name in names:
            sql.execute(
                connection,
                f'CREATE TABLE `{name}` ENGINE=SPIDER COMMENT=\'wrapper "mysql", srv "{host}", '
                f'database "{schema}", table "{name}"\'',
            )
