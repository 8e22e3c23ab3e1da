# SPDX-License-Identifier: Apache-2.0
"""How a private server is to run: the options, and the refusal of senseless ones."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from powerprof.database.isolation import limits
from powerprof.database.products import products
from powerprof.database.products.builds import ServerBuild
from powerprof.database.products.settings import Setting
from powerprof.errors import PowerprofError, UsageError
from powerprof.files import reason_of
from powerprof.statements.identity import Family

Port = int | Literal["ephemeral"] | None


@dataclass(frozen=True)
class ServerOptions:
    """Everything has a default: a server with a unix socket, no TCP, and the settings that it was built with.

    `name` is its directory in the tree. `port` "ephemeral" is a free one on 127.0.0.1 of the
    run's own network, None no TCP at all.
    `connections` is how many clients are going to be held open. `settings` is a my.cnf fragment (see
    `settings.setting_arguments`); `environment` is added to ours; `affinity` are the CPUs that it may use. `family` is
    the product; `binary`, `basedir` or a `build` choose another server of it. `namespace` (see `netns`) and `address`
    place it in a network of its own; with `partners` it connects to other servers of its topology. It may
    take `timeout_s` to become ready.
    Raises UsageError for senseless values.
    """

    name: str = "server"
    port: Port = None
    connections: int = 16
    settings: Mapping[str, Setting] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[int, ...] | None = None
    family: Family = "mysql"
    binary: Path | None = None
    basedir: Path | None = None
    build: ServerBuild | None = None
    namespace: int | None = None
    address: str = "127.0.0.1"
    partners: bool = False
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", self.name):
            raise UsageError(f"{self.name!r} cannot name a server", "lower-case letters, digits and -")
        limits.check_clients(self.connections)
        products.PRODUCTS[self.family].check(self.settings)
        if isinstance(self.port, int) and not 1 <= self.port <= 65535:
            raise UsageError(f"{self.port} is not a port", "1 to 65535")
        for name, value in self.environment.items():
            if not name or "=" in name or "\0" in name + value:
                raise UsageError(
                    f"{name!r} cannot be an environment variable", "a name without = and NUL, such as MALLOC_ARENA_MAX"
                )
        if self.affinity is not None:
            usable = os.sched_getaffinity(0)
            wrong = sorted(set(self.affinity) - usable)
            if wrong or not self.affinity:
                raise UsageError(
                    f"CPUs {','.join(map(str, wrong)) or '(none)'} cannot be used here",
                    f"usable: {','.join(map(str, sorted(usable)))}",
                )


def choose_port(port: Port, address: str = "127.0.0.1") -> int | None:
    """A port that is free there now. Raises PowerprofError where `port` is taken or forbidden."""
    if port is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the server does; without it a port whose last connection ended a minute ago would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, 0 if port == "ephemeral" else port))
        except PermissionError as error:
            raise PowerprofError(f"port {port} cannot be used ({reason_of(error)})", "use one above 1023") from error
        except OSError:
            raise port_taken(int(port), address) from None
        return int(probe.getsockname()[1])


def port_taken(port: int, address: str) -> PowerprofError:
    """The error for a port that another program has."""
    return PowerprofError(f"port {port} on {address} is taken", f"choose another; who has it: ss -ltnp sport = :{port}")
