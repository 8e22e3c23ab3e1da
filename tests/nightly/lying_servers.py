# SPDX-License-Identifier: Apache-2.0
"""Servers that lie, each a process called mariadbd: `python -m tests.nightly.lying_servers FOLDER FIRST COUNT`.

FOLDER has an option file of each, NUMBER.cnf, and their error logs lie too. When its input ends it prints how many bent
answers were sent. They are nobody's, so that who watches this host meanwhile does not ask them.
"""

from __future__ import annotations

import mmap
import os
import random
import re
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.nightly.fuzz.mutate import bent
from tests.nightly.hostile_processes import helper
from tests.system.errors.hostile_server import HostileServer, Talk

_UID = 65534
_NAMES = [
    *("Variable_name", "Value", "Slave_IO_Running", "Slave_SQL_Running", "Seconds_Behind_Master", "Master_Host"),
    *("Master_Port", "Master_Server_Id", "Last_IO_Error", "Last_SQL_Error", "Connection_name", "Gtid_IO_Pos"),
    *("Using_Gtid", "Master_Retry_Count", "Exec_Master_Log_Pos", "Read_Master_Log_Pos", "Channel_Name"),
    *("Replica_IO_Running", "ID", "USER", "HOST", "COMMAND", "TIME", "STATE", "INFO"),
]
_VARIABLES = [
    *("server_id", "port", "read_only", "log_bin", "Questions", "Uptime", "Connections", "Threads_connected"),
    *("Aborted_connects", "innodb_io_capacity", "innodb_flush_log_at_trx_commit", "thread_handling"),
    *("max_connections", "performance_schema"),
]
_CELLS = (b"0", b"1", b"12", b"3306", b"7.5", b"Yes", b"No", b"Connecting", b"Sleep", b"Binlog Dump", b"root", b"s%")
_WORDS = (b"thread/sql/main", b"2026-11-24 18:00:00", b"Waiting for master to send event", b"10.11.6-MariaDB", b"")
_LOG = (
    b"TIME 0 [ERROR] Slave SQL: Error 'Table x' on query. Default database: 'a'. Query: 'INSERT', Gtid 0-1-2\n" * 3,
    b"TIME 9 [Warning] Access denied for user 'u'@'h' (using password: YES)\n" * 3,
    b"TIME 9 [Note] Start binlog_dump to slave_server(2), pos(, 4)\nTIME 0 [ERROR] reconnecting to retry\n",
    b"TIME 9 [ERROR] Replica SQL for channel 'c': " * 400 + b"\n",
)


def _columns(statement: str) -> list[str] | None:
    """The names of as many columns as a SELECT names; None for what is no SELECT."""
    chosen = re.match(r"(?is)\s*SELECT\s+(.*?)(?:\sFROM\s|$)", statement)
    if chosen is None:
        return None
    words, before = chosen[1], ""
    while words != before:
        words, before = re.sub(r"\([^()]*\)", "", words), words
    return [part.strip().split()[-1].strip("`").rpartition(".")[2] or "x" for part in words.split(",") if part.strip()]


@dataclass
class Liar:
    """What one server says. Numbers that 3 divides bend packets, others the cells of sound ones."""

    number: int
    folder: Path
    told: mmap.mmap
    at: int
    answers: int = 0

    def answer(self, talk: Talk, statement: str) -> None:
        """One whole result, part of it bent; it is counted once it has been sent."""
        self.answers += 1
        seed = self.number * 100_003 + self.answers
        chance = random.Random(seed)
        if "PID_FILE" in statement.upper() and chance.random() < 0.5:
            talk.rows(["@@pid_file"], [[os.fsencode(self.folder / f"{self.number}.pid")]])
            return
        names = _columns(statement)
        if "VERSION" in statement.upper() and self.answers < 20:
            rows = [[b"10.11.6-MariaDB"]]
        else:
            if names is None:
                two = "VARIABLES" in statement.upper() or "GLOBAL STATUS" in statement.upper()
                names = ["Variable_name", "Value"] if two else chance.sample(_NAMES, chance.randrange(2, len(_NAMES)))
            rows = [self._row(names, seed + at) for at in range(chance.choice((0, 1, 2, 5, 60)))]
        if self.number % 3 == 0:
            talk = _Bending(talk, seed)
        number = rows and all(cell is None or cell.isdigit() for row in rows for cell in row)
        talk.rows(names or ["x"], rows, 8 if number or chance.random() < 0.02 else 0xFD)
        count = struct.unpack_from("<Q", self.told, 8 * self.at)[0]
        struct.pack_into("<Q", self.told, 8 * self.at, count + 1)

    def _row(self, names: list[str], seed: int) -> list[bytes | None]:
        chance = random.Random(seed)
        row: list[bytes | None] = []
        for number, name in enumerate(names):
            cell = chance.choice((*_CELLS, *_CELLS, *_WORDS, None))
            if name == "Variable_name":
                cell = chance.choice(_VARIABLES).encode()
            elif cell is not None and chance.random() < 0.3:
                cell = bent((cell,), seed + number)
            row.append(cell)
        return row


class _Bending(Talk):
    """Bends a tenth of the packets."""

    def __init__(self, talk: Talk, seed: int) -> None:
        super().__init__(talk.channel)
        self.number, self._inner, self._chance = talk.number, talk, random.Random(seed)

    def send(self, payload: bytes) -> None:
        if self._chance.random() < 0.1:
            payload = bent((payload,), self._chance.getrandbits(30))
        super().send(payload)
        self._inner.number = self.number


def _serve(folder: Path, number: int, told: mmap.mmap, at: int) -> None:
    """In the child: be a server until the end."""
    own = folder / str(number)
    own.mkdir(mode=0o755)
    now = time.strftime("%Y-%m-%d %H:%M:%S").encode()
    log = os.open(own / "err", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(log, bent(_LOG, number).replace(b"TIME", now))
    os.dup2(log, 2)
    Path("/proc/self/comm").write_text("mariadbd")
    with HostileServer(own, answer=Liar(number, folder, told, at).answer) as server:
        (folder / f"{number}.pid").write_text(f"{os.getpid()}\n")
        (folder / f"{number}.cnf").write_text(f"[client]\nuser=u\nsocket={server.path}\n")
        server.path.chmod(0o777)
        os.setgroups([])
        os.setresgid(_UID, _UID, _UID)
        os.setresuid(_UID, _UID, _UID)
        while True:
            signal.pause()


def main(folder: Path, first: int, count: int) -> None:
    """Start them, print their process ids, end them when standard input ends, and print how much they said."""
    told = mmap.mmap(-1, 8 * count)
    pids = []
    for at in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                _serve(folder, first + at, told, at)
            finally:
                os._exit(1)
        pids.append(pid)
    end_s = time.monotonic() + 30
    while not all((folder / f"{first + at}.cnf").exists() for at in range(count)) and time.monotonic() < end_s:
        time.sleep(0.02)
    print(*pids, flush=True)
    sys.stdin.read()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(sum(struct.unpack(f"<{count}Q", told)), flush=True)


@dataclass
class Servers:
    """Those that run; `answers` is known once they have ended."""

    pids: list[int]
    files: list[Path]
    answers: int = 0


@contextmanager
def lying_servers(folder: Path, first: int, count: int) -> Iterator[Servers]:
    """That many, with these numbers."""
    with helper("tests.nightly.lying_servers", str(folder), str(first), str(count)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        servers = Servers(pids, [folder / f"{number}.cnf" for number in range(first, first + count)])
        yield servers
        process.stdin.close()
        servers.answers = int(process.stdout.readline())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
