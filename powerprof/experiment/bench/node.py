# SPDX-License-Identifier: Apache-2.0
"""The server of some conditions, or the topology of one, and whether it sleeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from powerprof.experiment.bench.settings import GlobalSettings

if TYPE_CHECKING:
    from powerprof.database.clients.base import Server
    from powerprof.database.private.server import PrivateServer


@dataclass
class Node:
    """One server, or the first of a topology with all its members, and what was changed in it."""

    server: Server
    settings: GlobalSettings
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
