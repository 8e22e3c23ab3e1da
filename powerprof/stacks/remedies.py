# SPDX-License-Identifier: Apache-2.0
"""The one command that brings the names that files of a process lack: a package, else debuginfod."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from powerprof import text
from powerprof.caller import is_delegated
from powerprof.paths import procfs
from powerprof.processes.reader_process import shared
from powerprof.records import Note
from powerprof.stacks.debuginfod import servers
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.naming import FileNames, files_of, survey
from powerprof.stacks.packages import Distribution, Package, debug_package
from powerprof.stacks.store import TableStore

# Fewer frames without a name than this share are no reason to install anything.
_LEAST_PERCENT = 1.0
_MOST_FILES = 3
_SYSTEM_FOLDERS = ("/usr/", "/lib", "/bin/", "/sbin/")
_OWN_FOLDERS = ("/usr/local/", "/usr/src/")


class Remedies:
    """What brings the names of some files of a process. Files whose names are complete are left out of everything."""

    def __init__(self, pid: int, files: Sequence[FileNames]) -> None:
        self._pid = pid
        self.files = [file for file in files if not file.is_complete and file.build_id]
        root = procfs() / str(pid) / "root"
        here = Path("/")
        status, ours = shared().status(root), shared().status(here)
        self._is_contained = (
            status is not None and ours is not None and (status.device, status.inode) != (ours.device, ours.inode)
        )
        self._distribution = Distribution(root if self._is_contained else here)

    @cached_property
    def _owners(self) -> dict[str, Package]:
        return self._distribution.owners([file.path for file in self.files])

    @cached_property
    def _in_archives(self) -> dict[str, Package]:
        return self._distribution.debug_packages([file.build_id for file in self.files if file.build_id])

    def package(self, file: FileNames) -> Package | None:
        """The package with its debug file: by build id where apt's indexes have it, else by the package of the file."""
        found = self._in_archives.get(file.build_id or "")
        owner = self._owners.get(file.path)
        return found or (debug_package(owner) if owner is not None else None)

    def is_distributed(self, file: FileNames) -> bool:
        """Whether somebody else built it, who may have its debug file."""
        if self._distribution.has_dpkg:
            return file.path in self._owners
        return file.path.startswith(_SYSTEM_FOLDERS) and not file.path.startswith(_OWN_FOLDERS)

    def command(self, *, asked: bool = False) -> str | None:
        """What to type; None where no source of the names is known. `asked`: the user's own servers were asked."""
        files = [file for file in self.files if self.is_distributed(file)]
        build_ids = [file.build_id for file in files if file.build_id]
        if build_ids and not self._is_contained:
            packages = [self._in_archives.get(build_id) for build_id in build_ids]
            if all(packages):
                words = dict.fromkeys(package.word for package in packages if package is not None)
                return f"{_as_root()}{shlex.join(['apt', 'install', *words])}"
            if (installed := self._distribution.by_build_id(build_ids)) is not None:
                return f"{_as_root()}{installed}"
        if servers():
            return self._fetch() if self.files and not asked else None
        return self._fetch(self._distribution.server) if files else None

    def _fetch(self, server: str | None = None) -> str:
        # The cache is that of the account that powerprof runs as, and sudo passes no environment on.
        chosen = f"DEBUGINFOD_URLS={server or shlex.quote(' '.join(servers()))} " if server or is_delegated() else ""
        return f"{'sudo ' if is_delegated() else ''}{chosen}powerprof symbols --pid {self._pid} --fetch"


def _as_root() -> str:
    return "sudo " if os.geteuid() != 0 or is_delegated() else ""


def missing_names(frames: Iterable[tuple[str, bool]], images: Iterable[ProcessImage]) -> Note | None:
    """What a report says of frames without a name; None where there are few, or where no file could name them.

    `frames` are (file, whether it has a name), one for each that is shown.
    """
    total, unnamed = 0, Counter[str]()
    for module, is_named in frames:
        total += 1
        # What is in no file, `[Java code]`, has no debug symbols.
        unnamed[module] += not is_named and not module.startswith("[")
    if not total or 100.0 * unnamed.total() / total < _LEAST_PERCENT:
        return None
    store, most = TableStore(downloads=False), unnamed.most_common(1)[0][0]
    # Of many processes one whose program lacks most.
    for image in sorted(images, key=lambda image: not files_of(image, lambda module: module == most)):
        lacking = [
            file
            for file in survey(image, files_of(image, lambda module: unnamed[module] > 0), store)
            if not file.is_complete and file.note is None
        ]
        if lacking:
            return _note(image.pid, sorted(lacking, key=lambda file: -unnamed[file.module]), unnamed, total)
    return None


def _note(pid: int, files: list[FileNames], unnamed: Counter[str], total: int) -> Note:
    names = list(dict.fromkeys(file.module for file in files))
    few = names[:_MOST_FILES]
    more = [text.some(len(names) - len(few), "more file")] if len(names) > len(few) else []
    percent = 100.0 * sum(unnamed[name] for name in names) / total
    command = Remedies(pid, files).command(asked=True)
    files_text = text.listed([*few, *more])
    if command is None:
        return Note("names_stripped", {"percent": percent, "files": files_text})
    return Note("names_missing", {"percent": percent, "files": files_text, "command": command})
