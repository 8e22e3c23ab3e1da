# SPDX-License-Identifier: Apache-2.0
"""Server programs: product, version and place."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.database.sandbox import Sandbox
from powerprof.system.errors import CapabilityError, PowerprofError

Family = Literal["mariadb", "mysql", "postgresql"]
Steps = Sequence[tuple[Sequence[str], str]]
"""The commands that create empty data, each with its input."""
USER = "powerprof"
"""powerprof's account in a private server."""
_TITLES = {"mariadb": "MariaDB", "mysql": "MySQL", "postgresql": "PostgreSQL"}

# Libraries of old generic builds that Debian 12 does not install by default.
_PACKAGES = {"libaio.so.1": "libaio1", "libncurses.so.5": "libncurses5", "libtinfo.so.5": "libtinfo5"}


class ServerBuild(msgspec.Struct, frozen=True):
    """A server program.

    Attributes:
        basedir: Its base directory if it is not a system program.
        template: The empty data that came with it.
        root: The folder of another release in which it runs; all its paths are below.
    """

    binary: Path
    family: Family
    version: tuple[int, int, int]
    text: str
    basedir: Path | None = None
    template: Path | None = None
    root: Path | None = None

    @property
    def name(self) -> str:
        """Product and version, such as `MariaDB 10.11.19`."""
        parts = self.version[:2] if self.family == "postgresql" else self.version
        return f"{_TITLES[self.family]} {'.'.join(map(str, parts))}"

    @property
    def names_threads(self) -> bool:
        """Whether performance_schema.threads contains THREAD_OS_ID (MySQL 5.7.5, MariaDB 10.5)."""
        return self.version >= ((10, 5, 0) if self.family == "mariadb" else (5, 7, 5))

    def sandbox(self, folder: Path | None = None) -> Sandbox:
        """Return the sandbox of its programs, which may change `folder` alone and have no network."""
        reads = tuple(path for path in (self.basedir,) if path is not None)
        return Sandbox(folder, reads, root=self.root)

    @property
    def key(self) -> str:
        """The name of its template, which changes with the program."""
        info = on_host(self.binary, self.root).stat()
        # A fetched server is moved after its trial: the place of its root or base directory is not part of the key.
        place = self.binary if self.root is not None else self.binary.resolve()
        if self.basedir is not None and place.is_relative_to(self.basedir.resolve()):
            place = place.relative_to(self.basedir.resolve())
        identity = f"{place} {info.st_size} {info.st_mtime_ns} {self.text}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        return f"{self.family}-{'.'.join(map(str, self.version))}-{digest}"


def on_host(path: Path, root: Path | None) -> Path:
    """Return the place on this host of a file of a program that runs in `root`."""
    return path if root is None else root / path.relative_to("/")


def check_program(file: Path, wanted: str = "mariadbd or mysqld") -> None:
    """Raise PowerprofError if there is no such program; the hint names `wanted`."""
    if not os.path.isfile(file) or not os.access(file, os.X_OK):  # noqa: PTH113 - Path's raises where a name is too long
        reason = "not an executable file" if os.path.lexists(file) else "no such file"
        raise PowerprofError(f"cannot start the server {file} ({reason})", f"name a {wanted}")


def raise_missing_library(output: str, binary: Path) -> None:
    """Raise CapabilityError if the loader's message reports a missing library."""
    missing = re.search(r"error while loading shared libraries: (\S+):", output)
    if missing:
        package = _PACKAGES.get(missing[1])
        raise CapabilityError(
            f"{binary} needs {missing[1]}, which is not installed",
            f"apt install {package}" if package else f"apt-file search {missing[1]}",
        )
