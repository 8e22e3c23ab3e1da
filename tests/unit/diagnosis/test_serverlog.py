# SPDX-License-Identifier: Apache-2.0
"""The end of an error log, in the words of three server generations, and with anything else in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from powerprof.diagnosis.serverlog import read_log_end, summarise

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
    found = summarise(text, NOW)
    assert (found.same_id_count, found.same_id_last_s, found.retries_count) == (1, 120.0, 1)
    assert found.span_s == 240.0


@pytest.mark.parametrize("when", ["2026-11-20 11:39:30 8", "261120 11:39:30"])
def test_replicas_that_begin_to_read(when: str) -> None:
    text = "\n".join([f"{when} [Note] Start binlog_dump to slave_server(2), pos(binlog.000001, 1079)"] * 5)
    found = summarise(text, NOW)
    assert (found.dump_starts, found.dump_last_s) == ({"2": 5}, {"2": 30.0})


def test_a_log_of_noise_says_nothing() -> None:
    assert summarise("\x00\x1b[2J999999 99:99:99 x\n2026-13-45 00:00:00 y\n" * 100, NOW).dump_starts == {}


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
