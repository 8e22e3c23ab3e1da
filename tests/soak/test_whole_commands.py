# SPDX-License-Identifier: Apache-2.0
"""Twenty thousand hostile processes, servers' answers, files and HTTP answers under whole commands of root's.

No traceback, no more than 5 s beyond the window that was asked for, no more than 200 MB. A command has as many inputs
as it can look at: processes by the dozen, all answers of a conversation. Others by POWERPROF_INPUTS=FIRST-END.
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.contract.errors.hostile_server import HostileServer, Talk, sound
from tests.fuzz.mutate import bent

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("root_bpf")]

INPUTS = range(*map(int, os.environ.get("POWERPROF_INPUTS", "0-20000").split("-")))
PROCESSES = 50
MOST_S, MOST_KB = 5.0, 200 << 10
_UID = 65534
_NONE = ["--energy-source", "none"]
_NAMES = (
    b"mariadbd",
    b"mysqld",
    b"postgres",
    b"java",
    b"(sd-pam)",
    b") R 1 (",
    b"\x1b[31m",
    b"a\nb",
    b"\xff\xfe",
    b"=1+1",
)
_OPTIONS = (
    b"[client]\nuser=me\npassword='a\\' b'\nhost=127.0.0.1\nport=3306\n",
    b"!includedir /etc/mysql/conf.d/\n[client]\nsocket=/run/mysqld/mysqld.sock\nssl-ca=/etc/ca.pem\n",
)
_METER = (
    b"time,watts\n2026-01-01T00:00:00Z,10.5\n2026-01-01T00:00:01Z,11\n",
    b"timestamp;power\n1767225600;10\n1767225601;11\n",
)
_PAGE = (
    b"# TYPE kepler_vm_package_joules_total counter\n"
    b'kepler_vm_package_joules_total{vm_name="a",zone="package-0"} 12.5\n'
    b'kepler_node_dram_joules_total{zone="dram"} 3e2\npowerprof_energy_joules_total{domain="psys",kind="measured"} 1\n',
)
_HEADERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 200\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00",
    b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n",
)


@dataclass(frozen=True)
class Ran:
    """How one command ended."""

    words: list[str]
    code: int
    err: str
    beyond_s: float
    peak_kb: int

    def problem(self) -> str | None:
        """What should not be."""
        figures = f"{self.code}, {self.beyond_s:.1f} s beyond, {self.peak_kb >> 10} MB"
        said = f"{' '.join(self.words)}: {figures}: {self.err[-600:]!r}"
        broken = re.search(r"Traceback|Exception ignored|\w+Warning:", self.err)
        fits = self.code in (0, 1, 2, 3) and self.beyond_s <= MOST_S and self.peak_kb <= MOST_KB
        return None if fits and not broken else said


def run(cli: Cli, words: list[str], window_s: float) -> Ran:
    """One command to its end; what it takes without anything hostile (`quiet_s`) is taken off."""
    quiet = quiet_s(cli, words[0])  # what is made once is in the cache by then
    began_s = time.monotonic()
    process = cli.start(words)
    err: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    threads = [
        threading.Thread(target=process.stdout.read),
        threading.Thread(target=lambda: err.append(process.stderr.read())),  # type: ignore[union-attr]
    ]
    for thread in threads:
        thread.start()
    timer = threading.Timer(120, process.kill)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    for thread, pipe in zip(threads, (process.stdout, process.stderr), strict=True):
        thread.join()
        pipe.close()
    took_s = time.monotonic() - began_s
    return Ran(words, process.returncode, err[0], took_s - window_s - quiet, usage.ru_maxrss)


@functools.cache
def quiet_s(cli: Cli, command: str) -> float:
    """What the command takes beyond its window where nobody is hostile: this host's business, and its load's."""
    words = {
        "attribute": ["attribute", "--system", "--duration", "1", "--no-save", *_NONE],
        "idle": ["idle", "--duration", "1", "--repeat", "1", "--clients", "0", "--no-save", *_NONE],
        "watch": ["watch", "--plain", "--count", "1", "--interval", "1", *_NONE],
    }.get(command, ["doctor"])
    cli(words, timeout=300)
    began_s = time.monotonic()
    cli(words, timeout=300)
    return time.monotonic() - began_s - (1.0 if words != ["doctor"] else 0.0)


# Processes.


def _become(program: Path, name: bytes, argv: list[bytes], perf_map: bytes, room: Path) -> None:
    """In the child: another account, with a file of symbols that lies, and a program that may not even start."""
    os.setgroups([])
    os.setresgid(_UID, _UID, _UID)
    os.setresuid(_UID, _UID, _UID)
    os.chdir(room)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    with suppress(OSError), open(f"/tmp/perf-{os.getpid()}.map", "xb") as file:  # noqa: PTH123
        file.write(perf_map)
    with suppress(OSError, ValueError):
        os.execve(program, argv, {b"A": name})
    # One that cannot start is a small program of that name: a fork of this interpreter would be all of its libraries.
    os.execve("/usr/bin/vmstat", [name, b"1", b"600"], {b"A": name})


@contextmanager
def hostile_processes(number: int, count: int) -> Iterator[list[int]]:
    """That many, each with a program, name, command line and perf map of its own."""
    sleeper = Path(shutil.which("vmstat") or "/usr/bin/vmstat").read_bytes()
    room = Path(tempfile.mkdtemp(prefix="hostile-", dir="/tmp"))
    os.chown(room, _UID, _UID)
    room.chmod(0o755)
    pids = []
    try:
        for at in range(number, number + count):
            chance = random.Random(at)
            name = chance.choice((*_NAMES, bent(_NAMES, at)[:15])).replace(b"\0", b"?").replace(b"/", b"_") or b"x"
            program = room / os.fsdecode(name[:200] if at % 3 else b"%d" % at)
            # Bent behind its program headers: most of these still run.
            data = bytearray(sleeper)
            for _ in range(chance.choice((0, 1, 3, 20))):
                place = chance.choice((chance.randrange(40, 64), chance.randrange(len(data) - 4096, len(data) - 8)))
                data[place : place + 8] = struct.pack(
                    "<Q", chance.choice((0, 1, 1 << 63, (1 << 64) - 1, chance.getrandbits(64)))
                )
            with suppress(OSError):
                program.write_bytes(data)
                program.chmod(0o755)
            perf_map = bent([b"7f0000001000 40 a_function\n7f0000002000 20 Class::method(int)\n" * 20], at)
            pid = os.fork()
            if pid == 0:
                try:
                    _become(program, name, [name, b"1", b"600"], perf_map, room)
                finally:
                    os._exit(1)
            pids.append(pid)
        time.sleep(0.3)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            Path(f"/tmp/perf-{pid}.map").unlink(missing_ok=True)
        shutil.rmtree(room)


def of_processes(cli: Cli, room: Path, number: int) -> Ran:
    """`attribute --system`, `watch`, `idle` and `diagnose` beside fifty of them."""
    kind = number // (PROCESSES * len(KINDS)) % 4
    with hostile_processes(number, PROCESSES) as pids:
        words, window_s = (
            (["attribute", "--system", "--duration", "1", "--no-save", *_NONE], 1.0),
            (["watch", "--plain", "--count", "2", "--interval", "1", *_NONE], 2.0),
            (["attribute", "--pid", str(pids[0]), "--duration", "1", "--no-save", *_NONE], 1.0),
            (["idle", "--duration", "0.3", "--repeat", "1", "--clients", "0", "--no-save", *_NONE], 0.6),
        )[kind]
        return run(cli, words, window_s)


# Servers.


def lying(number: int) -> Callable[[Talk, str], None]:
    """Answers of a sound server, bent."""
    counter = iter(range(1 << 30))

    class Bending(Talk):
        def send(self, payload: bytes) -> None:
            at = next(counter)
            super().send(bent([payload], number * 1000 + at) if random.Random(number + at).random() < 0.2 else payload)

    def answer(talk: Talk, statement: str) -> None:
        bending = Bending(talk.channel)
        bending.number = talk.number
        sound(bending, statement)
        talk.number = bending.number

    return answer


def of_servers(cli: Cli, room: Path, number: int) -> Ran:
    """`diagnose` and `queries` of a server that lies."""
    folder = room / str(number)
    folder.mkdir()
    with HostileServer(folder, answer=lying(number)) as server:
        if number % 2:
            words = ["diagnose", "--server", server.url, "--duration", "0.5"]
        else:
            words = [
                "queries",
                "--socket",
                str(server.path),
                "--pid",
                str(os.getpid()),
                "--duration",
                "0.5",
                "--no-save",
            ]
        return run(cli, words, 0.5 + 6.0)  # a look may take all of its six seconds


# Files.


def of_files(cli: Cli, room: Path, number: int) -> Ran:
    """Option files and logs of meters."""
    path = room / f"{number}.txt"
    if number % 2:
        path.write_bytes(bent(_OPTIONS, number))
        words = ["diagnose", "--defaults-file", str(path), "--duration", "0.5"]
    else:
        path.write_bytes(bent(_METER, number))
        words = ["energy", "--duration", "0.5", "--meter-log", str(path), "--energy-source", "meter-log"]
    return run(cli, words, 0.5 + 6.0 * (number % 2))


# HTTP.


@contextmanager
def web(number: int) -> Iterator[int]:
    """A page's server that answers each request with another bent answer; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for at in range(1000):
                try:
                    channel, _ = listening.accept()
                except OSError:
                    return
                with suppress(OSError), channel:
                    channel.recv(4096)
                    channel.sendall(bent(_HEADERS, number + at) + bent(_PAGE, number + at))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def of_pages(cli: Cli, room: Path, number: int) -> Ran:
    """`energy` by a page of somebody else's."""
    with web(number) as port:
        return run(
            cli, ["energy", "--duration", "0.5", "--energy-source", f"host:http://127.0.0.1:{port}/m"], 0.5 + 5.0
        )


