# SPDX-License-Identifier: Apache-2.0
"""The command that gets the missing names of a process's files: a package of apt, else debuginfod.

The indexes of Debian's and Ubuntu's debug archives contain the Build-Ids of each package. They are read in the root of
the process, with limits, and only if no account except root and us can write them. No program is executed.
"""

from __future__ import annotations

import os
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

from powerprof.model import text
from powerprof.model.records import Note
from powerprof.stacks.debuginfod import configured_servers
from powerprof.stacks.file_names import FileNames, mapped_files, survey_names
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.store import TableStore
from powerprof.system.caller import is_delegated
from powerprof.system.next_steps import command_line
from powerprof.system.reader_process import Opened, process_of, shared
from powerprof.system.tasks import process_folder

_MOST_LISTS = 50_000
_INDEX_BYTES = 256 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]{1,100}")
_VERSION = re.compile(r"[A-Za-z0-9.+~:-]{1,100}")
# Debug archives of Debian and Ubuntu. The indexes of other archives are large and have no debug packages.
_DEBUG_ARCHIVES = ("debug", "ddebs")
_APT = "/var/lib/apt/lists"
_SERVERS = {"debian": "https://debuginfod.debian.net", "ubuntu": "https://debuginfod.ubuntu.com"}
# It forwards requests to the servers of other distributions.
_FEDERATED = "https://debuginfod.elfutils.org"
# A smaller share of unnamed frames does not justify an installation.
_LEAST_PERCENT = 1.0
_MOST_FILES = 3
_SYSTEM_FOLDERS = ("/usr/", "/lib", "/bin/", "/sbin/")
_OWN_FOLDERS = ("/usr/local/", "/usr/src/")


class Distribution:
    """The distribution in `root`, `/` or `/proc/PID/root`. Files that cannot be read are ignored."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def server(self) -> str:
        """The debuginfod server for the distribution, by ID and ID_LIKE of os-release(5)."""
        release = (self._read("/etc/os-release", 1 << 16) or b"").decode("utf-8", "replace")
        fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
        words = " ".join(fields.get(name, "").strip("\"' ") for name in ("ID", "ID_LIKE")).split()
        return next((_SERVERS[word] for word in words if word in _SERVERS), _FEDERATED)

    def debug_packages(self, build_ids: Collection[str]) -> dict[str, str]:
        """Return the words for apt of the packages in its indexes with the debug files of these build ids."""
        packages: dict[str, str] = {}
        for name in self._list_indexes() if build_ids else ():
            if not any(word in name for word in _DEBUG_ARCHIVES):
                continue
            data = self._read(f"{_APT}/{name}", _INDEX_BYTES) or b""
            for build_id in set(build_ids) - set(packages):
                at = data.find(build_id.encode())
                if at >= 0:
                    package = _read_package(_find_stanza(data, at))
                    if package is not None:
                        packages[build_id] = package
        return packages

    def _list_indexes(self) -> list[str]:
        names = shared().names(self._root, _APT, _MOST_LISTS) or []
        return sorted(name for name in names if name.endswith(("_Packages", "_Packages.gz")))

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


def _find_stanza(data: bytes, at: int) -> bytes:
    begin, end = data.rfind(b"\n\n", 0, at), data.find(b"\n\n", at)
    return data[max(0, begin) : end if end >= 0 else len(data)]


def _read_field(stanza: bytes, name: bytes) -> str:
    match = re.search(rb"^%s: ([^\n]{1,200})$" % name, stanza, re.MULTILINE)
    return match[1].decode("utf-8", "replace").strip() if match else ""


def _read_package(stanza: bytes) -> str | None:
    """Return the argument of apt, NAME=VERSION; None for an invalid name, because users copy it into a command."""
    name, version = _read_field(stanza, b"Package"), _read_field(stanza, b"Version")
    if not _NAME.fullmatch(name):
        return None
    return f"{name}={version}" if _VERSION.fullmatch(version) else name


class Remedies:
    """Sources of the missing names of some files of a process. Files with complete names are ignored."""

    def __init__(self, pid: int, files: Sequence[FileNames]) -> None:
        self._pid = pid
        self.files = [file for file in files if not file.is_complete and file.build_id]
        root = process_folder(pid) / "root"
        here = Path("/")
        status, ours = shared().status(root), shared().status(here)
        self._is_contained = (
            status is not None and ours is not None and (status.device, status.inode) != (ours.device, ours.inode)
        )
        self._distribution = Distribution(root if self._is_contained else here)

    @cached_property
    def _in_archives(self) -> dict[str, str]:
        return self._distribution.debug_packages([file.build_id for file in self.files if file.build_id])

    def package(self, file: FileNames) -> str | None:
        """Return the package with a file's debug file, by build id in apt's indexes."""
        return self._in_archives.get(file.build_id or "")

    def command(self, *, asked: bool = False) -> str | None:
        """Return the command; None if no source is known. `asked`: the user's own servers were queried."""
        files = [file for file in self.files if _is_distributed(file)]
        build_ids = [file.build_id for file in files if file.build_id]
        if build_ids and not self._is_contained:
            packages = [self._in_archives.get(build_id) for build_id in build_ids]
            if all(packages):
                words = dict.fromkeys(package for package in packages if package is not None)
                as_root = "sudo " if os.geteuid() != 0 or is_delegated() else ""
                return f"{as_root}{shlex.join(['apt', 'install', *words])}"
        if configured_servers():
            return self._fetch() if self.files and not asked else None
        return self._fetch(self._distribution.server) if files else None

    def _fetch(self, server: str | None = None) -> str:
        # The cache belongs to the account that runs powerprof, and sudo does not pass the environment on.
        chosen = (
            f"DEBUGINFOD_URLS={server or shlex.quote(' '.join(configured_servers()))}"
            if server or is_delegated()
            else ""
        )
        return command_line("doctor --pid {} --fetch", self._pid, environment=chosen)


