# SPDX-License-Identifier: Apache-2.0
"""The summary of an error log for three server generations and arbitrary text, and the reading of its end."""

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


def test_evictions_are_counted_since_the_last_start_by_hand() -> None:
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
    log = summarise_log(text, NOW)
    assert (log.same_id_count, log.same_id_last_s, log.retries_count) == (1, 120.0, 1)
    assert log.span_s == 240.0


@pytest.mark.parametrize("word", ["[ERROR] ", "[ERROR] Slave SQL", "[ERROR] Replica SQL for channel '"])
def test_time_for_a_line_grows_with_its_length(word: str) -> None:
    """An error quotes a statement, whose text any account of the primary may choose."""
    line = f"2026-11-20 11:39:30 8 {word * 30_000}"
    # A search from each [ERROR] took more than 9 s.
    assert least_cpu_s(lambda: summarise_log(line, NOW), 1.0) < 1.0


@pytest.mark.parametrize("when", ["2026-11-20 11:39:30 8", "261120 11:39:30"])
def test_starts_of_replicas_are_counted_by_server_id(when: str) -> None:
    text = "\n".join([f"{when} [Note] Start binlog_dump to slave_server(2), pos(binlog.000001, 1079)"] * 5)
    log = summarise_log(text, NOW)
    assert (log.dump_starts, log.dump_last_s) == ({"2": 5}, {"2": 30.0})


def test_messages_of_both_servers_are_understood() -> None:
    stamp = "2026-11-20 11:39:58 12"
    denied = f"{stamp} [Warning] Access denied for user 'repl'@'10.0.0.9' (using password: YES)"
    failed = "[MY-010584] [Repl] Replica SQL for channel 'a': Could not execute Write_rows event on table d.t"
    mariadb = "Slave SQL: Error 'x' on query. Default database: 'd'. Query: 'INSERT INTO t VALUES (5)' Gtid 0-1-5"
    log = summarise_log("\n".join([*[denied] * 3, f"{stamp} [ERROR] {mariadb}", f"{stamp} [ERROR] {failed}"]), NOW)
    assert log.denied == {"repl@10.0.0.9": 3}
    assert log.sql_errors_count == 2
    assert (log.sql_error or "").startswith("Could not execute Write_rows event")


def test_noise_is_ignored() -> None:
    assert summarise_log("\x00\x1b[2J999999 99:99:99 x\n2026-13-45 00:00:00 y\n" * 100, NOW).dump_starts == {}


def test_quoted_statement_is_not_a_login_and_has_no_values() -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - 2))
    quoted = "Query: 'INSERT INTO t VALUES ('Access denied for user 'secret'@'secret'')', Gtid 0-1-5, Internal MariaDB"
    log = summarise_log(
        f"{stamp} 5 [ERROR] Slave SQL: Error 'x' on query. Default database: 'd'. {quoted} error code: 1062"
    )
    assert (log.denied, log.sql_errors_count) == ({}, 1)
    assert log.sql_error == "Error on query: INSERT INTO t VALUES (?"


def test_only_the_end_of_a_regular_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Open a path as the reader process opens paths of other processes."""
    try:
        os.close(reader_child._open_regular(b"", os.fsencode(path), True))
    except OSError as error:
        assert error.errno == reader_child.NOT_REGULAR
    else:
        raise AssertionError("a pipe was opened")


@pytest.mark.parametrize("read", [opened_by_the_reader, lambda path: read_outside_text(path)])
def test_file_that_becomes_a_pipe_before_it_is_opened_does_not_block(
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
def test_file_with_a_lease_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    """Opening it would break the lease and wait up to 45 s for its holder (/proc/sys/fs/lease-break-time)."""
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
    """Raise an error in a block that takes longer."""

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
    """Call `act` immediately before `path` is opened, after all checks by name."""
    left = [act]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and left and arguments[0] in (path, str(path), os.fsencode(path)):
            left.pop()()

    sys.addaudithook(hook)
    try:
        yield
    finally:
        left.clear()
