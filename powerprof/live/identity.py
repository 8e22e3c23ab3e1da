# SPDX-License-Identifier: Apache-2.0
"""The identity of a database server among all servers of this host, in the labels of its series."""

from __future__ import annotations

import os
from collections.abc import Container

import msgspec

from powerprof.model import text
from powerprof.system.cgroups import UnitLabels, Units, label_unit
from powerprof.system.foreign_text import printable
from powerprof.system.listeners import list_tcp_ports, list_unix_sockets
from powerprof.system.processes import name_of
from powerprof.system.reader_process import link_of
from powerprof.system.tasks import process_folder

_MAX_NAME = 80
# With a process identifier and hostPID, this process is the host's first one.
_FIRST_PROCESS = 1
# Units of `cgroups.unit_of` with a network of their own.
_MACHINES = ("pod ", "lxc ", "machine ", "nomad ", "ecs ")


class ServerIdentity(msgspec.Struct, frozen=True):
    """The name of a server on its host, and its service, container or pod."""

    name: str
    place: UnitLabels


def identify_server(pid: int, units: Units, taken: Container[str] = ()) -> ServerIdentity:
    """Return the identity of a server, which stays the same when the server restarts.

    Servers in network namespaces of their own may have one port. The name then contains the container, pod or service,
    or the number of the namespace. `taken` are the names of other servers.
    """
    place = label_unit(units.of(pid) or "")
    name = _name_by_address(pid)
    if (namespace := _find_own_network(pid)) is not None:
        name = text.shorten(f"{name}@{_name_place(place) or namespace}", _MAX_NAME)
    return ServerIdentity(f"{name}:pid-{pid}" if name in taken else name, place)


def _name_by_address(pid: int) -> str:
    """Return program and port, or program and socket without a port."""
    program, ports = name_of(pid) or str(pid), list_tcp_ports(pid)
    sockets = [] if ports else sorted(list_unix_sockets(pid))
    address = str(ports[0]) if ports else sockets[0] if sockets else f"pid-{pid}"
    return text.shorten(printable(f"{program}:{address}"), _MAX_NAME)


def _find_own_network(pid: int) -> str | None:
    """Return the number of the network namespace as text; None if it is the host's or unreadable."""
    own, host, ours = (link_of(process_folder(number) / "ns/net") for number in (pid, _FIRST_PROCESS, os.getpid()))
    # The first process may be unreadable. Then ours is taken for the host's.
    if own is None or own == (host or ours):
        return None
    return "net-" + own.removeprefix("net:[").removesuffix("]")


def _name_place(place: UnitLabels) -> str:
    """Return the name of a place with one network; empty if several network namespaces may have it."""
    if place.pod:
        return f"{place.namespace}/{place.pod}/{place.container}"
    is_own = place.unit.endswith(".service") or place.unit.startswith(_MACHINES)
    return place.container or (place.unit if is_own else "")
