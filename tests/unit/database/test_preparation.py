# SPDX-License-Identifier: Apache-2.0
"""Options of private servers, ports, room, and copies of a data directory that belongs to another user."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.database import preparation
from powerprof.database.builds import ServerBuild
from powerprof.database.preparation import ServerOptions, check_room_in, choose_port
from powerprof.system.errors import PowerprofError, UsageError


def test_a_copy_has_the_same_files_and_private_modes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "mysql").mkdir(parents=True)
    data = os.urandom(300_000)
    (source / "mysql/db.ibd").write_bytes(data)
    (source / "empty").touch(0o666)
    preparation.clone_folder(source, tmp_path / "copy", None)
    assert (tmp_path / "copy/mysql/db.ibd").read_bytes() == data
    assert (tmp_path / "copy/empty").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "copy/mysql").stat().st_mode & 0o777 == 0o700
    assert preparation.measure_folder(source) >= 300_000


def test_links_and_devices_are_not_followed(tmp_path: Path) -> None:
    for name, make in (("link", lambda path: path.symlink_to("/etc/passwd")), ("fifo", os.mkfifo)):
        source = tmp_path / name
        source.mkdir()
        make(source / "x")
        with pytest.raises(PowerprofError, match=r"is not a regular file|cannot copy"):
            preparation.clone_folder(source, tmp_path / f"{name}-copy", None)
        assert not (tmp_path / f"{name}-copy/x").exists()


def test_an_existing_target_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    with pytest.raises(PowerprofError, match="file exists"):
        preparation.clone_folder(tmp_path / "source", tmp_path / "target", None)


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        ("port", 0, True),
        ("port", 1, False),
        ("port", 65535, False),
        ("port", 65536, True),
        ("name", "a" * 24, False),
        ("name", "a" * 25, True),
        ("name", "Server", True),
        ("connections", -1, True),
        ("environment", {"A=B": "x"}, True),
        ("environment", {"A": "x\0"}, True),
        ("environment", {"": "x"}, True),
        ("settings", {"datadir": "/x"}, True),
        ("affinity", (), True),
        ("affinity", (4096,), True),
    ],
)
def test_invalid_options_are_refused(field: str, value: Any, refused: bool) -> None:
    with pytest.raises(UsageError) if refused else nullcontext():
        ServerOptions(**{field: value})


def test_a_taken_port_is_refused_and_a_free_one_is_chosen() -> None:
    assert choose_port(None) is None
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PowerprofError, match=f"port {port} on 127.0.0.1 is taken"):
            choose_port(port)
        assert choose_port(port, "127.0.0.9") == port
        free = choose_port("ephemeral")
        assert free is not None and free > 1023 and free != port


# 300 blocks of 1 MiB are free, 200 of them for other accounts than root.
_DISK = SimpleNamespace(f_bavail=200, f_bfree=300, f_frsize=1 << 20, f_bsize=4096)


def test_room_of_root_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: _DISK)
    check_room_in(tmp_path, 200 << 20)
    with pytest.raises(PowerprofError, match=r"\(200 MiB free, 201 MiB needed\)") as error:
        check_room_in(tmp_path, (200 << 20) + 1)
    assert f"in {tmp_path.parent} " in error.value.message


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)])
def test_only_a_full_disk_has_a_hint_about_room(number: int, is_full: bool) -> None:
    assert (preparation._hint_about_room(OSError(number, "")) is not None) is is_full


@pytest.mark.parametrize(("length", "reason"), [(107, "the template is next"), (108, "is too long for a socket")])
def test_a_socket_has_at_most_107_bytes(monkeypatch: pytest.MonkeyPatch, length: int, reason: str) -> None:
    """sun_path has 108 bytes with the final NUL (unix(7))."""

    def find(*_: object) -> Path:
        raise PowerprofError("the template is next")

    monkeypatch.setattr(preparation, "find_server_account", lambda: None)
    monkeypatch.setattr(preparation, "find_template", find)
    build = ServerBuild(Path("/usr/sbin/mysqld"), "mysql", (8, 0, 36), "")
    tree: Any = SimpleNamespace(path=Path("/" + "x" * (length - len("//server/mysqld.sock"))))
    with pytest.raises(PowerprofError, match=reason):
        preparation.prepare_directory(build, ServerOptions(), tree)
