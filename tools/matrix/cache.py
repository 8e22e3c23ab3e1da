# SPDX-License-Identifier: Apache-2.0
"""Where the bench keeps what is dear to make: below the XDG cache, named by a digest of its recipe."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def folder() -> Path:
    """The bench's cache, made where it is absent."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    target = Path(base) / "powerprof-matrix"
    target.mkdir(parents=True, exist_ok=True)
    return target


def digest(*parts: str | bytes) -> str:
    """A short name of a recipe: another recipe has another one."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:12]


@contextmanager
def _locked(name: str) -> Iterator[None]:
    # The kernel drops the lock with the process, however it ends: no file to clean up means anything.
    with (folder() / f".{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def made(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, made now by `make(temporary folder)` where it is not there: whole, or not at all.

    Older folders of the same kind (the name up to its last dash) are removed: their recipe is no longer in force.
    """
    target = folder() / name
    with _locked(name.rsplit("-", 1)[0]):
        if target.is_dir():
            return target
        temporary = folder() / f".{name}.part"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            make(temporary)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for old in folder().glob(f"{name.rsplit('-', 1)[0]}-*"):
            if old != target and old.name.rsplit("-", 1)[0] == name.rsplit("-", 1)[0]:
                shutil.rmtree(old, ignore_errors=True)
    return target
