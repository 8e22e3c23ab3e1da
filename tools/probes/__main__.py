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
from powerprof.tracing.bpf import objects
from tools.probes.making import DifferentError, differs, made
from tools.probes.shapes import MACHINES, Shape, file_of, shapes

AT_ONCE = 2


def write(shape: Shape, places: Sequence[Path]) -> str | None:
    """Make what is missing. Returns what is wrong."""
    missing = [path for path in places if not path.exists()]
    if not missing:
        return None
    packed = next((path.read_bytes() for path in places if path.exists()), None)
    try:
        packed = packed or objects.pack_carried(made(shape))
    except DifferentError as error:
        return f"cannot be carried: {error}"
    for path in missing:
        path.write_bytes(packed)
    print(f"{missing[0].name}: {shape}", flush=True)
    return None


def compare(shape: Shape, places: Sequence[Path]) -> str | None:
    """Compile once more. Returns what is wrong."""
    found = [objects.read_carried(path.name, path.parent) for path in places]
    if None in found:
        return "missing: make probes"
    first = found[0]
    if first is None or found != [first] * len(places) or differs(shape, first):
        return "is not what bcc makes of it: remove it, and make probes"
    return None


def main(words: Sequence[str]) -> int:
    """Do one of both for the programs that are named, or all."""
    if os.uname().machine != X86_64.name:
        print(f"nothing done: objects are made and compared on {X86_64.name}", file=sys.stderr)
        return 0 if "--anew" in words else 1
    names = [word for word in words if not word.startswith("--")]
    step: Callable[[Shape, Sequence[Path]], str | None] = compare if "--anew" in words else write
    # An object that machines share has one name, and is compiled once.
    wanted: dict[str, tuple[Shape, list[Path]]] = {}
    for machine in MACHINES:
        folder = objects.objects_folder(machine.name)
        folder.mkdir(parents=True, exist_ok=True)
        of_machine = {file_of(shape): shape for shape in shapes(machine)}
        for file, shape in of_machine.items():
            wanted.setdefault(file, (shape, []))[1].append(folder / file)
        if step is write:
            for path in folder.iterdir():
                if path.name not in of_machine:
                    path.unlink()
    chosen = [one for one in wanted.values() if not names or one[0].name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = list(pool.map(lambda one: (one[0], step(*one)), chosen))
    wrong = [f"{shape}: {what}" for shape, what in said if what is not None]
    print("\n".join([*wrong, f"{len(chosen)} objects, {len(wrong)} of them wrong"]), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
