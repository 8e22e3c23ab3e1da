# SPDX-License-Identifier: Apache-2.0
"""Which package brings the debug file of a program, read from the package manager's own files: nothing is executed.

dpkg(1) keeps a list of files for each package, apt(8) the indexes of its archives, whose Build-Ids tell which package
has which debug file. rpm's packages are asked for by build id instead, as gdb's hint does. All is read in the root of
the process, bounded, and only from files that root or we alone may write.
"""

from __future__ import annotations

import os
import re
import shlex
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from powerprof.processes.reader_process import Opened, process_of, shared

_MOST_LISTS = 50_000
_LIST_BYTES = 16 << 20
_LISTS_BYTES = 512 << 20
_INDEX_BYTES = 256 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]{1,100}")
_VERSION = re.compile(r"[A-Za-z0-9.+~:-]{1,100}")
# Of Debian and of Ubuntu; the indexes of other archives are large and have no such packages.
_DEBUG_ARCHIVES = ("debug", "ddebs")
_DPKG, _APT = "/var/lib/dpkg", "/var/lib/apt/lists"
# What is served for every distribution that has no server of its own here.
_FEDERATED = "https://debuginfod.elfutils.org"
_SERVERS = {
    "debian": "https://debuginfod.debian.net",
    "ubuntu": "https://debuginfod.ubuntu.com",
    "fedora": "https://debuginfod.fedoraproject.org",
    "centos": "https://debuginfod.centos.org",
    "arch": "https://debuginfod.archlinux.org",
    "opensuse": "https://debuginfod.opensuse.org",
}
_DNF, _ZYPPER = ("fedora", "rhel", "centos"), ("opensuse", "suse", "sles")


@dataclass(frozen=True)
class Package:
    """A package and its version."""

    name: str
    version: str | None = None

    @property
    def word(self) -> str:
        """As apt is given it."""
        return f"{self.name}={self.version}" if self.version else self.name


class Distribution:
    """The distribution in `root`, `/` or `/proc/PID/root`. What cannot be read is not known."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """ID and ID_LIKE of os-release(5), the most particular first, `opensuse-leap` as `opensuse`."""
        text = (self._read("/etc/os-release", 1 << 16) or b"").decode("utf-8", "replace")
        fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        words = [fields.get(name, "").strip("\"' ") for name in ("ID", "ID_LIKE")]
        return tuple(word.partition("-")[0] for word in " ".join(words).split()[:8])

    @property
    def server(self) -> str:
        """Its debuginfod server."""
        return next((_SERVERS[name] for name in self.ids if name in _SERVERS), _FEDERATED)

    @cached_property
    def has_dpkg(self) -> bool:
        """Whether dpkg keeps its packages."""
        return shared().names(self._root, f"{_DPKG}/info", 1) is not None

    def owners(self, paths: Collection[str]) -> dict[str, Package]:
        """The package of each file that dpkg knows, by its path."""
        # Before /usr was merged packages had files in /lib and /bin, and many still list them there.
        wanted = {os.fsencode(name): path for path in paths for name in (path, path.removeprefix("/usr")) if path}
        found: dict[str, str] = {}
        left_bytes = _LISTS_BYTES
        for name in self._names(f"{_DPKG}/info", ".list") if wanted and self.has_dpkg else ():
            data = self._read(f"{_DPKG}/info/{name}", min(_LIST_BYTES, left_bytes)) or b""
            left_bytes -= len(data)
            for line in wanted.keys() & data.split(b"\n"):
                found[wanted[line]] = name.removesuffix(".list")
        versions = self._versions(set(found.values()))
        return {path: versions[name] for path, name in found.items() if name in versions}

    def debug_packages(self, build_ids: Collection[str]) -> dict[str, Package]:
        """The package of apt's indexes with the debug file of each build id, where one is in them."""
        found: dict[str, Package] = {}
        for name in self._names(_APT, "_Packages", "_Packages.gz") if build_ids else ():
            if not any(word in name for word in _DEBUG_ARCHIVES):
                continue
            data = self._read(f"{_APT}/{name}", _INDEX_BYTES) or b""
            for build_id in set(build_ids) - set(found):
                at = data.find(build_id.encode())
                if at >= 0:
                    package = _package(_stanza(data, at))
                    if package is not None:
                        found[build_id] = package
        return found

    def by_build_id(self, build_ids: Collection[str]) -> str | None:
        """The command that installs debug files by build id; None where the package manager has none."""
        if any(name in self.ids for name in _ZYPPER):
            return shlex.join(["zypper", "install", *(f"debuginfo(build-id)={build_id}" for build_id in build_ids)])
        if any(name in self.ids for name in _DNF):
            places = [f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug" for build_id in build_ids]
            return shlex.join(["dnf", "--enablerepo=*debug*", "install", *places])
        return None

    def _versions(self, names: Collection[str]) -> dict[str, Package]:
        """Installed packages by the names of their lists, `NAME` or `NAME:ARCHITECTURE`."""
        known: dict[str, Package] = {}
        status = self._read(f"{_DPKG}/status", _INDEX_BYTES) or b"" if names else b""
        for stanza in status.split(b"\n\n"):
            package = _package(stanza)
            if package is not None:
                architecture = _field(stanza, b"Architecture")
                for name in (package.name, f"{package.name}:{architecture}"):
                    if name in names:
                        known[name] = package
        return known

    def _names(self, folder: str, *ends: str) -> list[str]:
        names = shared().names(self._root, folder, _MOST_LISTS) or []
        return sorted(name for name in names if name.endswith(ends))

    def _read(self, path: str, limit_bytes: int) -> bytes | None:
        opened = shared().open_in_root(process_of(self._root), self._root, path)
        if not isinstance(opened, Opened):
            return None
        with opened:
            if not opened.is_trusted or opened.size_bytes > limit_bytes:
                return None
            try:
                with os.fdopen(os.dup(opened.fd), "rb") as file:
                    data = file.read(limit_bytes)
                return zlib.decompressobj(31).decompress(data, limit_bytes) if path.endswith(".gz") else data
            except (OSError, zlib.error):
                return None


def debug_package(package: Package) -> Package:
    """The package that has a package's debug files, by Debian's rules."""
    python = re.match(r"(?:lib)?(python[23]\.\d+)", package.name)
    if package.name == "libc6":
        return Package("libc6-dbg", package.version)
    return Package(f"{python[1]}-dbg" if python else f"{package.name}-dbgsym", package.version)


def _stanza(data: bytes, at: int) -> bytes:
    begin, end = data.rfind(b"\n\n", 0, at), data.find(b"\n\n", at)
    return data[max(0, begin) : end if end >= 0 else len(data)]


def _field(stanza: bytes, name: bytes) -> str:
    match = re.search(rb"^%s: ([^\n]{1,200})$" % name, stanza, re.MULTILINE)
    return match[1].decode("utf-8", "replace").strip() if match else ""


def _package(stanza: bytes) -> Package | None:
    """Refused where its words are no package's: they become part of a command that people copy."""
    name, version = _field(stanza, b"Package"), _field(stanza, b"Version")
    if not _NAME.fullmatch(name):
        return None
    return Package(name, version if _VERSION.fullmatch(version) else None)
