# SPDX-License-Identifier: Apache-2.0
"""Packages of another Debian suite, had by the host's own apt with lists of its own: signatures, hashes, dependencies
and the network are its business, and nothing is installed.

What is pinned is the archive's key and the suite's name, which is part of what is signed. A version cannot be: the
archive drops it at the next point release. So the packages that were had are recorded by version and SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerprof import programs
from powerprof.database.isolation.runtree import RunTree
from powerprof.database.private.template import need_room
from powerprof.errors import CapabilityError, PowerprofError, UsageError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ARCHIVE = "http://deb.debian.org/debian"
_VARIABLE = "POWERPROF_DEBIAN_MIRROR"
_TOTAL_S = 1800.0
_MOST_BYTES = 400 << 20
# 'http://…/x_1%3a2_amd64.deb' x_1%3a2_amd64.deb 123 SHA256:…
_LINE = re.compile(r"'(https?://\S+|file:/\S+)' ([A-Za-z0-9][\w.+%~-]{1,200}\.deb) (\d{1,12}) SHA256:([0-9a-f]{64})")
# Of the host's own configuration: how it reaches the network, and whether it takes lists that are out of date.
_PASSED = re.compile(r'Acquire::(http|https|Retries|Check-Valid-Until|Check-Date)(::[A-Za-z0-9_.:/-]+)? "[^"\n]*";')
_CONFIGURATION = """
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "{place}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "/dev/null";
Dir::State "{place}/state";
Dir::State::status "{place}/status";
Dir::Cache "{place}/cache";
Dir::Log "{place}";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
APT::Install-Recommends "false";
"""


@dataclass(frozen=True)
class WantedPackage:
    """A package that is wanted: its file, and what that must be."""

    file_name: str
    size_bytes: int
    sha256: str

    @property
    def name_and_version(self) -> tuple[str, str]:
        """`libc6`, `2.36-9`."""
        name, version, *_ = urllib.parse.unquote(self.file_name).split("_")
        return name, version


def mirror() -> str:
    """Where Debian's packages are had: $POWERPROF_DEBIAN_MIRROR, else deb.debian.org. Raises UsageError."""
    chosen = os.environ.get(_VARIABLE) or _ARCHIVE
    if not re.fullmatch(r"https?://[A-Za-z0-9._~:/%+-]{1,200}", chosen):
        raise UsageError(f"{_VARIABLE}={chosen!r} is not an http(s) address", _ARCHIVE)
    return chosen.rstrip("/")


class Suite:
    """One suite's packages, in a folder of the tree. Raises CapabilityError where the host has no apt or no key."""

    def __init__(self, suite: str, tree: RunTree) -> None:
        self._apt = programs.need("apt-get", "apt")
        if not KEYRING.is_file():
            raise CapabilityError(f"{KEYRING} is not there", "apt install debian-archive-keyring")
        self._suite = suite
        # apt's downloads are made by an account without rights, which has to come here.
        tree.path.chmod(0o711)
        self._place = place = tree.path / "apt"
        for name in ("state/lists/partial", "cache/archives/partial"):
            (place / name).mkdir(0o755, parents=True)
        (place / "status").touch()
        (place / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n")
        (place / "apt.conf").write_text(_CONFIGURATION.format(place=place) + "\n".join(_passed()) + "\n")

    def wanted(self, packages: Sequence[str]) -> list[WantedPackage]:
        """These packages and all that they need, by the signed lists. Raises PowerprofError."""
        self._run("update")
        need_room(self._place, _MOST_BYTES)
        output = self._run("install", "--print-uris", "--yes", *packages)
        listed = [WantedPackage(name, int(size), sha256) for _, name, size, sha256 in _LINE.findall(output)]
        if not listed:
            raise PowerprofError(
                f"Debian's {self._suite} has not what is needed ({', '.join(packages)})",
                "powerprof servers lists the others",
            )
        return sorted(listed, key=lambda package: package.file_name)

    def download(self, packages: Sequence[str], wanted: Sequence[WantedPackage], shelf: Path) -> list[Path]:
        """Their files, which apt compares with the signed lists.

        What is whole when this ends early is put on `shelf`, and taken from there the next time. Raises PowerprofError,
        DataError.
        """
        archives = self._place / "cache/archives"
        for package in wanted:
            kept = shelf / package.file_name
            if kept.is_file() and _sha256(kept) == package.sha256:
                shutil.copyfile(kept, archives / package.file_name)
        try:
            self._run("install", "--download-only", "--yes", *packages)
        except BaseException:
            for package in wanted:
                had = archives / package.file_name
                if had.is_file() and _sha256(had) == package.sha256:
                    shutil.copyfile(had, shelf / package.file_name)
            raise
        return [archives / package.file_name for package in wanted]

    def _run(self, *words: str) -> str:
        environment = {"APT_CONFIG": str(self._place / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
        proxies = {name: os.environ[name] for name in ("http_proxy", "https_proxy", "no_proxy") if name in os.environ}
        done = programs.run(
            [self._apt, "-q", "-o", "APT::Update::Error-Mode=any", *words],
            timeout_s=_TOTAL_S,
            env={**environment, **proxies},
            check=False,
        )
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith(("E:", "Err:"))]
            raise PowerprofError(
                f"cannot have packages of Debian's {self._suite} from {mirror()} "
                f"({' / '.join(errors[:3])[:300] or done.tail()})",
                f"check the network, or set {_VARIABLE}",
            )
        return done.stdout


def _passed() -> list[str]:
    done = programs.run([programs.need("apt-config", "apt"), "dump"], check=False)
    return [line for line in done.stdout.splitlines() if _PASSED.fullmatch(line)]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
