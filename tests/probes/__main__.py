# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.probes [--anew] [PROGRAM…]`: write the carried programs that are missing, remove those of no use.

`--anew` writes nothing: each is compiled again with numbers that it was not made with, and compared. Ends with 1 where
one is missing or another. Wants bcc and kernel headers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from powerprof.tracing.bpf import carried
from tests.probes.making import DifferentError, differs, made
from tests.probes.shapes import Shape, file_of, shapes

AT_ONCE = 2


def write(shape: Shape, path: Path) -> str | None:
    """Make what is missing. Returns what is wrong."""
    if path.exists():
        return None
    try:
        path.write_bytes(carried.pack(made(shape)))
    except DifferentError as error:
        return f"cannot be carried: {error}"
    print(f"{path.name}: {shape}", flush=True)
    return None


def compare(shape: Shape, path: Path) -> str | None:
    """Compile once more. Returns what is wrong."""
    found = carried.read(path.name)
    if found is None:
        return "missing: make probes"
    return "is not what bcc makes of it: remove it, and make probes" if differs(shape, found) else None


def main(words: Sequence[str]) -> int:
    """Do one of both for the programs that are named, or all."""
    names = [word for word in words if not word.startswith("--")]
    step: Callable[[Shape, Path], str | None] = compare if "--anew" in words else write
    wanted = {file_of(shape): shape for shape in shapes()}
    folder = carried.folder()
    folder.mkdir(parents=True, exist_ok=True)
    if step is write:
        for path in folder.iterdir():
            if path.name not in wanted:
                path.unlink()
    chosen = [partial(step, shape, folder / file) for file, shape in wanted.items() if not names or shape.name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = list(pool.map(lambda one: (one.args, one()), chosen))
    wrong = [f"{shape}: {what}" for (shape, _), what in said if what is not None]
    print("\n".join([*wrong, f"{len(chosen)} objects, {len(wrong)} of them wrong"]), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
