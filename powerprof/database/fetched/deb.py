# SPDX-License-Identifier: Apache-2.0
"""A Debian package (deb(5)): what lies below /usr in it, unpacked with care. None of its scripts is read or run."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import posixpath
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from powerprof.errors import DataError, PowerprofError
from powerprof.files import reason_of
from powerprof.untrusted import loader, whole

_MAGIC = b"!<arch>\n"
_HEADER = 60
_CHUNK = 1 << 20
# How the content is packed, and what unpacks it. Each is closed with the file that it reads.
_OPENERS: dict[str, Callable[[io.RawIOBase], io.IOBase]] = {
    "data.tar": lambda part: part,
    "data.tar.xz": lzma.LZMAFile,  # type: ignore[dict-item]
    "data.tar.gz": lambda part: gzip.GzipFile(fileobj=part),
    "data.tar.bz2": bz2.BZ2File,
}
# What is below /usr in releases that have no merged /usr yet (Debian 11).
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Read by people or by Perl, neither of which runs there.
_LEFT_OUT = (
    *(f"usr/share/{name}" for name in ("bug", "doc", "info", "lintian", "locale", "man", "perl", "perl5")),
    *("usr/games", "usr/include", "usr/local", "usr/src"),
)
_LEFT_OUT_PARTS = frozenset({"perl", "perl5", "perl-base"})


@dataclass
class Room:
    """How much may still be unpacked."""

    files: int
    size_bytes: int


@loader
def unpack(package: Path, root: Path, room: Room) -> None:
    """What the package has below /usr, below `root`, which nobody else may write to.

    Owners, set-user-id bits and times are not kept, devices and pipes not made, links that lead outside not followed.
    Raises DataError for a damaged package, a path that leads outside or through a link, and for more than `room`.
    """
    try:
        with package.open("rb") as file, tarfile.open(fileobj=_data(file, package, room), mode="r|") as archive:
            for member in archive:
                _take(member, archive, root, room, package)
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise DataError(package.name, f"damaged package ({error})") from error
    except OSError as error:
        # gzip and bz2 say what is damaged by an OSError without a number.
        if error.errno is None:
            raise DataError(package.name, f"damaged package ({error})") from error
        raise PowerprofError(
            f"cannot unpack into {root} ({reason_of(error)})", "make room there, or set XDG_CACHE_HOME to another place"
        ) from error


def _data(file: IO[bytes], package: Path, room: Room) -> _Bounded:
    """The tar within the `ar` (ar(5): a header of 60 bytes and the content, at even places)."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise DataError(package.name, "not a Debian package")
    while len(header := file.read(_HEADER)) == _HEADER:
        name = header[:16].decode("ascii", "replace").strip().rstrip("/")
        size = whole(header[48:58].strip())
        if size is None or header[58:] != b"`\n":
            break
        if name.startswith("data.tar"):
            if name not in _OPENERS:
                raise DataError(package.name, f"packed in a way that is not known here ({name})")
            return _Bounded(_OPENERS[name](_FilePart(file, size)), 2 * room.size_bytes, package)
        file.seek(size + size % 2, os.SEEK_CUR)
    raise DataError(package.name, "damaged package (it has no data)")


class _FilePart(io.RawIOBase):
    """So many bytes of a file, from where it is now."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        chunk = self._file.read(wanted)
        self._left -= len(chunk)
        return chunk


class _Bounded(io.RawIOBase):
    """A stream that refuses to grow beyond what a package may unpack to."""

    def __init__(self, stream: Any, limit: int, package: Path) -> None:
        self._stream, self._left, self._package = stream, limit, package

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = bytes(self._stream.read(_CHUNK if size < 0 else size))
        self._left -= len(chunk)
        if self._left < 0:
            raise DataError(self._package.name, "unpacks to more than expected")
        return chunk


def _take(member: tarfile.TarInfo, archive: tarfile.TarFile, root: Path, room: Room, package: Path) -> None:
    place = _place(member.name, package)
    if place is None or not (member.isdir() or member.isreg() or member.issym() or member.islnk()):
        return
    room.files -= 1
    room.size_bytes -= member.size
    if room.files < 0 or room.size_bytes < 0 or member.size < 0:
        raise DataError(package.name, "unpacks to more than expected")
    target = root / place
    _folder(root, posixpath.dirname(place), package)
    if member.isdir():
        _folder(root, place, package)
    elif member.issym():
        _link(member, place, target, package)
    elif member.islnk():
        source = _place(member.linkname, package)
        if source is not None:
            _folder(root, posixpath.dirname(source), package)
            if not (root / source).is_file() or (root / source).is_symlink():
                raise DataError(package.name, f"{member.name} is a link to what is not there")
            os.link(root / source, target)
    else:
        given = archive.extractfile(member)
        if given is not None:
            with target.open("xb") as made:
                while chunk := given.read(_CHUNK):
                    made.write(chunk)
            target.chmod(0o755 if member.mode & 0o111 else 0o644)


def _place(name: str, package: Path) -> str | None:
    """Where it belongs below the root, with /usr merged; None for what is not taken."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or len(name) > 4000:
        raise DataError(package.name, f"{name[:80]} leads outside")
    return _kept(_merged(posixpath.normpath(name)))


def _merged(path: str) -> str:
    return f"usr/{path}" if path.partition("/")[0] in _MERGED else path


def _kept(path: str) -> str | None:
    parts = path.split("/")
    below = parts[0] == "usr" and len(parts) > 1
    left_out = any(
        path == left_out or path.startswith(left_out + "/") for left_out in _LEFT_OUT
    ) or _LEFT_OUT_PARTS & set(parts)
    return path if below and not left_out else None


def _link(member: tarfile.TarInfo, place: str, target: Path, package: Path) -> None:
    """A symbolic link, made relative: it never leads out of the root, wherever that is mounted or read from."""
    text = member.linkname
    if not text or "\0" in text or len(text) > 4000:
        raise DataError(package.name, f"{member.name[:80]} is a link to nothing")
    there = text.lstrip("/") if text.startswith("/") else posixpath.join(posixpath.dirname(member.name), text)
    whole_path = posixpath.normpath(there)
    if whole_path.startswith("../") or whole_path == "..":
        raise DataError(package.name, f"{member.name[:80]} is a link that leads outside")
    kept = _kept(_merged(whole_path))
    # /etc/alternatives and the like, which scripts make, are not there.
    if kept is not None:
        target.symlink_to(posixpath.relpath(kept, posixpath.dirname(place)))


def _folder(root: Path, place: str, package: Path) -> None:
    """The folder and those above it, none of them a link. Raises DataError."""
    path = root
    for part in place.split("/"):
        path = path / part
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise DataError(package.name, f"{place[:80]} leads through a link or a file")
        if not path.is_dir():
            path.mkdir(0o755)
            path.chmod(0o755)
