# SPDX-License-Identifier: Apache-2.0
"""Private servers that replicate from one another, all started and all removed together."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from powerprof.database.clients import sql
from powerprof.database.isolation import netns
from powerprof.database.isolation.runtree import RunTree
from powerprof.database.private import replication
from powerprof.database.private.replication import Origin
from powerprof.database.private.server import PrivateServer
from powerprof.database.products.builds import find_build
from powerprof.database.products.options import (
    Kind,
    MemberOptions,
    MemberPlan,
    Role,
    ServerOptions,
    plan_topology,
    replication_settings,
)
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql
    from powerprof.database.private.server import PrivateServer


# A router before two servers: MariaDB's Spider engine, whose tables are those of other servers.

_PACKAGE = "apt install mariadb-plugin-spider"


def connect_router(router: PrivateServer, hosts: Mapping[str, PrivateServer]) -> None:
    """Make the router know the hosts by their names. Raises CapabilityError where it has no Spider."""
    if router.build.family != "mariadb":
        raise CapabilityError("a routed pair needs MariaDB: Spider is its storage engine", "leave out --server-build")
    with router.connect() as connection:
        try:
            # Its own statements make the tables in which it keeps what it knows.
            sql.execute(connection, "INSTALL SONAME 'ha_spider'")
        except PowerprofError as error:
            raise CapabilityError(f"the router has no Spider engine ({error.message})", _PACKAGE) from error
        for name, server in hosts.items():
            login = server.login
            sql.execute(
                connection,
                f"CREATE SERVER `{name}` FOREIGN DATA WRAPPER mysql OPTIONS (HOST '{server.options.address}', "
                f"PORT {server.port}, USER '{login.user}', PASSWORD '{login.password}')",
            )


def create_routed_tables(connection: Sql, schema: str, tables: Mapping[str, Sequence[str]]) -> None:
    """Make each table a Spider table of the host that has it; their columns are asked of the host."""
    for host, names in tables.items():
        for name in names:
            sql.execute(
                connection,
                f'CREATE TABLE `{name}` ENGINE=SPIDER COMMENT=\'wrapper "mysql", srv "{host}", '
                f'database "{schema}", table "{name}"\'',
            )


_REPLICATOR = "powerprof_repl"


@dataclass(frozen=True)
class ServerMember:
    """One running server of a topology. `source` is the name of the member that it replicates from."""

    name: str
    role: Role
    source: str | None
    server_id: int
    server: PrivateServer
    namespace: int | None


class ServerTopology(Closeable):
    """`with Topology("primary-replica", 3) as topology:` runs a primary and two replicas that replicate.

    `options` are for all members, `members` (by name, see `plans.plan`) for single ones. On entry every replica
    has applied a row that its source wrote. With `network_namespaces` each server has a network of its own;
    where the host cannot, they share loopback and `notes` says why. Raises UsageError, CapabilityError, and
    PowerprofError where a server does not start or a replica does not replicate.
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
        """End and remove all servers."""
        self._stack.close()

    def __getitem__(self, name: str) -> ServerMember:
        """The member of that name. Raises KeyError."""
        return next(member for member in self.members if member.name == name)

    def check(self) -> None:
        """Raises PowerprofError where a member has ended."""
        for member in self.members:
            member.server.check()

    def _open(self) -> None:
        tree = self._stack.enter_context(RunTree())
        network = self._network()
        started: list[ServerMember] = []
        for number, planned in enumerate(self.plans):
            namespace = network.namespaces[number] if network else None
            address = network.addresses[number] if network else "127.0.0.1"
            server = PrivateServer(self._server_options(planned, namespace, address), tree=tree)
            self._stack.callback(server.stop)
            server.start()
            started.append(
                ServerMember(planned.name, planned.role, planned.source, planned.server_id, server, namespace)
            )
        for member in started:
            member.server.wait_ready()
        self.members = tuple(started)
        self._join()

    def _network(self) -> netns.BridgedNetwork | None:
        if not self._network_namespaces or self.kind == "standalone":
            return None
        reason = netns.find_refusal()
        if reason is not None:
            self.notes.append(f"all servers share loopback: no network namespaces, {reason}")
            return None
        return self._stack.enter_context(netns.BridgedNetwork(len(self.plans)))

    def _server_options(self, member: MemberPlan, namespace: int | None, address: str) -> ServerOptions:
        own, common = member.options, self._options
        other = own.binary is not None or own.basedir is not None or own.build is not None
        build = own.build if other else common.build
        if build is None:
            chosen = own if other else common
            build = find_build(chosen.binary, chosen.basedir)
        port = common.port if self.kind == "standalone" else "ephemeral" if namespace is None else netns.BRIDGED_PORT
        return dataclasses.replace(
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

    def _join(self) -> None:
        """One link after the other: with duplicate server ids a later replica pushes an earlier one out."""
        if self.kind == "routed-pair":
            hosts = {member.name: member.server for member in self.members if member.role == "host"}
            connect_router(self["router"].server, hosts)
            return
        deadline = time.monotonic() + self._options.timeout_s
        origins = {name: _origin(self[name]) for name in {member.source for member in self.members if member.source}}
        for member, planned in zip(self.members, self.plans, strict=True):
            if member.source is None:
                continue
            with self[member.source].server.connect() as there, member.server.connect() as here:
                mariadb = member.server.build.family == "mariadb"
                replication.point_at(here, origins[member.source], mariadb, planned.options.connect_retry_s)
                replication.wait_marker(here, replication.write_marker(there), member.name, deadline)


def _origin(source: ServerMember) -> Origin:
    """Make the replication account of a source, and note where its binary log ends before any marker."""
    server = source.server
    account = (_REPLICATOR, secrets.token_urlsafe(24)[:32])
    modern = server.build.version >= ((10, 1, 3) if server.build.family == "mariadb" else (5, 7, 6))
    with server.connect() as connection:
        # Within namespaces of their own a replica comes from another address, and nobody else is there.
        replication.make_account(connection, *account, "%" if source.namespace is not None else "127.0.0.1", modern)
        file, position = replication.position(connection)
    return Origin(server.options.address, server.port or netns.BRIDGED_PORT, *account, file, position)
