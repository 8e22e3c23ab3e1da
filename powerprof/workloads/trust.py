# SPDX-License-Identifier: Apache-2.0
"""Refuse workloads that could run their author's code on this host until the caller trusts the content once.

A workload is data, except for programs (`load.argv`), settings of the host, and environment variables and settings of
the server. Settings and variables that only tune are listed in `database/settings`; any other one needs trust. The
folder is copied first. The digest of the copy is trusted and the copy is run, so nothing can change in between.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from powerprof.database.settings import does_setting_need_trust, does_variable_need_trust
from powerprof.system.acting import as_caller
from powerprof.system.errors import DataError, UsageError, reason_of
from powerprof.system.folder_copies import CopyRefused, CopyRules, copy_folder
from powerprof.system.folders import Folder
from powerprof.system.foreign_data import parse_toml
from powerprof.system.outside_files import read_outside_text
from powerprof.system.paths import data_dir, state_dir
from powerprof.workloads.definition import ServerDefinition, TopologyMember
from powerprof.workloads.reading import WORKLOAD_LIMIT_BYTES, Case

_MOST_FILES = 2000
_MOST_BYTES = 512 << 20
_SHOWN = 120


def find_program_key(case: Case) -> str | None:
    """Return the first key of a condition through which its author could run code or change the host; else None."""
    if case.load.argv:
        return f"load.argv: {' '.join(case.load.argv)}"[:_SHOWN]
    if case.condition.host:
        return f"host: {case.condition.host[0]}"
    kind, members = case.server.kind, case.topology.members
    servers: list[tuple[str, ServerDefinition | TopologyMember]] = [("server", case.server)]
    servers += [(f"topology.members.{name}", member) for name, member in members.items()]
    for where, server in servers:
        for name in server.environment:
            if does_variable_need_trust(name):
                return f"{where}.environment: {name}"
        key = "postgresql_conf" if kind == "postgresql" and isinstance(server, ServerDefinition) else "my_cnf"
        for name, value in getattr(server, key).items():
            if does_setting_need_trust(name, value, kind):
                return f"{where}.{key}: {name}"
    return None


def is_shipped(case: Case) -> bool:
    """Return whether the workload is part of powerprof."""
    return case.workload.folder.resolve().parent == data_dir("workloads").resolve()


def copy_trusted(
    cases: Sequence[Case], trust: bool, copies: Path, owner: tuple[int, int] | None = None
) -> dict[Path, Path]:
    """Copy each foreign folder that would run programs; return folder → its copy below `copies`.

    With `trust` they are trusted from now on. The copies belong to `owner`. Raises UsageError for an untrusted
    workload, and DataError for one that cannot be copied.
    """
    copied: dict[Path, Path] = {}
    for case in cases:
        folder = case.workload.folder
        what = find_program_key(case)
        if what is None or is_shipped(case):
            continue
        if folder in copied:
            _check_copy(case, copied[folder])  # each condition was read at its own moment
            continue
        copy = copies.resolve() / f"workload-{len(copied) + 1}"
        _copy(folder, copy, owner)
        _check_copy(case, copy)
        digest = tree_digest(copy)
        if trust:
            _remember(digest, folder)
        elif not _is_trusted(digest):
            verb = "runs its own programs" if case.load.argv else "could run its author's code in the server"
            verb = "changes settings of this host" if what.startswith("host:") else verb
            raise UsageError(
                f"the workload {case.workload.definition.name} of {folder} {verb} ({what})",
                "read what is in the folder, then use --trust once",
            )
        copied[folder] = copy
    return copied


def _check_copy(case: Case, copy: Path) -> None:
    """Check that the copy, whose digest is trusted, has the tables that were read before. Raise DataError."""
    path = case.workload.path
    if parse_toml(read_outside_text(copy / path.name, WORKLOAD_LIMIT_BYTES), path) != case.workload.raw:
        raise DataError(path, "was changed while it was read", hint="run the command again")


def tree_digest(copy: Path) -> str:
    """Return the SHA-256 of names, kinds, execute bits and contents of everything below a copy."""
    total = hashlib.sha256()
    for folder, folders, names in os.walk(copy):
        folders.sort()
        for path in (Path(folder, name) for name in sorted([*folders, *names])):
            kind = stat.S_IFMT(path.lstat().st_mode) | path.lstat().st_mode & 0o111
            content = os.fsencode(path.readlink()) if path.is_symlink() else b""
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
            # The lengths make the bytes of different trees different.
            for part in (b"%o" % kind, bytes(path.relative_to(copy)), content):
                total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def _trusted_folder() -> Path:
    return state_dir() / "trusted"


def _is_trusted(digest: str) -> bool:
    return (_trusted_folder() / digest).is_file()


def _remember(digest: str, folder: Path) -> None:
    try:
        with as_caller(), Folder.open(_trusted_folder(), make=True) as shelf:
            shelf.write(digest, f"{folder}\n".encode(errors="replace"))
    except OSError as error:
        raise DataError(_trusted_folder(), f"cannot be written ({reason_of(error)})") from error


def _copy(source: Path, target: Path, owner: tuple[int, int] | None) -> None:
    """Copy files, folders and links as they are. Raise DataError."""
    try:
        copy_folder(source.resolve(), target, CopyRules(owner, _MOST_FILES, _MOST_BYTES, links=True))
    except OSError as error:
        raise DataError(source, f"cannot be copied ({reason_of(error)})") from error
    except CopyRefused as unfit:
        raise DataError(source, str(unfit)) from None
