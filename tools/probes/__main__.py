# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.probes [--anew] [PROGRAM…]`: write the carried programs that are missing, remove those of no use.

`--anew` writes nothing: each is compiled again with numbers that it was not made with, and compared. Ends with 1 where
one is missing or another. Those of all machines, on x86-64: bcc lays variables out otherwise on another host, and then
nothing is done. Wants bcc and kernel headers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from powerprof.stacks.registers import X86_64
from powerprof.tracing.bpf import carried
from tools.probes.making import DifferentError, differs, made
from tools.probes.shapes import Shape, all_shapes

AT_ONCE = 2


def write(shape: Shape, path: Path) -> str | None:
    """Make what is missing. Returns what is wrong."""
    if path.exists():
        return None
    try:
        path.write_bytes(carried.pack_carried(made(shape)))
    except DifferentError as error:
        return f"cannot be carried: {error}"
    print(f"{path.name}: {shape}", flush=True)
    return None


def compare(shape: Shape, path: Path) -> str | None:
    """Compile once more. Returns what is wrong."""
    found = carried.read_carried(path.name, path.parent)
    if found is None:
        return "missing: make probes"
    if differs(shape, found):
        return "is not what bcc makes of it: remove it, and make probes"
    return None


def main(words: Sequence[str]) -> int:
    """Do one of both for the programs that are named, or all."""
    if os.uname().machine != X86_64.name:
        print(f"nothing done: objects are made and compared on {X86_64.name}", file=sys.stderr)
        return 0 if "--anew" in words else 1
    names = [word for word in words if not word.startswith("--")]
    step: Callable[[Shape, Path], str | None] = compare if "--anew" in words else write
    folder, wanted = carried.objects_folder(), all_shapes()
    folder.mkdir(parents=True, exist_ok=True)
    if step is write:
        for path in folder.iterdir():
            if path.name not in wanted:
                path.unlink()
    chosen = [(shape, folder / file) for file, shape in wanted.items() if not names or shape.name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = list(pool.map(lambda one: (one[0], step(*one)), chosen))
    wrong = [f"{shape}: {what}" for shape, what in said if what is not None]
    print("\n".join([*wrong, f"{len(chosen)} objects, {len(wrong)} of them wrong"]), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
