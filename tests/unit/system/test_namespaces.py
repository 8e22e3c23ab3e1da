# SPDX-License-Identifier: Apache-2.0
"""Numbers that a server in a container gives its threads, and which threads of this host they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database.clients.given import is_server_name
from powerprof.system.tasks import read_outer_ids


def thread(procfs: Path, tid: int, spoken: str) -> None:
    folder = procfs / "4711/task" / str(tid)
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tmysqld\n{spoken}")


def test_threads_of_a_container_are_found_by_their_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    thread(tmp_path, 4711, "NSpid:\t4711\t1\n")
    thread(tmp_path, 4730, "NSpid:\t4730\t3\t19\n")
    assert read_outer_ids(4711) == {1: 4711, 19: 4730}


@pytest.mark.parametrize("spoken", ["NSpid:\t4711\n", "", "NSpid:\tx\n"])
def test_threads_of_this_namespace_are_called_what_they_are(
    spoken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    thread(tmp_path, 4711, spoken)
    assert read_outer_ids(4711) == read_outer_ids(4712) == read_outer_ids(None) == {}


@pytest.mark.parametrize(
    ("program", "so"),
    [("mysqld", True), ("mariadbd", True), ("mysqld-debug", True), ("mysqldump", False), ("mysqld_exporter", False)],
)
def test_a_server_is_known_by_its_name(program: str, so: bool) -> None:
    assert is_server_name(program) is so
