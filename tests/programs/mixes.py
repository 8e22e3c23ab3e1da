# SPDX-License-Identifier: Apache-2.0
"""sysbench mixes of statements whose CPU time is known from running each alone, in turn with the mix (mix.lua).

What is known is the kernel's CPU clock of the server's process. A tracer has no part in it but to be attached, in both.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.system import program_search, programs

_LUA = Path(__file__).with_name("mix.lua")
_TEXTS = (
    "SELECT c FROM t {} WHERE id = ?",
    "SELECT SUM(k) FROM t {} WHERE id BETWEEN ? AND ? + ?",
    "SELECT c FROM t {} WHERE id BETWEEN ? AND ? + ? ORDER BY c",
    "SELECT COUNT(*) FROM t {} WHERE c LIKE ?",
)
MIX, ALONE = ([text.format(mark) for text in _TEXTS] for mark in ("mix", "alone"))
TIMES = (60, 12, 8, 1)
_TABLE = (
    "CREATE DATABASE mix",
    "CREATE TABLE mix.t (id INT PRIMARY KEY, k INT, c CHAR(120))",
    "INSERT INTO mix.t SELECT seq, seq % 97, SHA2(seq, 256) FROM mix.seq_1_to_10000",
)


@dataclass(frozen=True)
class Known:
    """CPU time of the server's process: over the runs of each statement alone, and over the mix."""

    events: int
    alone_ns: list[float]
    mix_ns: float

    @property
    def percent(self) -> list[float]:
        """The share of each statement in the mix, from the runs alone."""
        return [100 * one / sum(self.alone_ns) for one in self.alone_ns]


class Mix:
    """The table, and sysbench on it."""

    def __init__(self, server: PrivateServer, account: Path) -> None:
        words = [program_search.need("sysbench", "sysbench"), f"--config-file={account}", f"--pid={server.pid}"]
        self._words = [*words, f"--times={','.join(map(str, TIMES))}", "--threads=1"]

    def run(self, *how: str) -> Known:
        """Events as sysbench is told: --events or --time, --rate."""
        done = programs.run([*self._words, *how, str(_LUA), "run"], timeout_s=600)
        found = re.search(r"^TURNS (\d+) (.+)$", done.stdout, re.MULTILINE)
        assert found, done.stdout + done.stderr
        *alone, mix = map(float, found[2].split())
        return Known(int(found[1]), alone, mix)


@contextmanager
def mix_on(server: PrivateServer) -> Iterator[Mix]:
    """A mix on a private server."""
    with server.connect() as connection:
        for text in _TABLE:
            sql.execute(connection, text)
    with tempfile.TemporaryDirectory() as folder:
        account = Path(folder) / "account"
        account.write_text(
            f"db-driver=mysql\nmysql-user={server.login.user}\nmysql-password={server.login.password}\n"
            f"mysql-socket={server.socket}\nmysql-db=mix\n"
        )
        yield Mix(server, account)