def _is_distributed(file: FileNames) -> bool:
    """Return whether a distribution installs files there, so that it may have the debug file."""
    return file.path.startswith(_SYSTEM_FOLDERS) and not file.path.startswith(_OWN_FOLDERS)


def missing_names(frames: Iterable[tuple[str, bool]], images: Iterable[ProcessImage]) -> Note | None:
    """Return the note of a report on unnamed frames; None if they are few or no file could name them.

    `frames` are (module, whether it has a name), one per printed frame.
    """
    total, unnamed = 0, Counter[str]()
    for module, is_named in frames:
        total += 1
        # Generated code such as `[Java code]` has no debug symbols.
        unnamed[module] += not is_named and not module.startswith("[")
    if not total or 100.0 * unnamed.total() / total < _LEAST_PERCENT:
        return None
    store, most = TableStore(downloads=False), unnamed.most_common(1)[0][0]
    # Prefer a process whose own files include the module with most unnamed frames.
    for image in sorted(images, key=lambda image: not mapped_files(image, lambda module: module == most)):
        lacking = [
            file
            for file in survey_names(image, mapped_files(image, lambda module: unnamed[module] > 0), store)
            if not file.is_complete and file.note is None
        ]
        if lacking:
            return _build_note(image.pid, sorted(lacking, key=lambda file: -unnamed[file.module]), unnamed, total)
    return None


def _build_note(pid: int, files: list[FileNames], unnamed: Counter[str], total: int) -> Note:
    names = list(dict.fromkeys(file.module for file in files))
    few = names[:_MOST_FILES]
    more = [text.plural(len(names) - len(few), "more file")] if len(names) > len(few) else []
    percent = 100.0 * sum(unnamed[name] for name in names) / total
    command = Remedies(pid, files).command(asked=True)
    files_text = text.join_words([*few, *more])
    if command is None:
        return Note("names_stripped", {"percent": percent, "files": files_text})
    return Note("names_missing", {"percent": percent, "files": files_text, "command": command})
