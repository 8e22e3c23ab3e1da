# SPDX-License-Identifier: Apache-2.0
"""What can happen to a cure in the middle: others who change the same, targets that end, a suspend, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from powerprof.cure.records import Cure
from powerprof.database import sql
from powerprof.database.base import Sql
from powerprof.database.private_server import PrivateServer
from powerprof.model.runs import decode_record
from tests.conftest import REPOSITORY, Cli
from tests.programs.suspended import suspended_while_it_sleeps
from tests.programs.truth import compiled
from tests.programs.waiting import wait_until
from tests.system.cure.test_cure import (
    CURED,
    DEFAULT,
    Truth,
    cure,
    options_of,
    start_shortening,
    traces,
    with_own_journal,
)

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd")
_VARIABLE = "max_connect_errors"
_ENDING = """
import ctypes, os, sys, threading, time
def short():
    ctypes.CDLL(None).prctl(15, b"short-lived", 0, 0, 0)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
thread = threading.Thread(target=short)
thread.start()
print(thread.native_id, flush=True)
time.sleep(600)
"""


@pytest.fixture
def powerprof_cli(powerprof_cli: Cli, tmp_path: Path) -> Cli:
    """Separate the journal from that of other commands of root."""
    return with_own_journal(powerprof_cli, tmp_path)


@pytest.fixture
def truth(tmp_path: Path, compilers: Sequence[str]) -> Iterator[Truth]:
    running = Truth(compiled(compilers[0], "slack_truth.c", tmp_path), tmp_path, 1)
    yield running
    running.end()


@pytest.fixture
def server(pooled_server: Callable[..., PrivateServer]) -> Iterator[PrivateServer]:
    started = pooled_server()
    yield started
    with started.connect() as connection:
        sql.execute(connection, f"SET GLOBAL {_VARIABLE} = DEFAULT")


def value(server: PrivateServer) -> int:
    with server.connect() as connection:
        return int(sql.fetch_scalar(connection, f"SELECT @@GLOBAL.{_VARIABLE}"))


def of_variable(server: PrivateServer, folder: Path, window_s: float) -> list[str]:
    return ["cure", "--pid", str(server.pid), "--defaults-file", str(options_of(server, folder)),
            "--set", f"{_VARIABLE}=777", "--duration", str(window_s), "--pairs", "3", "--yes", "--no-save",
            "--meter", "none"]  # fmt: skip


@contextmanager
def changing(server: PrivateServer, cli: Cli, folder: Path, window_s: float = 2.5) -> Iterator[subprocess.Popen[str]]:
    """Yield a cure in a window with the changed variable."""
    process = cli.start(of_variable(server, folder, window_s))
    try:
        wait_until(lambda: traces(process.pid) and value(server) == 777, "it does not change the variable")
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def running(server: PrivateServer, powerprof_cli: Cli, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """See `changing`."""
    with changing(server, powerprof_cli, tmp_path) as process:
        yield process


def test_keep_and_report_a_value_set_during_a_window(
    server: PrivateServer, running: subprocess.Popen[str], powerprof_cli: Cli
) -> None:
    with server.connect() as connection:
        sql.execute(connection, f"SET GLOBAL {_VARIABLE} = 888")
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert f"error: another user set {_VARIABLE} to 888 during the test; it stays so (before the test: 100)" in err
    assert value(server) == 888
    assert powerprof_cli(["runs"]).err == ""
    assert value(server) == 888


def test_keep_and_report_a_value_set_between_windows(server: PrivateServer, powerprof_cli: Cli, tmp_path: Path) -> None:
    with changing(server, powerprof_cli, tmp_path, 1.0) as process:
        wait_until(lambda: value(server) == 100, "it does not put it back")
        with server.connect() as connection:
            sql.execute(connection, f"SET GLOBAL {_VARIABLE} = 888")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "888" in err
    assert "another user" in err
    assert value(server) == 888


@pytest.mark.parametrize("again", [False, True], ids=["killed", "started again"])
def test_report_a_server_that_ends_during_a_cure(powerprof_cli: Cli, tmp_path: Path, again: bool) -> None:
    with PrivateServer() as server, changing(server, powerprof_cli, tmp_path) as process:
        os.kill(server.pid, signal.SIGKILL)
        if again:
            wait_until(lambda: not server.alive(), "it does not end")
            (server.directory / "init.sql").touch(0o644)  # it was removed once it had been read
            server._launch()
            server.wait_ready()
            assert value(server) == 100
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "Traceback" not in err
        assert "could not be put back" not in err
        (error,) = [line for line in err.splitlines() if line.startswith("error: ")]
        assert "ended" in error or "gone" in error
        assert powerprof_cli(["runs"]).err == ""
        if again:
            assert value(server) == 100


def test_refuse_a_second_cure_of_a_variable(
    server: PrivateServer, running: subprocess.Popen[str], powerprof_cli: Cli, tmp_path: Path
) -> None:
    for name in (_VARIABLE, _VARIABLE.upper()):
        words = [word.replace(f"{_VARIABLE}=777", f"{name}=999") for word in of_variable(server, tmp_path, 0.5)]
        refused = powerprof_cli(words)
        assert refused.code == 1
        assert f"another powerprof is trying {name} now (process {running.pid})" in refused.err
    assert value(server) in (100, 777)  # as the first one has it in its turns


def test_refuse_a_second_cure_of_a_thread(truth: Truth, powerprof_cli: Cli) -> None:
    first = start_shortening(powerprof_cli, truth)
    try:
        refused = powerprof_cli(cure(truth, "--slack", "5ms"))
        assert refused.code == 1
        assert f"is trying the timer slack of thread {truth.tid} now (process {first.pid})" in refused.err
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)
    finally:
        first.kill()
        first.communicate()
    assert truth.slack() == CURED


def test_report_a_thread_that_ends_during_a_cure(powerprof_cli: Cli, tmp_path: Path) -> None:
    words = [sys.executable, "-c", _ENDING, str(tmp_path / "end")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        tid = int(program.stdout.readline())
        slack = Path(f"/proc/{tid}/timerslack_ns")
        words = ["cure", "--pid", str(program.pid), "--thread", str(tid), "--slack", "40us", "--duration", "2",
                 "--pairs", "9", "--yes", "--no-save", "--meter", "none"]  # fmt: skip
        process = powerprof_cli.start(words)
        try:
            wait_until(lambda: traces(process.pid) and slack.read_text().strip() == "40000", "it changes no slack")
            (tmp_path / "end").touch()
            out, err = process.communicate(timeout=90)
        finally:
            process.kill()
            program.kill()
    assert process.returncode == 1, out
    assert "gone" in err
    assert "Traceback" not in err
    assert powerprof_cli(["runs"]).err == ""


def test_note_a_suspended_window_and_restore(truth: Truth, powerprof_cli: Cli, tmp_path: Path) -> None:
    saved, asleep = tmp_path / "cure.json", tmp_path / "asleep"
    words = [*cure(truth, "--slack", "50ms", window_s=1), "--no-save", "--json", str(saved)]
    # Once all is loaded and the slack changed it waits in windows, and half a second in between for what settles.
    process = powerprof_cli.start(words, env=suspended_while_it_sleeps(tmp_path, asleep))
    try:
        wait_until(lambda: truth.slack() == CURED and traces(process.pid), "it does not change the slack")
        asleep.touch()
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert truth.slack() == DEFAULT
    record = decode_record(saved, Cure)
    assert (record.reverted, record.read_back) == (True, DEFAULT)
    assert [note for note in record.notes if "the host was suspended for 3600" in str(note)]
    # No rate has the hour in it: 50 ms late it wakes 19.6 times a second at least, and 0.3 times with the hour. How
    # much it saves is not asked here: timers of others, which a busy host has, end its sleeps early.
    assert len(record.blocks) == 6
    for block in record.blocks:
        assert block.thread_wakings_count is not None
        assert block.counted_s < 60
        assert 15 < block.thread_wakings_count / block.counted_s < 1100, record.blocks


_FULL = (
    'mount -t tmpfs -o size=64k,mode=700 none "$0" && mkdir -m 700 -p /run/powerprof-changed && '
    'mount --bind "$0" /run/powerprof-changed && { cat /dev/zero > "$0"/full 2>/dev/null; exec "$@"; }'
)


def test_change_nothing_without_space_for_the_journal(truth: Truth, powerprof_cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "full"
    place.mkdir(0o700)
    within = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _FULL, str(place))
    done = replace(powerprof_cli, within=within)(cure(truth, "--slack", "50ms", "--no-save"), timeout=60)
    assert done.code == 1, done.out
    assert "cannot write down old values in /run/powerprof-changed (no space left on device)" in done.err
    assert "so nothing is changed" in done.err
    assert truth.slack() == DEFAULT


_UNSAFE = "NO_BACKSLASH_ESCAPES"


def session_modes(server: PrivateServer, clients: Sequence[Sql]) -> list[int]:
    """Return the numbers of the connections with the value of the cure."""
    assert server.alive()
    return [
        int(sql.fetch_scalar(client, "SELECT CONNECTION_ID()"))
        for client in clients
        if sql.fetch_scalar(client, "SELECT @@SESSION.sql_mode") == _UNSAFE
    ]


def test_ask_about_copied_variables_and_list_the_connections(
    server: PrivateServer, powerprof_cli: Cli, tmp_path: Path
) -> None:
    words = [word.replace(f"{_VARIABLE}=777", f"sql_mode={_UNSAFE}") for word in of_variable(server, tmp_path, 0.5)]
    with server.connect() as connection:
        before = sql.fetch_scalar(connection, "SELECT @@GLOBAL.sql_mode")
        refused = powerprof_cli(words, timeout=60)
        assert refused.code == 2
        assert "--yes does not cover sql_mode" in refused.err
        assert sql.fetch_scalar(connection, "SELECT @@GLOBAL.sql_mode") == before
        words = [word for word in words if word != "--yes"]
        clients, asked = [server.connect()], b""
        terminal, side = os.openpty()
        process = subprocess.Popen(
            [*powerprof_cli.within, sys.executable, "-m", "powerprof", *words, "--json", tmp_path / "c.json"],
            env=powerprof_cli.environment({}),
            cwd=REPOSITORY,
            stdin=side,
            stdout=subprocess.DEVNULL,
            stderr=side,
        )
        os.close(side)
        while b"Try it?" not in asked:
            asked += os.read(terminal, 4096)
        question = b" ".join(asked.split())
        assert b"connections opened during the change keep NO_BACKSLASH_ESCAPES until they end" in question
        os.write(terminal, b"y\n")
        drain = threading.Thread(target=lambda: [*iter(lambda: _read(terminal), b"")])
        drain.start()
        while process.poll() is None:
            clients.append(server.connect())
            time.sleep(0.2)
        drain.join()
        os.close(terminal)
        assert process.returncode == 0
        assert sql.fetch_scalar(connection, "SELECT @@GLOBAL.sql_mode") == before
    kept = session_modes(server, clients)
    assert 0 < len(kept) < len(clients) - 1
    (note,) = [str(note) for note in decode_record(tmp_path / "c.json", Cure).notes if "keep that value" in str(note)]
    found = int(note.split()[0])
    assert len(kept) <= found < len(clients) - 1, "the first one, and those between the changes, are not listed"
    assert f"{kept[0]} powerprof@localhost" in note
    for client in clients:
        client.close()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # EIO: the process has ended.
        return b""


def test_end_a_cure_that_raises_latency(server: PrivateServer, powerprof_cli: Cli, tmp_path: Path) -> None:
    """A variable that makes every statement of a client slower at once: a sum is read again, a count would be known."""
    ended = threading.Event()

    def work() -> None:
        with server.connect() as connection:
            while not ended.is_set():
                sql.fetch_rows(connection, "SELECT SUM(n) FROM c.t")

    with server.connect() as connection:
        sql.execute(
            connection,
            "CREATE DATABASE c",
            "CREATE TABLE c.t (n INT) ENGINE=Aria",
            "USE c",
            "INSERT INTO c.t SELECT seq FROM seq_1_to_30000",
            "SET GLOBAL query_cache_type = OFF",
        )
    words = [word.replace(f"{_VARIABLE}=777", "query_cache_size=0") for word in of_variable(server, tmp_path, 1.0)]
    with server.connect() as connection:
        sql.execute(connection, "SET GLOBAL query_cache_size = 33554432", "SET GLOBAL query_cache_type = ON")
    client = threading.Thread(target=work)
    client.start()
    try:
        done = powerprof_cli(words, timeout=120)
    finally:
        ended.set()
        client.join()
        with server.connect() as connection:
            restored = sql.fetch_scalar(connection, "SELECT @@GLOBAL.query_cache_size")
            defaults = [f"SET GLOBAL query_cache_{name} = DEFAULT" for name in ("type", "size")]
            sql.execute(connection, "DROP DATABASE c", *defaults)
    assert done.code == 0, done.err
    assert done.out.startswith("Stopped early: p95 latency of statements rose by "), done.out
    assert restored == 33554432


_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def check_wakes_less(record: Cure) -> None:
    """How much less is the host's affair: timers of others end sleeps early, on a busy host many."""
    a, b = record.metrics[0].a.mean, record.metrics[0].b.mean
    assert a is not None and b is not None and 15 < b < a < 1100


