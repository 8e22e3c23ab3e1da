# SPDX-License-Identifier: Apache-2.0
"""Java connectors as clients of loads: jars of Maven Central, pinned, fetched on request, kept in the cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths
from powerprof.database.fetched import archive
from powerprof.database.fetched import on_request as fetched
from powerprof.database.isolation.runtree import RunTree
from powerprof.errors import PowerprofError
from powerprof.files import reason_of


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
        return archive.index()

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


def jar(name: str) -> bytes:
    """Return the fetched jar. Raises CapabilityError if it has not been fetched, PowerprofError if it is unreadable."""
    path = fetched.place_of(CATALOGUE[name])
    try:
        return path.read_bytes()
    except OSError as error:
        raise PowerprofError(f"cannot read {path} ({reason_of(error)})", f"powerprof servers fetch {name}") from error


def fetch(name: str, consent: Callable[[str], bool], progress: Callable[[str], None]) -> Connector:
    """Download, check and keep one; does nothing where it is there already. Raises PowerprofError."""
    connector = CATALOGUE[name]
    kept_as = f"{name} in {connector.place.parent}"

    def bring(partial: Path, tree: RunTree) -> None:
        progress(f"downloading {connector.artifact.file_name}")
        path = archive.download(connector.artifact, tree)
        with fetched.keeping(kept_as):
            shutil.copyfile(path, partial)

    fetched.fetch(connector, consent, bring, kept_as=kept_as)
    return connector
