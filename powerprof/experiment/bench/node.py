# SPDX-License-Identifier: Apache-2.0
"""The server of some conditions, or the topology of one, and whether it sleeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from powerprof.experiment.bench.settings import ServerSettings

if TYPE_CHECKING:
    from powerprof.database.clients.base import Server
    from powerprof.database.isolation.runtree import RunTree
    from powerprof.database.private.server import PrivateServer
    from powerprof.experiment.bench.options import BenchOptions
    from powerprof.workloads.reading import Case

_SPARE_CONNECTIONS = 8


@dataclass
class Node:
    """One server, or the first of a topology with all its members, and what was changed in it."""

    server: Server
    settings: ServerSettings
    members: Mapping[str, Server]
    asleep: bool = False
    generation: int = 1
    made: list[str] = field(default_factory=list)

    @property
    def pids(self) -> tuple[int, ...]:
        """Their processes on this host."""
        return tuple(pid for server in self.members.values() if (pid := server.pid) is not None)

    def sleep(self) -> None:
        """Stop private servers by SIGSTOP, so that their own wake-ups are in no other condition's figures."""
        if self.server.private and not self.asleep:
            self.asleep = True
            for server in self.members.values():
                private(server).pause()

    def wake(self) -> None:
        """Let them go on."""
        if self.asleep:
            self.asleep = False
            for server in self.members.values():
                private(server).resume()


def private(server: Server) -> PrivateServer:
    """A server of a node whose first one is private: then all are."""
    from powerprof.database.private.server import PrivateServer

    if not isinstance(server, PrivateServer):
        raise RuntimeError(f"{server.version} is not ours to stop")
    return server


def start(
    case: Case, cases: Sequence[Case], name: str, options: BenchOptions, stack: ExitStack, tree: RunTree
) -> tuple[Mapping[str, Server], Sequence[str]]:
    """The private server of a condition, or all of its topology with the one under load first, and notes on them.

    It has room for the connections of all `cases`, any of which may use it.
    """
    from powerprof.database.fetched import historical
    from powerprof.database.private.server import PrivateServer
    from powerprof.database.private.topology import ServerTopology
    from powerprof.database.products.options import ServerOptions
    from powerprof.database.products.plans import MemberOptions, plan
    from powerprof.experiment.bench.options import cpus_of
    from powerprof.workloads.definition import TopologyMember

    most = max(other.load.clients for other in cases)
    wanted_options = ServerOptions(
        name=name,
        family=case.server.kind,
        settings=case.server.settings,
        environment=case.server.environment,
        port="ephemeral" if any(other.load.tcp for other in cases) else None,
        connections=most + _SPARE_CONNECTIONS,
        affinity=options.server_cpus,
        binary=options.server_binary,
        basedir=options.server_basedir,
        build=historical.build(case.server.build) if case.server.build else options.server_build,
    )
    wanted = case.topology
    if wanted.kind == "standalone":
        return {name: stack.enter_context(PrivateServer(wanted_options, tree=tree))}, ()
    affinities = {member.name: cpus_of(member, options) for member in plan(wanted.kind, wanted.count)}
    declared = {**{name: TopologyMember() for name in affinities}, **wanted.members}
    members = {
        name: MemberOptions(
            settings=own.my_cnf,
            environment=own.environment,
            server_id=own.server_id,
            connect_retry_s=own.connect_retry_s,
            affinity=affinities.get(name),
        )
        for name, own in declared.items()
    }
    topology = stack.enter_context(
        ServerTopology(
            wanted.kind,
            wanted.count,
            options=wanted_options,
            members=members,
            network_namespaces=options.network_namespaces,
        )
    )
    return {member.name: member.server for member in topology.members}, topology.notes
