# SPDX-License-Identifier: Apache-2.0
"""Options of a private server."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.database import products
from powerprof.database.builds import ServerBuild
from powerprof.database.connections import check_clients
from powerprof.database.settings import Setting
from powerprof.model.identities import Family
from powerprof.system.errors import PowerprofError, UsageError, reason_of

Port = int | Literal["ephemeral"] | None


class ServerOptions(msgspec.Struct, frozen=True):
    """Options of a private server. The default has a unix socket, no TCP, and the settings that it was built with.

    Attributes:
        name: Name of its directory in the tree.
        port: TCP port on `address`; "ephemeral" chooses a free one, None disables TCP.
        connections: Number of clients that will be connected.
        settings: Settings as in my.cnf (see `mysql.format_settings`).
        environment: Variables added to those of powerprof.
        affinity: CPUs that it may use.
        family: Product. `binary` or `build` choose another program of it.
        namespace: Network namespace (see `runtree`); None uses the one of the run.
        partners: Whether it connects to other servers of its topology.
        timeout_s: Maximum time until it is ready.

    Raises UsageError for invalid values.
    """

    name: str = "server"
    port: Port = None
    connections: int = 16
    settings: Mapping[str, Setting] = msgspec.field(default_factory=dict)
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    affinity: tuple[int, ...] | None = None
    family: Family = "mysql"
    binary: Path | None = None
    build: ServerBuild | None = None
    namespace: int | None = None
    address: str = "127.0.0.1"
    partners: bool = False
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", self.name):
            raise UsageError(f"{self.name!r} cannot name a server", "lower-case letters, digits and -")
        check_clients(self.connections)
        products.product_of_family(self.family).format_settings(self.settings)
        if isinstance(self.port, int) and not 1 <= self.port <= 65535:
            raise UsageError(f"{self.port} is not a port", "1 to 65535")
        for name, value in self.environment.items():
            if not name or "=" in name or "\0" in name + value:
                raise UsageError(
                    f"{name!r} cannot be an environment variable", "a name without = and NUL, such as MALLOC_ARENA_MAX"
                )
        if self.affinity is not None:
            usable = os.sched_getaffinity(0)
            unusable = sorted(set(self.affinity) - usable)
            if unusable or not self.affinity:
                raise UsageError(
                    f"CPUs {','.join(map(str, unusable)) or '(none)'} cannot be used here",
                    f"usable: {','.join(map(str, sorted(usable)))}",
                )


def choose_port(port: Port, address: str = "127.0.0.1") -> int | None:
    """Return a free port on the address. Raise PowerprofError if `port` is taken or forbidden."""
    if port is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # The server sets it too. Without it a port counts as taken for a minute after its last connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, 0 if port == "ephemeral" else port))
        except PermissionError as error:
            raise PowerprofError(f"port {port} cannot be used ({reason_of(error)})", "use one above 1023") from error
        except OSError:
            raise port_taken_error(int(port), address) from None
        return int(probe.getsockname()[1])


def port_taken_error(port: int, address: str) -> PowerprofError:
    """Return the error for a port of another program."""
    return PowerprofError(f"port {port} on {address} is taken", f"choose another; who has it: ss -ltnp sport = :{port}")
