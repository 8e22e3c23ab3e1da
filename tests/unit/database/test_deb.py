# SPDX-License-Identifier: Apache-2.0
"""Packages from outside: what lies below /usr is taken, nothing else, and never outside of the root."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.database.fetched import deb
from powerprof.digests import tree_digest
from powerprof.errors import DataError
from tests.debs import Link, make_deb

ROOM = (1000, 1 << 20)


def _unpack(tmp_path: Path, data: bytes, room: tuple[int, int] = ROOM, root: str = "root") -> Path:
    path = tmp_path / "x_1_amd64.deb"
    path.write_bytes(data)
    (tmp_path / root).mkdir(exist_ok=True)
    deb.unpack(path, tmp_path / root, deb.Room(*room))
    return tmp_path / root


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


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"./usr/../../evil": b"e"}, "leads outside"),
        ({"/usr/bin/evil": b"e"}, "leads outside"),
        ({"./usr/lib/a": Link("../../../evil")}, "leads outside"),
        ({"./usr/lib/a": Link("../bin"), "./usr/lib/a/evil": b"e"}, "through a link"),
        ({"./usr/lib/a": b"", "./usr/lib/a/evil": b"e"}, "through a link or a file"),
        ({"./usr/lib/a": Link("usr/lib/b", hard=True)}, "link to what is not there"),
        ({"./usr/lib/a": Link("../../etc/passwd", hard=True)}, "leads outside"),
        ({"./usr/lib/a": b"0" * (2 << 20)}, "more than expected"),
        ({f"./usr/lib/{n}": b"" for n in range(1100)}, "more than expected"),
        ({"./usr/share/doc/a": b"0" * (4 << 20)}, "more than expected"),
    ],
)
def test_what_is_refused(tmp_path: Path, files: Mapping[str, bytes | Link], said: str) -> None:
    with pytest.raises(DataError, match=said):
        _unpack(tmp_path, make_deb(files))
    assert not [path for path in tmp_path.rglob("evil*") if path.is_file()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"no package", "not a Debian package"),
        (lambda data: data[:90], "it has no data"),
        (lambda data: data[: len(data) // 2], "damaged package"),
        (lambda data: data.replace(b"data.tar.xz", b"data.tar.zs"), "not known here"),
        (lambda data: data.replace(b"\xfd7zXZ", b"\xfd7zXY", 1).replace(b"\xfd7zXZ", b"\xfd7zXY"), "damaged package"),
    ],
)
def test_a_damaged_package_is_refused(tmp_path: Path, change: Callable[[bytes], bytes], said: str) -> None:
    with pytest.raises(DataError, match=said):
        _unpack(tmp_path, change(make_deb({"./usr/bin/a": bytes(range(256)) * 40})))


def test_the_same_packages_make_the_same_root(tmp_path: Path) -> None:
    files = {"./usr/bin/a": b"a", "./usr/lib/b": Link("../bin/a"), "./lib/c": b"c"}
    first = _unpack(tmp_path, make_deb(files), root="one")
    again = io.BytesIO()
    with gzip.open(again, "wb") as stream:
        stream.write(lzma.decompress(make_deb(files, only_data=True)))
    second = _unpack(tmp_path, make_deb({}, data=("data.tar.gz", again.getvalue())), root="two")
    assert tree_digest(first) == tree_digest(second)
