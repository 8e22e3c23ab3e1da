# SPDX-License-Identifier: Apache-2.0
"""Processes of a host: listeners, owners, titles, names and run-times."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from powerprof.system import processes
from powerprof.system.reader_process import FileStatus
from tests.conftest import Tree


def add_process(
    fake_tree: Tree,
    pid: int,
    exe: str,
    *,
    comm: str = "",
    uids: Iterable[int] = (0, 0, 0, 0),
    files: Mapping[str, str] = {},
) -> Path:
    """Add a process to the made-up /proc. Return its folder."""
    numbers = "\t".join(map(str, uids))
    texts = {"comm": f"{comm or Path(exe).name[:15]}\n", "status": f"Name:\tx\nState:\tS\nUid:\t{numbers}\n", **files}
    folder = fake_tree({f"proc/{pid}/{name}": text for name, text in texts.items()}) / f"proc/{pid}"
    if exe:
        (folder / "exe").symlink_to(exe)
    return folder


_TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_ROW = " {}: 00000000:{:04X} 0100007F:{:04X} {} 00000000:00000000 00:00000000 00000000   112        0 {} 1\n"
_UNIX = "Num       RefCount Protocol Flags    Type St Inode Path\n"


@pytest.fixture
def listening(fake_tree: Tree) -> int:
    """Return a process that listens on ports 3306, 3307 and 33060, and on two sockets. Another one has port 5432."""
    rows = [
        _ROW.format(0, 3307, 9999, "0A", 11),
        _ROW.format(1, 3308, 40001, "01", 12),
        _ROW.format(2, 5432, 0, "0A", 99),
        _ROW.format(3, 33060, 0, "0A", 13),
    ]
    sockets = [
        "0000000000000000: 00000002 00000000 00010000 0001 01 21 /run/mysqld/mysqld.sock\n",
        "0000000000000000: 00000002 00000000 00010000 0001 01 22 /run/with blank.sock\n",
        "0000000000000000: 00000003 00000000 00000000 0001 03 23 /run/connected.sock\n",
        "0000000000000000: 00000002 00000000 00010000 0001 01 98 /run/another.sock\n",
        "0000000000000000: 00000002 00000000 00010000 0001 01 24 @abstract\n",
        "0000000000000000: 00000002 00000000 00010000 0001 01 25\n",
    ]
    files = {"net/tcp": _TCP + "".join(rows), "net/tcp6": _TCP + _ROW.format(0, 3306, 0, "0A", 14)}
    folder = add_process(fake_tree, 7, "/usr/sbin/mysqld", files={**files, "net/unix": _UNIX + "".join(sockets)})
    (folder / "fd").mkdir()
    for number, inode in enumerate((11, 12, 13, 14, 21, 22, 23, 24, 25)):
        (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    (folder / "fd/90").symlink_to("/var/log/99")
    return 7


def test_ports_and_sockets_are_those_on_which_a_process_listens(listening: int) -> None:
    assert processes.list_tcp_ports(listening) == [3306, 3307, 33060]
    assert processes.list_unix_sockets(listening) == ["/run/mysqld/mysqld.sock", "/run/with blank.sock"]
    text = "port 3306, port 3307, port 33060, /run/mysqld/mysqld.sock, /run/with blank.sock"
    assert processes.describe_listeners(listening) == text


def test_a_process_that_cannot_be_read_has_no_listener(listening: int) -> None:
    assert processes.list_tcp_ports(8) == processes.list_unix_sockets(8) == []
    assert processes.describe_listeners(8) == ""


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
    assert processes._distrust(uids, program, {0, 112}, False) == reason


def test_the_program_of_any_service_is_trusted_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "is_system_account", lambda uid: uid < 1000)
    monkeypatch.setattr(processes, "account_of", lambda _: None)
    assert processes._distrust({113}, _status(113), {0, 113}, True) is None
    assert processes._distrust({113}, _status(1001), {0, 113}, True) == "its program belongs to 1001"


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
    ("name", "is_server"),
    [
        *[(name, True) for name in ("mysqld", "mariadbd", "mysqld-debug")],
        *[(name, False) for name in ("mysqldump", "mysqld_safe", "mariadbd-safe", "mysqld_exporter", "postgres", None)],
    ],
)
def test_servers_are_recognised_by_their_names(name: str | None, is_server: bool) -> None:
    assert processes.is_server_name(name) is is_server


# (title, role, client): the client's account and host.
_TITLES = [
    ("postgres: checkpointer ", "checkpointer", None),
    ("postgres: 15/main: walwriter   ", "walwriter", None),
    ("postgres: logical replication launcher", "logical replication launcher", None),
    ("postgres: autovacuum worker shop", "autovacuum worker shop", None),
    ("postgres: app shop [local] SELECT", "backend of shop", ("app", None)),
    ("postgres: 17/main: app shop 10.0.0.7(55412) idle in transaction", "backend of shop", ("app", "10.0.0.7")),
    ("postgres: app shop ::1(9) idle", "backend of shop", ("app", "::1")),
    ("postgres: parallel worker for PID 812", "parallel worker", None),
    ("postgres: startup recovering 000000010000", "startup", None),
    ("postgres: pglogical apply 16384:2342", "pglogical apply 16384:2342", None),
    ("postgres: walsender repl 10.0.0.9(4711) streaming 0/3000148", "walsender repl 10.0.0.9(4711)", None),
    ("/usr/lib/postgresql/15/bin/postgres -D data", None, None),
    ("postgres: app \x1b[31m [local] idle", "backend of ?[31m", ("app", None)),
]


@pytest.mark.parametrize(("title", "role", "client"), _TITLES)
def test_a_title_has_a_role_and_a_clients_account(
    title: str, role: str | None, client: tuple[str, str | None] | None
) -> None:
    assert processes.parse_part(title) == role
    assert processes.parse_client(title) == client
    assert processes.parse_database(role or "") == ((role or "").removeprefix("backend of ") if client else None)


def test_roles_are_those_of_readable_titles(fake_tree: Tree) -> None:
    add_process(fake_tree, 7, "/p/postgres", files={"cmdline": "postgres: checkpointer \0\0"})
    add_process(fake_tree, 8, "/p/postgres", files={"cmdline": "/p/postgres\0-D\0/d\0"})
    add_process(fake_tree, 9, "/p/postgres", files={"cmdline": ""})
    assert processes.server_names([7, 8, 9, 10]) == {7: "checkpointer"}
    assert processes.read_titles([7, 8, 9, 10]) == {7: "postgres: checkpointer   ", 8: "/p/postgres -D /d "}


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
    assert processes.language_of(7) == language
    assert processes.language_of(8) is None
