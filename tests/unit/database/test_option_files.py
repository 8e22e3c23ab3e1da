# SPDX-License-Identifier: Apache-2.0
"""Option files of MySQL: hostile and usual ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from powerprof.database.option_files import read_option_file
from powerprof.system.errors import DataError


def _write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)
    return path


def _values(path: Path) -> dict[str, str]:
    return {name: option.value for name, option in read_option_file(path).items()}


def test_groups_quotes_escapes_and_comments(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "my.cnf",
        r"""
# a comment
[mysqld]
user = mysql
password = of-the-server
database = of-the-server
[client]
user=alice   # who
password = "pa#ss \" word"
socket=/run/mysqld/mysqld.sock
ssl_ca = '/etc/ca.pem'
unknown = 1
skip-reconnect
[client-mariadb]
port=3307
[powerprof]
user = power\sprof
""",
    )
    assert _values(path) == {
        "user": "power prof",
        "password": 'pa#ss " word',
        "socket": "/run/mysqld/mysqld.sock",
        "ssl-ca": "/etc/ca.pem",
        "port": "3307",
    }


def test_included_files_are_read_where_they_stand(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    _write(folder / "20.cnf", "[client]\nuser=twenty\nhost=h\n")
    _write(folder / "10.cnf", "[client]\nuser=ten\n")
    _write(folder / "30.txt", "[client]\nuser=no\n")
    one = _write(tmp_path / "one.cnf", "[client]\nport=1\n")
    path = _write(tmp_path / "my.cnf", f"[client]\nuser=me\n!includedir {folder}\n!include {one}\n")
    assert _values(path) == {"user": "twenty", "host": "h", "port": "1"}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("user=x\n", 1, "an option outside of a group: 'user'"),
        ("[client]\n[client\n", 2, "a group without ]"),
        ("[client]\nuser='x\n", 2, "a quoted value without its closing quote"),
        ("[client]\n\n!import /x\n", 3, "not a directive"),
        ("!includedir /nowhere/at/all\n", 1, "cannot read the directory '/nowhere/at/all' .no such file"),
        (f"!includedir /{'x' * 5000}\n", 1, "file name too long"),
        ("!includedir /etc/hostname\n", 1, "not a directory"),
        ("!includedir /a\0b\n", 1, "no such file"),
        (b"[client]\nuser=\xff\xfe\n", 2, "not text"),
    ],
)
def test_damage_is_refused_with_its_line(tmp_path: Path, text: str | bytes, line: int, reason: str) -> None:
    path = _write(tmp_path / "my.cnf", text)
    with pytest.raises(DataError, match=reason) as caught:
        read_option_file(path)
    assert caught.value.message.startswith(f"{path}:{line}: ")


def test_a_file_that_includes_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "my.cnf"
    _write(path, f"!include {path}\n")
    with pytest.raises(DataError, match="include one another"):
        read_option_file(path)


def test_what_everybody_may_write_is_not_trusted(tmp_path: Path) -> None:
    path = _write(tmp_path / "my;id.cnf", "[client]\n")
    path.chmod(0o606)
    with pytest.raises(DataError, match="anybody may write") as caught:
        read_option_file(path)
    assert caught.value.hint == f"chmod o-w '{path}'"
    for device in ("/dev/null", "/dev/zero"):  # a hint to close them would damage the host
        with pytest.raises(DataError, match="not a regular file"):
            read_option_file(_write(tmp_path / "my.cnf", f"!include {device}\n"))


@pytest.mark.parametrize("name", ["absent", "folder", "huge"])
def test_no_option_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    _write(tmp_path / "huge", b"#" * (2 << 20))
    with pytest.raises(DataError, match=r"no such file|not a regular file|larger than 1 MiB"):
        read_option_file(tmp_path / name)


@pytest.mark.parametrize("name", ["x" * 300, "y" * 5000, "loop", "pipe", "folder", "a\0b"])
def test_an_included_file_that_is_none_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    path = _write(tmp_path / "my.cnf", f"!include {tmp_path}/{name}\n")
    with pytest.raises(DataError, match=r"too long|too many levels|not a regular file|no such file"):
        read_option_file(path)


def test_a_folder_of_option_files_is_bounded_and_nobody_elses(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    path = _write(tmp_path / "my.cnf", f"[client]\nuser=me\n!includedir {folder}\n")
    _write(folder / "again.cnf", f"!includedir {folder}\n")
    with pytest.raises(DataError, match="more than 50 files include one another"):
        read_option_file(path)
    (folder / "again.cnf").unlink()
    for number in range(10_001):
        (folder / f"{number}.txt").touch()
    with pytest.raises(DataError, match="more than 10,000 files"):
        read_option_file(path)
    shutil.rmtree(folder)
    folder.mkdir()
    folder.chmod(0o1777)
    with pytest.raises(DataError, match="anybody may write to it"):
        read_option_file(path)
