# SPDX-License-Identifier: Apache-2.0
"""Start and watch storms: faults that can end on their own.

They are started before a window, watched in it, and restarted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from powerprof.database import sql
from powerprof.experiment.records import StormShare
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.workloads.definition import Storm

if TYPE_CHECKING:
    from powerprof.database.base import Server, Sql


# Two readings a second are negligible next to the thousands of wake-ups of an active storm.
_LOOK_S = 0.5
_BEGIN_S = 0.75
_ATTEMPTS = 3


class StormWatch(Closeable):
    """An active storm: entering the context starts it, `watch()` and `finish()` enclose the window.

    The counter of the first of the `servers` (by name) is read. If the storm does not start in three attempts, the
    servers are left alone: they back off. Raises PowerprofError if a statement fails.
    """

    def __init__(self, storm: Storm, servers: Mapping[str, Server]) -> None:
        self._storm = storm
        self._servers = servers
        self._connection: Sql | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem: PowerprofError | None = None
        self._raging_s = self._watched_s = 0.0
        self._restarts = 0
        self._first = self._last = (0.0, 0)
        self._began = False

    def _open(self) -> None:
        first = next(iter(self._servers.values()))
        self._connection = first.connect()
        for _ in range(_ATTEMPTS):
            before = self._count()
            if self._rate(before, self._after()) >= self._storm.least_hz:
                self._began = True
                break
            self._trigger()
        else:
            before = self._count()
            self._began = self._rate(before, self._after()) >= self._storm.least_hz

    def close(self) -> None:
        self._end()
        if self._connection is not None:
            self._connection.close()

    def watch(self) -> None:
        """Start watching."""
        self._first = self._last = self._count()
        if self._began:
            thread = threading.Thread(target=self._look, name="storm", daemon=True)
            thread.start()
            self._thread = thread  # an interrupt can prevent the start; such a thread cannot be joined

    def finish(self) -> StormShare:
        """Return the share of the window with an active storm. Raise PowerprofError if it could not be restarted."""
        self._end()
        if self._problem is not None:
            raise self._problem
        last = self._count()
        raged = 100.0 * self._raging_s / self._watched_s if self._watched_s else 0.0
        return StormShare(
            began=self._began,
            raged_percent=raged if self._began else 0.0,
            restarts_count=self._restarts,
            counter=self._storm.counter,
            counter_hz=self._rate(self._first, last),
        )

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30.0)
            self._thread = None

    def _look(self) -> None:
        try:
            while not self._stop.wait(_LOOK_S):
                now = self._count()
                elapsed_s, rages = now[0] - self._last[0], self._rate(self._last, now) >= self._storm.least_hz
                self._watched_s += elapsed_s
                self._raging_s += elapsed_s if rages else 0.0
                self._last = now
                if not rages:
                    self._restarts += 1
                    self._trigger()
        except PowerprofError as error:
            self._problem = error

    def _after(self) -> tuple[float, int]:
        time.sleep(_BEGIN_S)
        return self._count()

    def _trigger(self) -> None:
        for name, statements in self._storm.trigger.items():
            if name not in self._servers:
                raise PowerprofError(
                    f"the storm is to be started on {name}: this server does not exist",
                    "storm.trigger names members of the topology",
                )
            with self._servers[name].connect() as connection:
                sql.execute(connection, *statements)

    def _count(self) -> tuple[float, int]:
        """Return the time and the counter. Raise PowerprofError if the server does not have the counter."""
        if self._connection is None:
            raise RuntimeError("the storm is not watched")
        rows = sql.fetch_rows(self._connection, f"SHOW GLOBAL STATUS LIKE '{self._storm.counter}'", columns=2)
        counted = sql.parse_count(rows[0][1]) if rows else None
        if counted is None:
            raise PowerprofError(
                f"the server has no counter {self._storm.counter}", "storm.counter is a name of SHOW GLOBAL STATUS"
            )
        return time.monotonic(), counted

    @staticmethod
    def _rate(before: tuple[float, int], after: tuple[float, int]) -> float:
        elapsed_s = after[0] - before[0]
        return (after[1] - before[1]) / elapsed_s if elapsed_s > 0 else 0.0
