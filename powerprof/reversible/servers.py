# SPDX-License-Identifier: Apache-2.0
"""The process of a server whose settings outlast it, and how its next process is recognised.

After a restart, any account may listen at the old address. A connection sends a password, so it is made only to a
process of the recorded account and program.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from powerprof import paths
from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login
from powerprof.database.clients.peers import account_of_process
from powerprof.errors import PowerprofError
from powerprof.files import try_text
from powerprof.processes.stat import process_stat
from powerprof.processes.targets import has_ended, processes

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_MOST_TRIED = 16


class ServerProcess(msgspec.Struct, frozen=True):
    """A process with its start in clock ticks since boot, its account, and its program. `program` is its comm if this
    user may not read the link to the file."""

    pid: int
    started_ticks: int
    uid: int
    program: str

    @classmethod
    def of(cls, pid: int) -> ServerProcess | None:
        """Return the identity of a running process; None if it has ended."""
        stat, uid = process_stat(pid), account_of_process(pid)
        if stat is None or uid is None or has_ended(pid):
            return None
        base = paths.procfs() / str(pid)
        try:
            program = os.readlink(base / "exe").removesuffix(" (deleted)")
        except OSError:
            program = (try_text(base / "comm") or "").strip()
        return cls(pid, stat.started_ticks, uid, program)

    def connect(self, login: Login, limits: Limits) -> Sql:
        """Return a connection to this process, or to the next one of its account and program. Raise PowerprofError."""
        refused, until_s = None, time.monotonic() + limits.waiting_s
        for pid in self._present():
            try:
                return sql.connect(login.at(pid), limits=limits)
            except PowerprofError as error:
                refused = error
            if login.socket is None or time.monotonic() > until_s:
                break  # The account of a port is the same for all of them.
        raise refused or PowerprofError(
            f"no process of account {self.uid} runs {self.program}", "start the server again"
        )

    def _present(self) -> list[int]:
        if ServerProcess.of(self.pid) == self:
            return [self.pid]
        known = [one for pid in processes() if (one := ServerProcess.of(pid)) is not None]
        return [one.pid for one in known if (one.uid, one.program) == (self.uid, self.program)][:_MOST_TRIED]
