# SPDX-License-Identifier: Apache-2.0
"""Servers of other releases as Debian built them: packages of a suite, unpacked into a root of their own.

All are built alike and run from their own libraries, so that what differs between them is the release.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from powerprof import paths
from powerprof.database.fetched import apt, deb
from powerprof.database.isolation.runtree import RunTree
from powerprof.database.products import builds, postgres
from powerprof.database.products.builds import Family, ServerBuild
from powerprof.errors import DataError
from powerprof.text import Say

MANIFEST = "packages.json"
# initdb and mariadb-install-db start a shell and these: of a root that is only a server's they are no dependencies.
TOOLS = ("coreutils", "dash", "grep", "hostname", "sed")


class Had(msgspec.Struct, frozen=True, kw_only=True):
    """A package that was unpacked."""

    name: str
    version: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of a root: for people, in `packages.json` next to it."""

    suite: str
    packages: list[Had]


@dataclass(frozen=True)
class DebianPackages:
    """A server of a suite: its packages, and the program in them that says to be of that family and version."""

    suite: str
    packages: tuple[str, ...]
    family: Family
    version: tuple[int, ...]
    binary: Path
    machine: str | None = None

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return f"{apt.mirror()} ({self.suite})"

    def bring(self, place: Path, tree: RunTree, say: Say) -> None:
        """Download, check and unpack into `place`, which must not exist. Raises PowerprofError."""
        shelf = paths.cache_folder("packages")
        asked = (*self.packages, *TOOLS)
        say(f"reading the lists of Debian's {self.suite}")
        suite = apt.Suite(self.suite, tree)
        wanted = suite.wanted(asked)
        say(f"downloading {len(wanted)} packages, {sum(package.size_bytes for package in wanted) / 1e6:.0f} MB")
        files = suite.download(asked, wanted, shelf)
        say("unpacking")
        (place / "root").mkdir(0o755, parents=True)
        for file in files:
            deb.unpack(file, place / "root")
        had = []
        for package in wanted:
            name, version = package.name_and_version
            had.append(Had(name=name, version=version, sha256=package.sha256))
        manifest = Manifest(suite=self.suite, packages=had)
        (place / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        for package in wanted:
            (shelf / package.file_name).unlink(missing_ok=True)
        shutil.rmtree(tree.path / "apt")

    def build(self, place: Path) -> ServerBuild:
        """The program. Raises PowerprofError where it does not run here, DataError where it is of another version."""
        find = postgres.find_build if self.family == "postgresql" else builds.find_build
        build = find(self.binary, root=place / "root")
        if (build.family, build.version[: len(self.version)]) != (self.family, self.version):
            raise DataError(place, f"Debian's {self.suite} has {build.name} now")
        return build
