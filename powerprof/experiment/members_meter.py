# SPDX-License-Identifier: Apache-2.0
"""Observe each server of a topology: CPU time, connections, relay logs, and replication status."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.database.replication_status import read_replication_status
from powerprof.experiment.records import MemberShare
from powerprof.measure.procfs import process_cpu_ns
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, Retryable

if TYPE_CHECKING:
    from powerprof.database.base import Server, Sql


_RELAY = re.compile(r"relay\.(\d{6,12})")
_COUNTED = ("Connections", "Binlog_commits", "Slave_connections")

RelayLogs = Mapping[int, int]


def list_relay_logs(datadir: Path) -> dict[int, int]:
    """Return the existing relay logs: number → bytes."""
    indexes = {}
    try:
        for entry in datadir.iterdir():
            name = _RELAY.fullmatch(entry.name)
            if name:
                try:
                    indexes[int(name[1])] = entry.stat().st_size
                except OSError:
                    continue  # just purged
    except OSError:
        return {}
    return indexes


def sum_relay_bytes(before: RelayLogs, after: RelayLogs) -> float | None:
    """Return the bytes written to relay logs between two listings; None if there are none.

    Files that came and went are counted with the mean size of the others: each reconnect makes one of the same size.
    """
    if not before or not after:
        return None
    oldest, newest = max(before), max(after)
    grown = max(0, after.get(oldest, before[oldest]) - before[oldest])
    fresh = [size for number, size in after.items() if oldest < number]
    if not fresh:
        return float(grown)
    seen = [*fresh, before[oldest]]
    missing = newest - oldest - len(fresh)
    return grown + sum(fresh) + missing * sum(seen) / len(seen)


class MembersMeter(Closeable):
    """A meter of each server of a topology: `start()` before a window and `stop(cpus)` after it."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self._servers = servers
        self._connections: dict[str, Sql] = {}
        self._cpu_ns: dict[str, int | None] = {}
        self._relays: dict[str, dict[int, int]] = {}
        self._counters: dict[str, dict[str, int]] = {}
        self._started_s = 0.0

    def _open(self) -> None:
        for name, server in self._servers.items():
            self._connections[name] = server.connect()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def start(self) -> None:
        """Read the counters at the start."""
        for name, connection in self._connections.items():
            self._counters[name] = _read_counters(connection)
        self._relays = self._read_relays()
        self._cpu_ns = self._read_cpu()
        self._started_s = time.monotonic()

    def stop(self, cpus: int) -> list[MemberShare]:
        """Return each member's use; `c0_percent` is of the time of `cpus` CPUs. Raise PowerprofError if one is gone."""
        elapsed_s = time.monotonic() - self._started_s
        cpu, relays = self._read_cpu(), self._read_relays()
        shares = []
        for name, server in self._servers.items():
            counters = _read_counters(self._connections[name])
            before = self._cpu_ns.get(name)
            now = cpu.get(name)
            cpu_s = None if before is None or now is None else (now - before) / 1e9
            written = sum_relay_bytes(self._relays[name], relays[name])
            moved = {key: counters[key] - self._counters[name].get(key, 0) for key in counters}
            shares.append(
                MemberShare(
                    name=name,
                    pid=server.pid,
                    cpu_s=cpu_s,
                    c0_percent=None if cpu_s is None else 100.0 * cpu_s / (elapsed_s * cpus),
                    connections_hz=moved.get("Connections", 0) / elapsed_s,
                    commits_hz=moved["Binlog_commits"] / elapsed_s if "Binlog_commits" in moved else None,
                    relay_log_bytes_hz=None if written is None else written / elapsed_s,
                    replication=read_replication_status(self._connections[name]),
                )
            )
        return shares

    def _read_cpu(self) -> dict[str, int | None]:
        return {name: process_cpu_ns(server.pid) if server.pid else None for name, server in self._servers.items()}

    def _read_relays(self) -> dict[str, dict[int, int]]:
        relays = {}
        for name, server in self._servers.items():
            place = getattr(server, "datadir", None)
            relays[name] = list_relay_logs(place) if isinstance(place, Path) else {}
        return relays


def _read_counters(connection: Sql) -> dict[str, int]:
    try:
        rows = sql.fetch_rows(connection, "SHOW GLOBAL STATUS", columns=2)
    except PowerprofError as error:
        raise Retryable(f"a server of the topology has ended: {error.message}", error.hint) from error
    counted = {str(name): sql.parse_count(value) for name, value in rows if name in _COUNTED}
    return {name: value for name, value in counted.items() if value is not None}
