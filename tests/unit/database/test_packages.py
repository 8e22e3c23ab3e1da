# SPDX-License-Identifier: Apache-2.0
"""Fetched packages: consent, pinned digests, and unpacking without owners and special modes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.database import historical, packages
from powerprof.database.packages import ArchiveMember, Artifact
from powerprof.database.runtree import RunTree
from powerprof.system.errors import CapabilityError, DataError, PowerprofError, UsageError
from tests.programs.debs import Link, make_deb
from tests.programs.web import Web


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


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (2_533_399, "2.5 MB"),
        (9_949_999, "9.9 MB"),
        (9_999_999, "10.0 MB"),
        (10_400_000, "10 MB"),
        (140_128_698, "140 MB"),
    ],
)
def test_sizes_are_in_millions_of_bytes(size_bytes: int, text: str) -> None:
    known = historical.CONNECTORS["mysql-connector-j"]
    artifact = msgspec.structs.replace(known.artifact, size_bytes=size_bytes)
    assert historical.format_size(msgspec.structs.replace(known, artifact=artifact)) == text


def test_only_what_is_named_is_taken(tmp_path: Path) -> None:
    inner = _zip({"mysql/user.MYD": b"rows", "META-INF/x": b"no"})
    jar = _jar(tmp_path, {"x/mysqld": b"program", "x/mysqld-debug": b"no", "x/data.jar": inner, "x/other": b"no"})
    packages.unpack_archive(jar, _MEMBERS, tmp_path / "out")
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
        packages.unpack_archive(jar, members, place / "target")
    outside = {path for path in tmp_path.rglob("out.txt") if not path.is_relative_to(place / "target")}
    assert outside == set()


_NAMES = st.sampled_from(["a", "b", "c", "a/b", "a/b/c", "b/a", "c/a/b"])
_TARGETS = st.sampled_from(["a", "b", "../a", "../../b", "../../../c", "../../../../x", "/usr/a", "/usr/../..", "c/.."])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(_NAMES, st.none() | _TARGETS), min_size=1, max_size=6, unique_by=lambda entry: entry[0]))
def test_no_chain_of_links_leads_out_of_the_root(entries: list[tuple[str, str | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        package = place / "x.deb"
        package.write_bytes(make_deb({f"./usr/{name}": b"file" if to is None else Link(to) for name, to in entries}))
        root = place / "1/2/3/root"
        root.mkdir(parents=True)
        with contextlib.suppress(DataError, PowerprofError):
            packages.unpack_package(package, root)
        assert [path for path in place.rglob("*") if path.is_file() and root not in path.parents] == [package]
        assert all(Path(os.path.realpath(path)).is_relative_to(root) for path in root.rglob("*"))


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, str | bytes]]]:
    """Return the answers of a repository on loopback."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Web() as web:
        monkeypatch.setenv("POWERPROF_MAVEN_INDEX", f"{web.address}/maven2/")
        yield web.answers


_PATH = "/maven2/org/example/thing/1.0/thing-1.0.jar"


def _artifact(data: bytes) -> Artifact:
    return Artifact("org.example", "thing", "1.0", len(data), hashlib.sha256(data).hexdigest())


def test_a_download_from_the_configured_index(index: dict[str, Any]) -> None:
    index[_PATH] = (200, b"archive" * 1000)
    with RunTree() as tree:
        path = packages.download_artifact(_artifact(b"archive" * 1000), tree)
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
            packages.download_artifact(_artifact(b"archive"), tree)
        assert (tree.path / "download/thing-1.0.jar").stat().st_size <= len(b"archive") + 1


