# SPDX-License-Identifier: Apache-2.0
"""Jars of Maven Central with pinned digests: Java connectors, and servers whose files are unpacked."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import urllib.parse
import zipfile
from pathlib import Path

import msgspec

from powerprof.database.builds import ServerBuild
from powerprof.database.mysql import find_build
from powerprof.database.runtree import RunTree
from powerprof.database.templates import check_room_in
from powerprof.model.text import Say
from powerprof.system import fetching
from powerprof.system.errors import DataError, PowerprofError, UsageError, reason_of

_MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
_INDEX_VARIABLE = "POWERPROF_MAVEN_INDEX"
_DOWNLOAD_S = 1800.0


def read_repository_address() -> str:
    """Return the repository: $POWERPROF_MAVEN_INDEX, else Maven Central. Raise UsageError for an invalid address."""
    chosen = os.environ.get(_INDEX_VARIABLE) or _MAVEN_CENTRAL
    if urllib.parse.urlsplit(chosen).scheme not in ("http", "https"):
        raise UsageError(f"{_INDEX_VARIABLE}={chosen!r} is not an http(s) address", _MAVEN_CENTRAL)
    return chosen.rstrip("/")


class ArchiveMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file, or with a final / a folder, of an archive and its target. `inner.jar!path` is in a nested jar."""

    source: str
    target: str
    executable: bool = False


class MavenJar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="maven"):
    """A jar with its Maven coordinates and digest; the places of a server's parts in it, if it contains a server.

    `data` is the server's empty data directory if the jar contains one.
    """

    group: str
    artifact: str
    release: str
    download_bytes: int
    sha256: str
    members: tuple[ArchiveMember, ...] = ()
    binary: str = ""
    data: str | None = None

    @property
    def file_name(self) -> str:
        """The name of the file in the repository."""
        return f"{self.artifact}-{self.release}.jar"

    @property
    def origin(self) -> str:
        """The repository."""
        return read_repository_address()

    def bring(self, place: Path, tree: RunTree, say: Say) -> None:
        """Download, check and unpack into `place`, which must not exist; copy a connector. Raise PowerprofError."""
        say(f"downloading {self.file_name}")
        path = self.download(tree)
        try:
            if self.members:
                say("unpacking")
                unpack_archive(path, self.members, place)
            else:
                shutil.copyfile(path, place)
        except OSError as error:
            raise PowerprofError(
                f"cannot unpack into {place} ({reason_of(error)})",
                "make room there, or set XDG_CACHE_HOME to another place",
            ) from error

    def download(self, tree: RunTree) -> Path:
        """Return the verified jar in the tree. Raise PowerprofError, DataError for another digest."""
        place = tree.path / "download"
        place.mkdir(0o700)
        check_room_in(place, 2 * self.download_bytes)
        path = place / self.file_name
        address = "/".join(
            [read_repository_address(), self.group.replace(".", "/"), self.artifact, self.release, path.name]
        )
        try:
            with path.open("xb+") as file:
                fetching.fetch(address, file.fileno(), limit_bytes=self.download_bytes, total_s=_DOWNLOAD_S)
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise PowerprofError(
                f"cannot download {address} ({str(error)[:200]})", f"check the network, or set {_INDEX_VARIABLE}"
            ) from error
        if digest != self.sha256:
            raise DataError(
                path.name,
                f"its SHA-256 is {digest}, not {self.sha256}: refused",
                hint="somebody changed the file on its way, or the repository did; try again from another network",
            )
        return path

    def load_build(self, place: Path) -> ServerBuild:
        """Return the program. Raise PowerprofError if it does not run here."""
        return find_build(binary=place / self.binary, basedir=place, template=place / self.data if self.data else None)


def unpack_archive(jar: Path, members: tuple[ArchiveMember, ...], target: Path) -> None:
    """Unpack the named members of a verified archive below `target`, which must not exist. Raise OSError."""
    target.mkdir(0o755)
    with zipfile.ZipFile(jar) as outer:
        for member in members:
            nested, bang, path = member.source.partition("!")
            if bang:
                with zipfile.ZipFile(io.BytesIO(outer.read(nested))) as inner:
                    _unpack_member(inner, member, path, target)
            else:
                _unpack_member(outer, member, nested, target)


def _unpack_member(archive: zipfile.ZipFile, member: ArchiveMember, prefix: str, target: Path) -> None:
    for info in archive.infolist():
        is_it = info.filename.startswith(prefix) if prefix.endswith("/") else info.filename == prefix
        if is_it and not info.is_dir():
            info.filename = member.target + info.filename[len(prefix) :]
            # It removes `..` and a leading / from the name. A zip file's links are unpacked as files.
            path = Path(archive.extract(info, target))
            path.chmod(0o755 if member.executable else 0o644)
            path.parent.chmod(0o755)  # under any umask: the server's account must enter
