# SPDX-License-Identifier: Apache-2.0
"""Verified packages: the files below /usr are unpacked, without owners and special modes."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from powerprof.database.fetched import packages
from powerprof.system.errors import DataError
from tests.debs import Link, make_deb


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
