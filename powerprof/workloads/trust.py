# SPDX-License-Identifier: Apache-2.0
"""Workloads of others that would run programs here: asked about once, remembered by what they hold.

A workload is data, but for a few keys that make this host run what its author wrote. Such a folder is copied first;
the digest of the copy is what is trusted and the copy is what is run, so that nothing can change in between.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from powerprof.caller import as_caller
from powerprof.digests import tree_digest
from powerprof.errors import DataError, UsageError
from powerprof.files import reason_of
from powerprof.folders import Folder, give
from powerprof.paths import data_dir, state_dir
from powerprof.workloads.definition import Member, Server
from powerprof.workloads.reading import Case

_MOST_FILES = 2000
_MOST_BYTES = 512 << 20
_SHOWN = 120
# ld.so(8), and the same for interpreters: a library or script of the author's choice in the server.
_LOADING = ("LD_", "GLIBC_", "GCONV_PATH", "MALLOC_CONF", "PYTHON", "PERL", "BASH_ENV", "ENV")
_LIBRARIES = ("plugin_load", "plugin_load_add", "early_plugin_load", "malloc_lib")


def runs_programs(case: Case) -> str | None:
    """What of a condition makes this host run something of the author's; None where all of it is data."""
    if case.load.argv:
        return f"load.argv: {' '.join(case.load.argv)}"[:_SHOWN]
    members = [(f"topology.members.{name}", own) for name, own in case.topology.members.items()]
    servers: list[tuple[str, Server | Member]] = [("server", case.server), *members]
    for where, server in servers:
        for name in server.environment:
            if name.startswith(_LOADING):
                return f"{where}.environment: {name}"
        for name in server.my_cnf:
            plain = name.lower().replace("-", "_").removeprefix("loose_")
            if any(library.startswith(plain) or plain.startswith(library) for library in _LIBRARIES):
                return f"{where}.my_cnf: {name}"
    return None


def is_shipped(case: Case) -> bool:
    """Whether the workload came with powerprof."""
    return case.workload.folder.resolve().parent == data_dir("workloads").resolve()


def check(cases: Sequence[Case], trust: bool, copies: Path, owner: tuple[int, int] | None = None) -> dict[Path, Path]:
    """Folder → its copy below `copies`, for each folder of others that would run programs.

    With `trust` they are trusted from now on. Raises UsageError for one that is not, DataError for one that cannot be
    copied. The copies belong to `owner`.
    """
    found: dict[Path, Path] = {}
    for case in cases:
        folder = case.workload.folder
        what = runs_programs(case)
        if what is None or is_shipped(case) or folder in found:
            continue
        copy = copies / f"workload-{len(found) + 1}"
        _copy(folder, copy, owner)
        digest = tree_digest(copy, most_files=_MOST_FILES, most_bytes=_MOST_BYTES)
        if trust:
            _remember(digest, folder)
        elif not _is_trusted(digest):
            raise UsageError(
                f"the workload {case.workload.definition.name} of {folder} runs programs of its own ({what})",
                "read what is in the folder; then give --trust once",
            )
        found[folder] = copy
    return found


def _shelf() -> Path:
    return state_dir() / "trusted"


def _is_trusted(digest: str) -> bool:
    return (_shelf() / digest).is_file()


def _remember(digest: str, folder: Path) -> None:
    try:
        with as_caller(), Folder.open(_shelf(), make=True) as shelf:
            shelf.write(digest, f"{folder}\n".encode(errors="replace"))
    except OSError as error:
        raise DataError(_shelf(), f"cannot be written ({reason_of(error)})") from error


def _copy(source: Path, target: Path, owner: tuple[int, int] | None) -> None:
    """Files and folders; a link is copied as what it says. Raises DataError."""
    left = [_MOST_FILES, _MOST_BYTES]
    try:
        given = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with Folder.open(target.parent) as parent:
                _copy_folder(given, parent, target.name, owner, left)
        finally:
            os.close(given)
    except OSError as error:
        raise DataError(source, f"cannot be copied ({reason_of(error)})") from error


def _copy_folder(given: int, parent: Folder, name: str, owner: tuple[int, int] | None, left: list[int]) -> None:
    parent.make(name)
    with parent.folder(name) as made:
        for entry in sorted(os.listdir(given)):
            info = os.lstat(entry, dir_fd=given)
            left[0] -= 1
            left[1] -= info.st_size
            if min(left) < 0:
                raise OSError(0, f"it holds more than {_MOST_FILES:,} files or {_MOST_BYTES >> 20} MiB")
            if stat.S_ISLNK(info.st_mode):
                os.symlink(os.readlink(entry, dir_fd=given), entry, dir_fd=made.handle)
            elif stat.S_ISDIR(info.st_mode):
                inner = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=given)
                try:
                    _copy_folder(inner, made, entry, owner, left)
                finally:
                    os.close(inner)
            else:
                _copy_file(given, made, entry, owner)
        give(made.handle, owner)


def _copy_file(given: int, made: Folder, name: str, owner: tuple[int, int] | None) -> None:
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=given)
    with os.fdopen(opened, "rb") as source:
        info = os.fstat(opened)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(0, f"{name} is neither file, folder nor link")
        with os.fdopen(made.create(name), "wb") as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            give(copy.fileno(), owner, 0o700 if info.st_mode & 0o111 else 0o600)