def test_an_absent_file_and_a_wrong_index(index: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with RunTree() as tree, pytest.raises(PowerprofError, match=r"cannot download http://127.*Not Found"):
        packages.download_artifact(_artifact(b"x"), tree)
    monkeypatch.setenv("POWERPROF_MAVEN_INDEX", "file:///etc")
    with pytest.raises(UsageError, match="not an http"):
        packages.read_repository_address()


def test_nothing_is_downloaded_without_consent(
    index: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    asked: list[str] = []
    with pytest.raises(PowerprofError, match="consent was refused"):
        historical.fetch_release("mysql-5.5.9", lambda question: bool(asked.append(question)))
    assert "GPL-2.0" in asked[0]
    assert "140 MB" in asked[0]
    with pytest.raises(PowerprofError, match="cannot download"):
        historical.fetch_release("mysql-5.5.9", lambda question: True)
    assert not historical.is_fetched(historical.find_release("mysql-5.5.9"))
    with pytest.raises(CapabilityError, match="has not been fetched") as caught:
        historical.load_build("mysql-5.5.9")
    assert caught.value.hint == "fetch it: powerprof servers fetch mysql-5.5.9"
    with pytest.raises(UsageError, match="no server is called"):
        historical.find_release("mysql-4.1")


def test_a_connector_is_fetched_once_after_consent_and_kept(
    index: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = msgspec.structs.replace(historical.CONNECTORS["mysql-connector-j"], artifact=_artifact(b"archive"))
    monkeypatch.setitem(historical.CONNECTORS, "mysql-connector-j", known)
    with pytest.raises(CapabilityError, match="has not been fetched"):
        historical.read_jar("mysql-connector-j")
    asked: list[str] = []
    with pytest.raises(PowerprofError, match="consent was refused"):
        historical.fetch_connector("mysql-connector-j", lambda question: bool(asked.append(question)), asked.append)
    assert "0.0 MB, from http://127.0.0.1" in asked[0]
    assert asked[0].endswith("It is run as the account of the servers")
    index[_PATH] = (200, b"archive")
    for _ in range(2):
        assert historical.fetch_connector("mysql-connector-j", lambda question: True, asked.append).place == known.place
    assert asked[1:] == ["downloading thing-1.0.jar"]
    assert list(known.place.parent.iterdir()) == [known.place]
    assert historical.read_jar("mysql-connector-j") == b"archive"


def test_another_machine_cannot_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(CapabilityError, match="runs on x86_64 only"):
        historical.fetch_release("mysql-5.5.9", lambda question: True)


def _unpack(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x_1_amd64.deb"
    path.write_bytes(data)
    (tmp_path / "root").mkdir()
    packages.unpack_package(path, tmp_path / "root")
    return tmp_path / "root"


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}


def test_programs_and_libraries_are_taken_with_usr_merged(tmp_path: Path) -> None:
    package = make_deb(
        {
            "./usr/sbin/mariadbd": b"program",
            "./lib/x86_64-linux-gnu/libc.so.6": b"library",
            "./lib64/ld-linux-x86-64.so.2": Link("/lib/x86_64-linux-gnu/libc.so.6"),
            "./usr/lib/libc.so": Link("../../lib/x86_64-linux-gnu/libc.so.6"),
            "./usr/share/doc/x/copyright": b"words",
            "./usr/share/perl/5.36/x.pm": b"perl",
            "./etc/mysql/my.cnf": b"settings",
            "./var/lib/x": b"state",
            "./usr/bin/editor": Link("/etc/alternatives/editor"),
        }
    )
    root = _unpack(tmp_path, package)
    assert _files(root) == {
        "usr/sbin/mariadbd",
        "usr/lib/x86_64-linux-gnu/libc.so.6",
        "usr/lib64/ld-linux-x86-64.so.2",
        "usr/lib/libc.so",
    }
    assert (root / "usr/lib64/ld-linux-x86-64.so.2").read_bytes() == b"library"
    assert (root / "usr/lib64/ld-linux-x86-64.so.2").readlink() == Path("../lib/x86_64-linux-gnu/libc.so.6")
    assert (root / "usr/lib/libc.so").read_bytes() == b"library"


def test_no_bit_owner_or_device_is_kept(tmp_path: Path) -> None:
    def device(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("./usr/lib/sda")
        info.type, info.devmajor, info.devminor = tarfile.BLKTYPE, 8, 0
        archive.addfile(info)

    package = make_deb({"./usr/bin/su": b"program", "./usr/lib/x": b""}, modes={"./usr/bin/su": 0o6777}, also=device)
    root = _unpack(tmp_path, package)
    assert _files(root) == {"usr/bin/su", "usr/lib/x"}
    assert (root / "usr/bin/su").stat().st_mode & 0o7777 == 0o755
    assert (root / "usr/lib/x").stat().st_mode & 0o7777 == 0o644


def test_a_hard_link_is_kept(tmp_path: Path) -> None:
    root = _unpack(tmp_path, make_deb({"./bin/a": b"a", "./usr/bin/b": Link("./bin/a", hard=True)}))
    assert (root / "usr/bin/b").stat().st_ino == (root / "usr/bin/a").stat().st_ino


@pytest.mark.parametrize("size", [0, 90, 400])
def test_a_package_that_is_cut_is_one_line_of_error(tmp_path: Path, size: int) -> None:
    with pytest.raises(DataError, match="damaged package"):
        _unpack(tmp_path, make_deb({"./usr/bin/a": bytes(range(256)) * 40})[:size])
