# SPDX-License-Identifier: Apache-2.0
"""Packages of Debian are unpacked below their root, without owners and special modes."""

from __future__ import annotations

import contextlib
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.database import debian_packages
from powerprof.system.errors import DataError, PowerprofError
from tests.programs.debs import Link, make_deb

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
            debian_packages.unpack_package(package, root)
        assert [path for path in place.rglob("*") if path.is_file() and root not in path.parents] == [package]
        assert all(Path(os.path.realpath(path)).is_relative_to(root) for path in root.rglob("*"))


def _unpack(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x_1_amd64.deb"
    path.write_bytes(data)
    (tmp_path / "root").mkdir()
    debian_packages.unpack_package(path, tmp_path / "root")
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


def test_apt_has_the_proxies_in_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert debian_packages.list_proxies() == {}
    for name in ("HTTP_PROXY", "https_proxy", "NO_PROXY", "FTP_PROXY"):
        monkeypatch.setenv(name, f"of-{name}:3128")
    monkeypatch.setenv("http_proxy", "small:3128")
    expected = {"http_proxy": "small:3128", "https_proxy": "of-https_proxy:3128", "no_proxy": "of-NO_PROXY:3128"}
    assert debian_packages.list_proxies() == expected
