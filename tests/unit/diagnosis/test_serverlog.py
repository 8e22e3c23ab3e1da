# SPDX-License-Identifier: Apache-2.0
"""The end of an error log, in the words of three server generations, and with anything else in it."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.diagnosis.collect import read_log_end, summarise_log
from powerprof.system import reader_child
from powerprof.system.errors import DataError
from powerprof.system.files import read_outside_text
from tests.programs.cpu_time import least_cpu_s

NOW = time.mktime((2026, 11, 20, 11, 40, 0, 0, 0, -1))


def test_evictions_since_replication_was_started_last() -> None:
    same = "[ERROR] Error reading packet from server: A slave with the same server_uuid/server_id as this slave has"
    text = "\n".join(
        [
            f"2026-11-20 11:00:00 7 {same} connected to the master (server_errno=4052)",
            f"2026-11-20 11:36:00 7 {same} connected to the master (server_errno=4052)",
            "2026-11-20 11:37:00 9 [Note] Slave I/O thread: Start asynchronous replication to master 'r@[::1]:3306'",
            f"2026-11-20 11:38:00 9 {same} connected to the master (server_errno=4052)",
            "2026-11-20 11:38:00 9 [Note] Slave I/O thread: Failed reading log event, reconnecting to retry, log 'b.1'",
        ]
    )
    found = summarise_log(text, NOW)
    assert (found.same_id_count, found.same_id_last_s, found.retries_count) == (1, 120.0, 1)
    assert found.span_s == 240.0


@pytest.mark.parametrize("word", ["[ERROR] ", "[ERROR] Slave SQL", "[ERROR] Replica SQL for channel '"])
def test_a_line_takes_time_with_its_length(word: str) -> None:
    """A replica's error quotes the statement, which any account of its primary may have chosen."""
    line = f"2026-11-20 11:39:30 8 {word * 30_000}"
    # 9 s and more where each [ERROR] was tried.
    assert least_cpu_s(lambda: summarise_log(line, NOW), 1.0) < 1.0


@pytest.mark.parametrize("when", ["2026-11-20 11:39:30 8", "261120 11:39:30"])
def test_replicas_that_begin_to_read(when: str) -> None:
    text = "\n".join([f"{when} [Note] Start binlog_dump to slave_server(2), pos(binlog.000001, 1079)"] * 5)
    found = summarise_log(text, NOW)
    assert (found.dump_starts, found.dump_last_s) == ({"2": 5}, {"2": 30.0})


def test_a_log_of_noise_says_nothing() -> None:
    assert summarise_log("\x00\x1b[2J999999 99:99:99 x\n2026-13-45 00:00:00 y\n" * 100, NOW).dump_starts == {}


def test_a_statement_that_a_line_quotes_is_no_login_and_has_no_values() -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - 2))
    quoted = "Query: 'INSERT INTO t VALUES ('Access denied for user 'secret'@'secret'')', Gtid 0-1-5, Internal MariaDB"
    log = summarise_log(
        f"{stamp} 5 [ERROR] Slave SQL: Error 'x' on query. Default database: 'd'. {quoted} error code: 1062"
    )
    assert (log.denied, log.sql_errors_count) == ({}, 1)
    assert log.sql_error == "Error on query: INSERT INTO t VALUES (?"


def test_only_the_end_of_a_file_is_read_and_nothing_but_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    folder = tmp_path / "77/fd"
    folder.mkdir(parents=True)
    (folder / "2").write_bytes(b"x" * (1 << 20) + b"end")
    text = read_log_end(77)
    assert text is not None
    assert (len(text), text[-3:]) == (256 << 10, "end")
    (folder / "2").unlink()
    os.mkfifo(folder / "2")
    assert read_log_end(77) is None
    assert read_log_end(78) is None


def opened_by_the_reader(path: Path) -> None:
    """Open a path as the child does that reads paths of other processes."""
    try:
        os.close(reader_child._open_regular(b"", os.fsencode(path), True))
    except OSError as error:
        assert error.errno == reader_child.NOT_REGULAR
    else:
        raise AssertionError("a pipe was opened")


@pytest.mark.parametrize("read", [opened_by_the_reader, lambda path: read_outside_text(path)])
def test_a_file_that_becomes_a_pipe_between_looking_and_opening_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    path = tmp_path / "77/fd/2"
    path.parent.mkdir(parents=True)
    path.write_text("a log")
    with exchanged(path, lambda: (path.unlink(), os.mkfifo(path))), within(5.0):
        try:
            assert read(path) is None
        except DataError as error:
            assert error.reason == "not a regular file"


@pytest.mark.parametrize("read", [lambda path: read_log_end(77), lambda path: read_outside_text(path)])
def test_a_file_on_which_somebody_holds_a_lease_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    """Opening it breaks the lease, and waits for its holder: 45 s (/proc/sys/fs/lease-break-time)."""
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    path = tmp_path / "77/fd/2"
    path.parent.mkdir(parents=True)
    path.write_text("a log")
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    with path.open("r+") as held, within(5.0):
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        try:
            assert read(path) is None
        except DataError as error:
            assert error.reason == "another process holds a lease on it"


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What waits longer is ended by an error."""

    def end(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def exchanged(path: Path, act: Callable[[], object]) -> Iterator[None]:
    """`act` runs at the last instant before `path` is opened: what was looked at by its name before is past."""
    left = [act]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and left and arguments[0] in (path, str(path), os.fsencode(path)):
            left.pop()()

    sys.addaudithook(hook)
    try:
        yield
    finally:
        left.clear()
