# SPDX-License-Identifier: Apache-2.0
"""Twenty thousand hostile inputs under whole commands of root's: processes, answers of servers, texts of statements,
option files, meter logs, pages of hosts.

No traceback, no more than 5 s beyond the window that was asked for, no more than 200 MB. A command looks at as many
inputs as it can: hundreds of processes, all answers that a dozen servers give it. An input counts once it was there to
be read: an answer when it was sent. Others by POWERPROF_INPUTS=FIRST-END.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.nightly.fuzz.mutate import bent
from tests.nightly.hostile_processes import hostile_processes
from tests.nightly.lying_pages import pages
from tests.nightly.lying_servers import lying_servers
from tests.nightly.whole_command import NO_METER, Commands, Ran, scraped

pytestmark = pytest.mark.usefixtures("root_bpf")

INPUTS = range(*map(int, os.environ.get("POWERPROF_INPUTS", "0-20000").split("-")))
AT_ONCE = int(os.environ.get("POWERPROF_AT_ONCE", "3"))
# Of one kind, one after another.
BLOCK = 250
PAGES = 12
# A look at a server may take all of its six seconds, at either end of a window.
_LOOK_S = 6.0
_OPTIONS = (
    b"[client]\nuser=me\npassword='a\\' b'\nhost=127.0.0.1\nport=3306\n",
    b"!includedir /etc/mysql/conf.d/\n[client]\nsocket=/run/mysqld/mysqld.sock\nssl-ca=/etc/ca.pem\n",
    b"!include /dev/zero\n[client-mariadb]\n!includedir " + b"d/" * 3000 + b"\nssl-verify-server-cert=1\n",
)
_METER = (
    b"time,watts\n2026-01-01T00:00:00Z,10.5\n2026-01-01T00:00:01Z,11\n",
    b"timestamp;power\n1767225600;10\n1767225601;11\n",
)
_STATEMENTS = (
    b"SELECT a.x, COUNT(*) FROM t AS a WHERE a.x = 'it''s' AND y IN (1, 2, 0x41, -3e5) GROUP BY 1 -- end\n",
    *(b"SELECT /*!50000 1 */ /* c */ + 1, \"q\", `i`, _utf8mb4'z', X'4D', N'n', b'01' # end\n LIMIT 3"),
    b"WITH RECURSIVE c AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 5) SELECT * FROM c WHERE n <> 'a\\'b'",
    b"SELECT '\x95\x5c', '\x83\x5c' FROM dual WHERE 1 = 1 OR SLEEP(0)",
    b"/*M!100100 SELECT 2 */ SELECT 'x' 'y' \"z\" FROM (SELECT 1) AS d",
)
_SESSIONS = (
    *("SET NAMES utf8mb4", "SET NAMES sjis", "SET NAMES gbk", "SET sql_mode='NO_BACKSLASH_ESCAPES'"),
    "SET sql_mode='ANSI_QUOTES,PIPES_AS_CONCAT'",
)


@dataclass
class Bench:
    """What all commands share, and what came of them."""

    commands: Commands
    room: Path
    server: PrivateServer
    kinds: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    peak_kb: int = 0
    again: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def so_far(self) -> str:
        """Checks until now, and what came of it."""
        return (
            f"{sum(self.kinds.values()):,} inputs {dict(self.kinds)} under {dict(self.used)}: "
            f"{len(self.broken)} broken, slowest {self.slowest_s:.1f} s beyond its window, {self.peak_kb >> 10} MB, "
            f"{self.again} looked at again; {(time.monotonic() - self.began_s) / 60:.1f} min"
        )

    def note(self, kind: str, number: int, ran: Ran, inputs: int) -> int:
        """Remember how a command with this first input ended; how many inputs it had."""
        self.kinds[kind] += inputs
        self.used[ran.words[0]] += 1
        self.slowest_s, self.peak_kb = max(self.slowest_s, ran.beyond_s), max(self.peak_kb, ran.peak_kb)
        if (problem := ran.problem()) is not None:
            self.broken.append(f"{kind} {number}: {problem}")
            print(self.broken[-1], flush=True)
        return inputs

    def folder(self, number: int) -> Path:
        """A new one, which other accounts can enter."""
        found = self.room / f"{number}-{time.monotonic_ns()}"
        found.mkdir(mode=0o755)
        return found

    def seen(self, words: list[str], number: int) -> tuple[list[str], float]:
        """As a command that goes on: `watch`, or every third time `export`; and its window's length."""
        if number // BLOCK % 3:
            return ["watch", "--plain", "--count", "2", "--interval", "1", *words], 2.0
        return ["export", "--listen", f"unix:{self.folder(number)}/s", "--interval", "1", *words], 2.0


