# SPDX-License-Identifier: Apache-2.0
"""Programs of the tests, compiled once per run of the tests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path


def build_once(
    target: Path, words: Sequence[str | Path], sources: Sequence[Path], make: Callable[[Path], object]
) -> Path:
    """Return `target`, a copy of the program that `make(path)` compiles.

    `words` and `sources` identify the program in `$TEST_CACHE`, which the workers and parts of `make test` share. It is
    compiled into `target` if there is no such folder.
    """
    base = os.environ.get("TEST_CACHE")
    if base is None:
        make(target)
        return target
    digest = hashlib.sha256(repr([str(word) for word in words]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    folder = Path(base) / "programs" / digest.hexdigest()[:24]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    program = folder / target.name
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            (folder / "new").mkdir(exist_ok=True)
            make(folder / "new" / target.name)
            (folder / "new" / target.name).rename(program)
    shutil.copy2(program, target)
    return target
