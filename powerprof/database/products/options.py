# SPDX-License-Identifier: Apache-2.0
"""How a private server is to run: the options, and the refusal of senseless ones."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from powerprof.database.isolation import limits
from powerprof.database.products import products
from powerprof.database.products.builds import ServerBuild
from powerprof.database.products.products import Setting
from powerprof.statements.text import Family
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import reason_of, whole

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
            raise port_taken_error(int(port), address) from None
        return int(probe.getsockname()[1])


def port_taken_error(port: int, address: str) -> PowerprofError:
    """The error for a port that another program has."""
    return PowerprofError(f"port {port} on {address} is taken", f"choose another; who has it: ss -ltnp sport = :{port}")


# Which servers a topology has and who replicates from whom: plain data, checked before anything starts.

Kind = Literal["standalone", "primary-replica", "primary-primary", "ring", "routed-pair"]
Role = Literal["standalone", "primary", "replica", "node", "router", "host"]
_MAX_MEMBERS = 32


@dataclass(frozen=True)
class MemberOptions:
    """What one member has beside the options of all: settings come on top, the rest instead.

    `server_id` may be one that another member has. `connect_retry_s` is MASTER_CONNECT_RETRY.
    """

    settings: Mapping[str, Setting] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    server_id: int | None = None
    connect_retry_s: int | None = None
    affinity: tuple[int, ...] | None = None
    binary: Path | None = None
    basedir: Path | None = None
    build: ServerBuild | None = None


@dataclass(frozen=True)
class MemberPlan:
    """One member: `source` is the name of the member that it replicates from."""

    name: str
    role: Role
    source: str | None
    server_id: int
    options: MemberOptions


def plan_topology(
    kind: Kind, count: int | None = None, members: Mapping[str, MemberOptions] | None = None
) -> list[MemberPlan]:
    """The members of a topology. `count` is all of them: 2 or more for primary-replica and ring, whose default is 2.

    They are called standalone; primary, replica-1, replica-2, …; node-1, node-2, …; or router, host-a, host-b. Raises
    UsageError for a count that the kind cannot have and for options of a member that there is not.
    """
    fixed = {"standalone": 1, "primary-primary": 2, "routed-pair": 3}.get(kind)
    if kind not in get_args(Kind):
        raise UsageError(f"no topology is called {kind!r}", f"one of {', '.join(get_args(Kind))}")
    count = count if count is not None else fixed or 2
    if (fixed is not None and count != fixed) or not (fixed or 2) <= count <= _MAX_MEMBERS:
        wanted = fixed if fixed is not None else f"2 to {_MAX_MEMBERS}"
        raise UsageError(f"a {kind} topology has {wanted} servers, not {count}", "topology.servers says how many")
    links = _links(kind, count)
    options = dict(members or {})
    unknown = sorted(set(options) - {name for name, _, _ in links})
    if unknown:
        raise UsageError(f"there is no member {unknown[0]!r}", f"there are: {', '.join(name for name, _, _ in links)}")
    made = []
    for number, (name, role, source) in enumerate(links, 1):
        own = options.get(name, MemberOptions())
        identifier = own.server_id if own.server_id is not None else _server_id(own.settings, number)
        if not 1 <= identifier <= 4_294_967_295:
            raise UsageError(f"{identifier} is not a server id", "1 to 4294967295")
        made.append(MemberPlan(name, role, source, identifier, own))
    return made


def _links(kind: Kind, count: int) -> list[tuple[str, Role, str | None]]:
    if kind == "standalone":
        return [("standalone", "standalone", None)]
    if kind == "routed-pair":
        return [("router", "router", None), ("host-a", "host", None), ("host-b", "host", None)]
    if kind == "primary-replica":
        replicas = [f"replica-{number}" for number in range(1, count)]
        return [("primary", "primary", None), *((name, "replica", "primary") for name in replicas)]
    names = [f"node-{number}" for number in range(1, count + 1)]
    # Each replicates from the one before it, the first from the last.
    return [(name, "node", names[number - 1]) for number, name in enumerate(names)]


def _server_id(settings: Mapping[str, Setting], default: int) -> int:
    for name, value in settings.items():
        if name.lower().replace("-", "_") == "server_id":
            number = None if isinstance(value, bool) else whole(str(value))
            if number is None:
                raise UsageError(f"{value!r} is not a server id", "1 to 4294967295")
            return number
    return default


def replication_settings(member: MemberPlan, kind: Kind) -> dict[str, Setting]:
    """What a member needs to replicate and be replicated from; its own settings come after."""
    if kind in ("standalone", "routed-pair"):
        return {}
    settings: dict[str, Setting] = {
        "server-id": member.server_id,
        "log-bin": "binlog",
        "relay-log": "relay",
        "report-host": member.name,
    }
    if kind == "ring":
        # What one member wrote has to travel through the others (MariaDB manual, ring replication).
        settings["log-slave-updates"] = True
    return settings
