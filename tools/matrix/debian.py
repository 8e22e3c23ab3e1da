# SPDX-License-Identifier: Apache-2.0
"""Debian's packages of any suite and architecture, fetched and unpacked; nothing is installed on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerprof.system.program_search import need
from powerprof.system.programs import run

_FETCH_S = 600.0


def mirror() -> str:
    """Where packages come from."""
    return os.environ.get("MATRIX_MIRROR", "http://deb.debian.org/debian")


@dataclass(frozen=True)
class Archive:
    """A private apt: lists and packages of one suite and architecture, in a folder of their own."""

    suite: str
    arch: str
    place: Path

    def _options(self) -> list[str]:
        values = {
            "Dir::State": self.place / "state",
            "Dir::State::status": self.place / "status",
            "Dir::Cache": self.place / "cache",
            "Dir::Etc::sourcelist": self.place / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "APT::Architecture": self.arch,
            "APT::Architectures": self.arch,
            "APT::Sandbox::User": "root",
            # Old suites are no longer signed anew; what they hold no longer changes either.
            "Acquire::Check-Valid-Until": "false",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled": "false",
            "Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled": "false",
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
        }
        return [word for name, value in values.items() for word in ("-o", f"{name}={value}")]

    def update(self) -> None:
        """Fetch the list of packages."""
        for name in ("state/lists/partial", "cache/archives/partial"):
            (self.place / name).mkdir(parents=True, exist_ok=True)
        (self.place / "status").touch()
        (self.place / "sources.list").write_text(f"deb {mirror()} {self.suite} main\n")
        run([need("apt-get", "apt"), *self._options(), "--quiet", "update"], timeout_s=_FETCH_S)

    def depends(self, package: str) -> tuple[str, ...]:
        """Names of the packages that `package` needs."""
        shown = run([need("apt-cache", "apt"), *self._options(), "depends", package]).stdout
        return tuple(re.findall(r"^ +Depends: ([a-z0-9.+-]+)", shown, re.MULTILINE))

    def version(self, package: str) -> str:
        """The version that the suite has."""
        shown = run([need("apt-cache", "apt"), *self._options(), "show", "--no-all-versions", package]).stdout
        found = re.search(r"^Version: (\S+)", shown, re.MULTILINE)
        return found[1] if found else "?"

    def fetch(self, packages: Sequence[str], into: Path) -> list[Path]:
        """Download packages as files into a folder."""
        into.mkdir(parents=True, exist_ok=True)
        before = set(into.glob("*.deb"))
        apt = [need("apt-get", "apt"), *self._options(), "--quiet", "download", *packages]
        run(apt, cwd=into, timeout_s=_FETCH_S)
        return sorted(set(into.glob("*.deb")) - before)


def unpack(package: Path, into: Path) -> None:
    """The package's files below a folder; its scripts are not run."""
    run([need("dpkg", "dpkg"), "--extract", package, into], timeout_s=_FETCH_S)
