# SPDX-License-Identifier: Apache-2.0
"""Java connectors as clients of loads: jars of Maven Central, pinned, fetched on request, kept in the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths
from powerprof.database import archive
from powerprof.database.runtree import RunTree
from powerprof.errors import CapabilityError, DataError, PowerprofError
from powerprof.files import reason_of
from powerprof.folders import Folder, write_all


@dataclass(frozen=True)
class Connector:
    """One of them: its jar, how an address is written for it, and what it is told besides the account."""

    name: str
    description: str
    artifact: archive.Artifact
    licence: str
    scheme: str
    options: Mapping[str, str]

    def url(self, host: str, port: int, database: str) -> str:
        """The address of a server as the connector takes it."""
        return f"jdbc:{self.scheme}://{host}:{port}/{database}"


CATALOGUE = {
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


def place(connector: Connector) -> Path:
    """Where its jar is kept once fetched."""
    return paths.cache_dir() / "connectors" / connector.artifact.file_name


def is_fetched(connector: Connector) -> bool:
    """True where it lies in the cache. `jar` looks whether it is what was fetched."""
    try:
        return place(connector).is_file()
    except PermissionError:
        return False


def jar(name: str) -> bytes:
    """The jar, compared with what it must be. Raises CapabilityError where it is not there, DataError for another."""
    connector = CATALOGUE[name]
    if not is_fetched(connector):
        raise CapabilityError(f"{name} has not been fetched", f"powerprof servers fetch {name}")
    path = place(connector)
    paths.cache_folder(path.parent.name)
    try:
        archive.check(path, connector.artifact)
        return path.read_bytes()
    except DataError as error:
        raise DataError(path, error.reason, hint=f"rm {path} && powerprof servers fetch {name}") from error
    except OSError as error:
        raise PowerprofError(f"cannot read {path} ({reason_of(error)})", f"powerprof servers fetch {name}") from error


def fetch(name: str, consent: Callable[[str], bool], progress: Callable[[str], None]) -> None:
    """Download, check and keep one; does nothing where it is there already. Raises PowerprofError."""
    connector = CATALOGUE[name]
    if is_fetched(connector):
        jar(name)
        return
    question = (
        f"Download {connector.description}, {connector.artifact.size_bytes / 1e6:.1f} MB, from {archive.index()}? "
        f"Its licence is {connector.licence}. It is run as the account of the servers"
    )
    if not consent(question):
        raise PowerprofError(f"{name} was not fetched: consent was refused", "answer yes, or use --yes")
    with RunTree() as tree:
        shelf = paths.cache_folder("connectors")
        progress(f"downloading {connector.artifact.file_name}")
        data = archive.download(connector.artifact, tree).read_bytes()
        try:
            with Folder.open(shelf) as folder, folder.replacing(connector.artifact.file_name) as handle:
                write_all(handle, data)
        except OSError as error:
            raise PowerprofError(
                f"cannot keep {name} in {shelf} ({reason_of(error)})", "set XDG_CACHE_HOME to another place"
            ) from error