Kind = Callable[[Bench, int], tuple[Ran, int]]


def of_processes(bench: Bench, number: int) -> tuple[Ran, int]:
    """All of them at once, under a command that looks at every process."""
    system = ["attribute", "--system", "--no-save", *NO_METER, "--duration"]
    idle = ["idle", "--duration", "0.5", "--repeat", "2", "--clients", "0", "--no-save", *NO_METER]
    watch, export = bench.seen(["--no-ask", *NO_METER], BLOCK), bench.seen(["--no-ask", *NO_METER], 0)
    with hostile_processes(number, BLOCK) as pids:
        choices = (([*system, "1"], 1.0), watch, (idle, 1.0), export, ([*system, "3"], 3.0))
        words, window_s = random.Random(number).choice(choices)
        ran = bench.commands(words, window_s)
        living = sum(Path(f"/proc/{pid}/maps").exists() for pid in pids)
    return ran, living


def of_servers(bench: Bench, number: int) -> tuple[Ran, int]:
    """Many servers side by side under `watch` and `export`, or one under `diagnose`."""
    count = 1 if number % 5 else 12
    with lying_servers(bench.folder(number), number, count) as servers:
        if count == 1:
            named = (["--pid", str(servers.pids[0])], ["--defaults-file", str(servers.files[0])])[number % 2]
            ran = bench.commands(["diagnose", *named, "--duration", "0.5", "--no-save"], 0.5 + 2 * _LOOK_S)
        else:
            files = [word for file in servers.files for word in ("--defaults-file", str(file))]
            words, window_s = bench.seen(["--ask-every", "0.5", *files, *NO_METER], number)
            ran = bench.commands(words, window_s, lambda: 4 * _LOOK_S)
    return ran, max(1, servers.answers)


def of_statements(bench: Bench, number: int) -> tuple[Ran, int]:
    """Clients' texts, those of two charsets and three modes, under `queries` of a sound server."""
    own = (["--explain", "--yes"], ["--by", "user"], ["--method", "samples"], ["--columns", "waits"])[number % 4]
    words = ["queries", "--pid", str(bench.server.pid), "--duration", "2", "--no-save", *own, *NO_METER]
    sent: list[int] = []
    over = threading.Event()

    def talk() -> None:
        at = number
        while not over.is_set():
            with suppress(Exception), bench.server.connect() as connection:
                for session in random.Random(at).sample(_SESSIONS, 2):
                    sql.fetch_rows(connection, session)
                for _ in range(40):
                    at += 1
                    text = bent(_STATEMENTS, number + at % BLOCK)[:20_000]
                    with suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError):
                        connection.query(text if at % 2 else text.decode("latin-1"))  # type: ignore[attr-defined]
                    sent.append(at)
                    over.wait(0.002)

    client = threading.Thread(target=talk)
    client.start()
    try:
        ran = bench.commands(words, 2.0, lambda: _LOOK_S)
    finally:
        over.set()
        client.join()
    return ran, min(BLOCK, len(sent))


def of_options(bench: Bench, number: int) -> tuple[Ran, int]:
    """Fifty option files under `watch` and `export`, or one under `diagnose`."""
    count = 50 if number % 3 else 1
    folder = bench.folder(number)
    files = [folder / f"{number + at}.cnf" for at in range(count)]
    for at, file in enumerate(files):
        file.write_bytes(bent(_OPTIONS, number + at))
    named = [word for file in files for word in ("--defaults-file", str(file))]
    if count == 1:
        return bench.commands(["diagnose", *named, "--duration", "0.5", "--no-save"], 0.5 + _LOOK_S), count
    words, window_s = bench.seen([*named, *NO_METER], number)
    return bench.commands(words, window_s, lambda: 2 * _LOOK_S), count


