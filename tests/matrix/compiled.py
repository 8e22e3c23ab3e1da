# SPDX-License-Identifier: Apache-2.0
"""BPF programs that machines of one kernel and root compiled: the next machine of that kind begins with them.

clang takes a minute in an emulated machine. powerprof finds a program by all that went into it (source, kernel, BTF,
compiler), so one that is no longer right is compiled again in there.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.matrix import cache
from tests.matrix.cells import Cell


def folder(cell: Cell) -> Path:
    """Where they are kept; it need not be there."""
    return cache.folder() / f"compiled-{cell.root}-{cell.kernel}-{cell.flavour}-{cell.arch}"


def keep(cell: Cell, results: Iterable[Mapping[str, Any]]) -> None:
    """What a machine said that it has, in place of what was there; a machine that did not get that far says nothing."""
    for said in results:
        if "compiled" in said:
            place = folder(cell)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for name, text in said["compiled"].items():
                (place / Path(name).name).write_bytes(base64.b64decode(text))
