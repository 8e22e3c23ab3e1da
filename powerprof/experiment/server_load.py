# SPDX-License-Identifier: Apache-2.0
"""Measure whether a given server is idle.

The windows of a busy one would show the cost of its work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from powerprof.database import sql
from powerprof.database.base import Server, Sql
from powerprof.diagnosis.server_queries import read_instances
from powerprof.experiment.server_cost import IDLE_STATEMENTS_HZ
from powerprof.measure.procfs import family_cpu_ns
from powerprof.measure.window import wait_and_read
from powerprof.model.identities import Family
from powerprof.model.text import number, plural
from powerprof.system.server_roles import parse_client, read_titles
from powerprof.system.tasks import read_switches

# An idle MariaDB 10.11 used 0.04–0.1 % of a CPU here, a starting one several percent.
SETTLED_SHARE = 0.01
# Two busy looks in a row are a load; a single one may be a scrape or a check.
_LOOK_S = 2.0
# The transactions of all databases, the clients but this one, and the process of this one.
_POSTGRESQL_LOAD = (
    "SELECT (SELECT pg_catalog.sum(d.xact_commit OPERATOR(pg_catalog.+) d.xact_rollback)"
    " FROM pg_catalog.pg_stat_database d),"
    " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity a"
    " WHERE a.backend_type OPERATOR(pg_catalog.=) 'client backend'"
    " AND a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()),"
    " pg_catalog.pg_backend_pid()"
)


COUNTED: Mapping[Family, str] = {"mysql": "statements", "postgresql": "requests"}


class ServerLoad(msgspec.Struct, frozen=True):
    """The work of a given server. An unknown figure is None.

    Attributes:
        statements_hz: Statements per second of other clients; requests of PostgreSQL.
        clients_count: Other connections.
        cpu_percent: CPU time in percent of one CPU.
    """

    statements_hz: float | None
    clients_count: int | None
    cpu_percent: float | None
    family: Family = "mysql"

    @property
    def is_idle(self) -> bool:
        """Whether nothing that is known shows work."""
        return (self.statements_hz or 0.0) <= IDLE_STATEMENTS_HZ and (self.cpu_percent or 0.0) <= 100 * SETTLED_SHARE

    def __str__(self) -> str:
        noun = COUNTED[self.family]
        known = [] if self.statements_hz is None else [f"{number(self.statements_hz, 1)} {noun}/s"]
        if self.clients_count is not None:
            known.append(f"from {plural(self.clients_count, 'client')}")
        cpu = "" if self.cpu_percent is None else f"{number(self.cpu_percent, 1)} % of one CPU"
        return " ".join(known) + (f" ({cpu})" if known and cpu else cpu)


class LoadMeter:
    """Reads the work of a given server between two looks, without the statements of the looks themselves."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._woken: dict[int, int] = {}
        self._requests_count = 0
        first, self._clients_count = self._read()
        second, _ = self._read()
        # The smallest difference of two looks in a row is their own statements.
        third, _ = self._read()
        known = [b - a for a, b in ((first, second), (second, third)) if a is not None and b is not None]
        self._own_count = min(known, default=0)
        self._last_count = third
        self.count, self.seconds = 0, 0.0

    def restart(self) -> None:
        """Begin a span whose statements count."""
        self._last_count = self._read()[0]

    def add(self, seconds: float) -> None:
        """Add the statements since the last look, `seconds` ago. Raise PowerprofError without an answer."""
        before, (now, self._clients_count) = self._last_count, self._read()
        self._last_count = now
        if before is not None and now is not None:
            self.count += max(0, now - before - self._own_count)
            self.seconds += seconds

    @property
    def statements_hz(self) -> float | None:
        """Statements per second of other clients in all spans; None if the server does not report them."""
        return self.count / self.seconds if self.seconds else None

    def _read(self) -> tuple[int | None, int | None]:
        with self._server.connect(limits=sql.WORD_LIMITS) as connection:
            if connection.family == "postgresql":
                return self._read_postgresql(connection)
            rows = sql.fetch_rows(
                connection, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Questions', 'Threads_connected')", columns=2
            )
            others_count = len(read_instances(connection))
        counts = {str(name).lower(): sql.parse_count(value) for name, value in rows}
        connected = counts.get("threads_connected")
        return counts.get("questions"), None if connected is None else max(0, connected - 1 - others_count)

    def _read_postgresql(self, connection: Sql) -> tuple[int | None, int | None]:
        """Return the requests since the first look, and the other clients.

        A client's process wakes for each request. The server itself counts a transaction that reads no table only when
        its client disconnects. On another host its transactions have to do.
        """
        ((transactions, others, own),) = sql.fetch_rows(connection, _POSTGRESQL_LOAD, columns=3) or [(None,) * 3]
        if self._server.pid is None:
            return sql.parse_count(transactions), sql.parse_count(others)
        clients = [pid for pid, title in read_titles(self._server.list_processes()).items() if parse_client(title)]
        woken = {pid: sum(read_switches(pid).values()) for pid in clients if pid != sql.parse_count(own)}
        self._requests_count += sum(max(0, count - self._woken.get(pid, 0)) for pid, count in woken.items())
        self._woken = woken
        return self._requests_count, sql.parse_count(others)

    def measure(self) -> ServerLoad:
        """Return the load of the first idle look of two, else of the second."""
        first = self._look()
        load = first if first.is_idle else self._look()
        self.count, self.seconds = 0, 0.0
        return load

    def _look(self) -> ServerLoad:
        pid, began_s = self._server.pid, time.monotonic()
        began_ns = family_cpu_ns(pid) if pid else None
        self.count, self.seconds = 0, 0.0
        wait_and_read((), _LOOK_S)
        passed_s = time.monotonic() - began_s
        now_ns = family_cpu_ns(pid) if pid else None
        cpu = None if began_ns is None or now_ns is None else 100.0 * (now_ns - began_ns) / 1e9 / passed_s
        self.add(passed_s)
        return ServerLoad(self.statements_hz, self._clients_count, cpu, self._server.login.family)
