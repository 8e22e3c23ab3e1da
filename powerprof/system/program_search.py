# SPDX-License-Identifier: Apache-2.0
"""Find programs on PATH. Root accepts only those that only root can have written."""

from __future__ import annotations

import os
from pathlib import Path

from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.folders import only_root_writes

_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def which(name: str) -> Path | None:
    """Return the program on PATH or in the sbin folders, which an ordinary PATH lacks; None if it is missing.

    Root accepts only programs that only root can have written.
    """
    return find_program(name)[0]


def need(name: str, package: str) -> Path:
    """Return the program as `which` does. Raise CapabilityError with the apt command if it is missing."""
    program, refused = find_program(name)
    if program is None:
        raise CapabilityError(refused or f"{name} is not installed", f"apt install {package}")
    return program


def find_program(name: str) -> tuple[Path | None, str | None]:
    """Return the program, or the reason against a program of this name."""
    refused = None
    for folder in list_folders():
        path = folder / name
        # This order matters: is_file() raises an error for a path in an unreadable folder.
        if os.access(path, os.X_OK) and path.is_file():
            reason = only_root_writes(path) if os.geteuid() == 0 else None
            if reason is None:
                return path, None
            refused = refused or f"{path} is not run as root ({reason})"
    return None, refused


def list_folders() -> list[Path]:
    """Return the folders of programs: those on PATH, and the sbin folders."""
    # A relative or empty entry is the working directory, which may belong to another account.
    entries = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *_SBIN]
    return [Path(entry) for entry in dict.fromkeys(entries) if entry.startswith("/")]


def explain_not_found(word: str) -> PowerprofError:
    """Return the error for a word that a shell would not run."""
    if "/" not in word:
        return PowerprofError(f"cannot run {word!r} (no such program)", "is it installed, and on PATH?")
    if not os.path.lexists(word):
        return PowerprofError(f"cannot run {word!r} (no such file)", "name a file of this folder, or its full path")
    if os.path.isdir(word):  # noqa: PTH112 - Path's raises where a name is too long
        return PowerprofError(f"cannot run {word} (it is a directory)", "name a program")
    return PowerprofError(f"cannot run {word} (not executable)", "if it is a script, make it executable: chmod +x")