def of_logs(bench: Bench, number: int) -> tuple[Ran, int]:
    """A log of a meter under `energy`, or one that is another at each interval of `watch`."""
    file = bench.folder(number) / "meter.csv"
    if number % 10:
        file.write_bytes(bent(_METER, number))
        if number % 2:
            return bench.commands(["energy", "--from", str(file)], 0.0), 1
        meter = ["--meter", str(file)]
        return bench.commands(["energy", "--duration", "0.1", *meter], 0.1), 1
    count = 60
    file.write_bytes(b"time,watts\n")
    over = threading.Event()

    def write() -> None:
        for at in range(100_000):
            now = time.time()
            sound = b"".join(b"%.2f,%d\n" % (now + step / 10 - 2, step) for step in range(40))
            other = file.with_suffix(".new")
            other.write_bytes(bent((*_METER, b"time,watts\n" + sound), number + at))
            other.rename(file)
            if over.wait(0.2):
                return

    # What is opened is a log: it lies from then on.
    writer = threading.Timer(bench.commands.quiet("watch") + 4.0, write)
    began_s = time.monotonic()
    writer.start()
    words = ["watch", "--plain", "--count", str(count), "--interval", "0.5", "--no-ask", "--meter", f"auto,{file}"]
    try:
        ran = bench.commands([*words, *NO_METER], count / 2)
    finally:
        over.set()
        writer.join()
    lying_s = time.monotonic() - began_s - writer.interval
    return ran, min(count, int(2 * lying_s)) if ran.code == 0 and lying_s > 1 else 1


def of_pages(bench: Bench, number: int) -> tuple[Ran, int]:
    """Joules from a dozen pages that are sound only once, from one that never is, or that comes by the byte."""
    slow, never = number % 7 == 0, number % 7 == 1
    count = 1 if slow or never else PAGES
    with pages(number, slow, sound_first=count > 1) as served:
        ran = bench.commands(
            served.asking(count), 0.1, lambda: min(served.waited_s, 5.0 * 4), "pages" if count > 1 else ""
        )
    return ran, served.answers


# By what one command can look at: a page takes a child that fetches it, a text next to nothing.
_CYCLE = (
    *("processes", "statements", "servers", "processes", "options", "statements", "processes", "servers", "options"),
    *("statements", "processes", "pages", "options", "statements", "processes", "servers", "logs", "statements"),
    *("processes", "options"),
)
_KINDS: dict[str, Kind] = {
    "processes": of_processes,
    "servers": of_servers,
    "statements": of_statements,
    "options": of_options,
    "logs": of_logs,
    "pages": of_pages,
}


def block(bench: Bench, first: int) -> None:
    """As many commands as it takes for all of its inputs."""
    name = _CYCLE[first // BLOCK % len(_CYCLE)]
    kind = _KINDS[name]
    number, left = first, min(BLOCK, INPUTS.stop - first)
    while left > 0:
        ran, inputs = kind(bench, number)
        if ran.late:
            # Late with the same inputs twice, or the host was busy.
            bench.again += 1
            bench.commands.quiet_s.clear()
            ran, inputs = kind(bench, number)
        bench.note(name, number, ran, min(inputs, left))
        number, left = number + 1, left - max(1, inputs)
    print(bench.so_far(), flush=True)


def test_whole_commands(tmp_path_factory: pytest.TempPathFactory) -> None:
    room = tmp_path_factory.mktemp("room")
    for folder in (room, *list(room.parents)[:-2]):
        folder.chmod(0o755)
    with PrivateServer(settings={"performance_schema": "ON"}) as server:
        quiet = {"queries": ["queries", "--pid", str(server.pid), "--duration", "1", "--no-save", *NO_METER]}
        bench = Bench(Commands(Cli(tmp_path_factory.mktemp("home")), quiet), room, server)
        with ThreadPoolExecutor(AT_ONCE) as lanes:
            for done in [lanes.submit(block, bench, first) for first in range(INPUTS.start, INPUTS.stop, BLOCK)]:
                done.result()
        assert server.alive()
    print(bench.so_far(), file=sys.stderr)
    assert bench.broken == []


@contextmanager
def exporter(cli: Cli, port: int) -> Iterator[subprocess.Popen[str]]:
    """One that listens, without an end of its own."""
    process = cli.start(["export", "--listen", f"127.0.0.1:{port}", "--interval", "1", "--no-ask", *NO_METER])
    with ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.terminate)
        until_s = time.monotonic() + 90
        while b"powerprof_build_info" not in scraped(port):
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.2)
        yield process


def test_requests_that_are_none_do_not_disturb_the_exporter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Half a thousand of them, by a hundred clients that do not go away, and a scrape is answered still."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    request = [b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\nAccept-Encoding: gzip\r\n\r\n"]
    with exporter(Cli(tmp_path_factory.mktemp("home")), port) as process, ExitStack() as stack:
        for number in range(500):
            with suppress(OSError):
                channel = socket.create_connection(("127.0.0.1", port), 2)
                channel.sendall(bent(request, number))
                if number < 100:
                    stack.enter_context(channel)
                else:
                    channel.close()
        assert b"powerprof_build_info" in scraped(port)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
