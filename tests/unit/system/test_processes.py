# SPDX-License-Identifier: Apache-2.0
"""Processes of a host: names and owners."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from powerprof.system import processes
from powerprof.system.processes import language_of
from powerprof.system.reader_process import FileStatus
from tests.conftest import Tree
from tests.unit.system.conftest import add_process


def _status(uid: int = 0, gid: int = 0, mode: int = 0o755) -> FileStatus:
    return FileStatus(9, 8, 7, 6, uid, gid, stat.S_IFREG | mode, 4096, False)


@pytest.mark.parametrize(
    ("uids", "program", "reason"),
    [
        ({0}, _status(), None),
        ({112}, _status(), None),
        ({0, 112}, _status(112), None),
        ({0, 1001}, _status(), "runs as 1001"),
        ({112, 113}, _status(), "runs as 113"),
        (set(), _status(), "runs as an unknown account"),
        ({112}, None, "its program belongs to an unknown account"),
        ({112}, _status(1001), "its program belongs to 1001"),
        ({112}, _status(113), "its program belongs to 113"),
        ({112}, _status(mode=0o757), "every user may write to its program"),
        ({112}, _status(gid=5, mode=0o775), "group 5 may write to its program"),
        ({112}, _status(gid=0, mode=0o775), None),
    ],
)
def test_a_server_is_trusted_with_its_accounts_and_program(
    monkeypatch: pytest.MonkeyPatch, uids: set[int], program: FileStatus | None, reason: str | None
) -> None:
    monkeypatch.setattr(processes, "account_of", lambda _: None)
    assert processes._find_distrust(uids, program, {0, 112}, False) == reason


def test_the_program_of_any_service_is_trusted_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "is_system_account", lambda uid: uid < 1000)
    monkeypatch.setattr(processes, "account_of", lambda _: None)
    assert processes._find_distrust({113}, _status(113), {0, 113}, True) is None
    assert processes._find_distrust({113}, _status(1001), {0, 113}, True) == "its program belongs to 1001"


_PASSWD = (
    "root:x:0:0::/:/bin/sh\nmysql:x:112:113:MySQL:/:/bin/false\nalice:x:1001:1002::/:/bin/sh\npostgres:x:26:27::\n"
)


@pytest.mark.parametrize(
    ("mode", "is_file", "numbers"), [(0o644, True, {112, 26}), (0o664, True, set()), (0o644, False, set())]
)
def test_server_accounts_are_those_of_the_processs_own_passwd_file(
    root: None, fake_tree: Tree, tmp_path: Path, mode: int, is_file: bool, numbers: set[int]
) -> None:
    folder = add_process(fake_tree, 7, "/usr/sbin/mysqld")
    (tmp_path / "inside/etc").mkdir(parents=True)
    passwd = tmp_path / "inside/etc/passwd"
    passwd.write_text(_PASSWD) if is_file else os.mkfifo(passwd)
    passwd.chmod(mode)
    (folder / "root").symlink_to(tmp_path / "inside")
    (folder / "ns").symlink_to("/proc/self/ns")
    assert processes._read_server_uids(7) == numbers
    assert processes.is_server_account(7, 0)
    assert processes.is_server_account(7, 112) is bool(numbers)
    if is_file:
        os.chown(passwd, 1001, 0)
        assert processes._read_server_uids(7) == set(), "its owner could name any account"


def test_servers_of_their_package_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    server, service = {10}, {10, 20}
    trusted = {False: server, True: service}

    def owner(pid: int, *, any_service: bool = False) -> processes.ProcessOwner:
        return processes.ProcessOwner("a", "/p", None if pid in trusted[any_service] else "runs as eve")

    monkeypatch.setattr(processes, "owner_of", owner)
    assert processes.select_trusted([10, 20, 30]) == [10]
    assert processes.select_trusted([20, 30]) == [20]
    assert processes.select_trusted([30, 40]) == [30, 40]


def test_an_unknown_owner_is_not_trusted(fake_tree: Tree) -> None:
    add_process(fake_tree, 7, "/usr/sbin/odd\x1b (deleted)", uids=(0, 1001, 0, 0))
    assert processes.uids_of(7) == {0, 1001} and processes.uids_of(8) == set()
    owner = processes.owner_of(7)
    assert owner.program == "/usr/sbin/odd?" and (owner.distrust or "").startswith("runs as ")
    assert processes.owner_of(8) == processes.ProcessOwner(
        "an unknown account", "unknown", "runs as an unknown account"
    )


@pytest.mark.parametrize(
    ("exe", "comm", "name", "label"),
    [
        ("/usr/sbin/mariadbd", "mysqld", "mariadbd", "mariadbd"),
        ("/usr/bin/redis-check-rdb", "redis-server", "redis-check-rdb", "redis-server"),
        ("/usr/bin/a-very-long-program", "a-very-long-pro", "a-very-long-program", "a-very-long-program"),
        ("/usr/bin/python3.11 (deleted)", "python3", "python3.11", "python3.11"),
        ("", "worker", "worker", "worker"),
    ],
)
def test_a_process_has_its_programs_name_or_its_own(
    fake_tree: Tree, exe: str, comm: str, name: str, label: str
) -> None:
    add_process(fake_tree, 7, exe, comm=comm)
    assert (processes.name_of(7), processes.label_of(7)) == (name, label)
    assert (processes.name_of(8), processes.label_of(8)) == (None, "8")
    assert processes.list_pids() == [7]


@pytest.mark.parametrize(
    ("exe", "maps", "head", "language"),
    [
        ("/opt/java/bin/java", "", b"", "Java"),
        ("/usr/bin/nodejs", "", b"", "Node"),
        ("/opt/app", "7f0 r-xp 0 0 0 /opt/jdk/libjvm.so\n", b"", "Java"),
        ("/opt/app", "7f0 r-xp 0 0 0 /opt/mylibjvm.so\n", b"", None),
        ("/opt/app", "", b"\x7fELF\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id", "Go"),
        ("/opt/app", "", b"\x7fELF Go", None),
    ],
)
def test_a_run_time_is_known_by_program_library_or_note(
    fake_tree: Tree, tmp_path: Path, exe: str, maps: str, head: bytes, language: str | None
) -> None:
    program = tmp_path / exe.lstrip("/")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(head)
    add_process(fake_tree, 7, str(program), files={"maps": maps})
    assert language_of(7) == language
    assert language_of(8) is None
