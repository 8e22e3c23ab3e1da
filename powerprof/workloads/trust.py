# SPDX-License-Identifier: Apache-2.0
"""Workloads of others that would run programs here: asked about once, remembered by what they hold.

A workload is data, but for a few keys that make this host run what its author wrote. Such a folder is copied first;
the digest of the copy is what is trusted and the copy is what is run, so that nothing can change in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerprof.caller import as_caller
from powerprof.copies import Rules, Unfit, copy_folder
from powerprof.digests import tree_digest
from powerprof.errors import DataError, UsageError
from powerprof.files import reason_of
from powerprof.folders import Folder
from powerprof.paths import data_dir, state_dir
from powerprof.workloads.definition import ServerDefinition, TopologyMember
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
    servers: list[tuple[str, ServerDefinition | TopologyMember]] = [("server", case.server), *members]
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
    copied: dict[Path, Path] = {}
    for case in cases:
        folder = case.workload.folder
        what = runs_programs(case)
        if what is None or is_shipped(case) or folder in copied:
            continue
        copy = copies / f"workload-{len(copied) + 1}"
        _copy(folder, copy, owner)
        digest = tree_digest(copy, most_files=_MOST_FILES, most_bytes=_MOST_BYTES)
        if trust:
            _remember(digest, folder)
        elif not _is_trusted(digest):
            raise UsageError(
                f"the workload {case.workload.definition.name} of {folder} runs its own programs ({what})",
                "read what is in the folder, then use --trust once",
            )
        copied[folder] = copy
    return copied


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
    try:
        copy_folder(source.resolve(), target, Rules(owner, _MOST_FILES, _MOST_BYTES, links=True))
    except OSError as error:
        raise DataError(source, f"cannot be copied ({reason_of(error)})") from error
    except Unfit as unfit:
        raise DataError(source, str(unfit)) from None