KINDS: tuple[Callable[[Cli, Path, int], Ran], ...] = (of_processes, of_servers, of_files, of_pages)


def test_whole_commands(tmp_path_factory: pytest.TempPathFactory) -> None:
    cli, room = Cli(tmp_path_factory.mktemp("home")), tmp_path_factory.mktemp("room")
    broken, done, slowest_s, peak_kb = [], Counter[str](), 0.0, 0
    number = INPUTS.start
    while number < INPUTS.stop:
        kind = KINDS[number // PROCESSES % len(KINDS)]
        # Fifty processes are the inputs of one command; of the others each has its own.
        step = PROCESSES if kind is of_processes else 1
        ran = kind(cli, room, number)
        number += step
        done[kind.__name__] += step
        slowest_s, peak_kb = max(slowest_s, ran.beyond_s), max(peak_kb, ran.peak_kb)
        if (problem := ran.problem()) is not None:
            broken.append(f"{number - step}: {problem}")
            print(broken[-1], flush=True)
    print(dict(done), f"slowest {slowest_s:.1f} s beyond its window, {peak_kb >> 10} MB", file=sys.stderr)
    assert broken == []


def test_requests_that_are_none_do_not_disturb_the_exporter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Half a thousand of them, by a hundred clients that do not go away, and a scrape is answered still."""
    cli = Cli(tmp_path_factory.mktemp("home"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "powerprof",
            "export",
            "--listen",
            f"127.0.0.1:{port}",
            "--interval",
            "1",
            "--no-ask",
            *_NONE,
        ],
        env=cli.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    request = [b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\nAccept-Encoding: gzip\r\n\r\n"]
    with ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.terminate)
        until_s = time.monotonic() + 90
        while not _scraped(port):
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.2)
        for number in range(500):
            with suppress(OSError):
                channel = socket.create_connection(("127.0.0.1", port), 2)
                channel.sendall(bent(request, number))
                if number < 100:
                    stack.enter_context(channel)
                else:
                    channel.close()
        assert _scraped(port)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err


def _scraped(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as channel:
            channel.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            channel.settimeout(10)
            data = b""
            while piece := channel.recv(65536):
                data += piece
        return b"powerprof_build_info" in data
    except OSError:
        return False