def test_cure_a_container_from_the_host(powerprof_cli: Cli, compilers: Sequence[str], tmp_path: Path) -> None:
    """It is process 1 there, and its thread has a number of that container."""
    program = compiled(compilers[0], "slack_truth.c", tmp_path)
    with subprocess.Popen([*_APART, program, tmp_path / "count", "1"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        inner = int(shell.stdout.readline().split()[1])
        (target,) = psutil.Process(shell.pid).children()
        words = ["cure", "--pid", str(target.pid), "--thread", "truth-poller", "--slack", "50ms", "--duration", "0.5",
                 "--pairs", "3", "--yes", "--no-save", "--meter", "none",
                 "--json", str(tmp_path / "c.json")]  # fmt: skip
        done = powerprof_cli(words, timeout=90)
        record = decode_record(tmp_path / "c.json", Cure)
        assert record.remedy.thread is not None
        tid = record.remedy.thread.tid
        assert tid != inner
        slack = Path(f"/proc/{tid}/timerslack_ns").read_text().strip()
        shell.kill()
    assert done.code == 0, done.err
    check_wakes_less(record)
    assert record.reverted is True
    assert slack == DEFAULT


def test_count_wakeups_in_a_container(compilers: Sequence[str], tmp_path: Path) -> None:
    program = compiled(compilers[0], "slack_truth.c", tmp_path)
    words = ["cure", "--pid", "slack_truth", "--thread", "truth-poller", "--slack", "50ms", "--duration", "0.5",
             "--pairs", "3", "--yes", "--no-save", "--meter", "none", "--json", "-"]  # fmt: skip
    inside = [*_APART, "sh", "-c", 'program=$1; count=$2; shift 2; "$program" "$count" 1 >&2 & sleep 1; exec "$@"']
    done = subprocess.run(
        [*inside, "sh", program, tmp_path / "count", sys.executable, "-m", "powerprof", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    record = msgspec.json.decode(done.stdout, type=Cure)
    check_wakes_less(record)
    assert record.reverted is True
    assert not any("not traced" in str(note) for note in record.notes)
