# SPDX-License-Identifier: Apache-2.0
"""The way of a command through the house: `python -m tools.bench.path attribute --pid NAME --no-save`.

It runs the command in this process and notes each function of ours that is entered from another module. A *stop* is
such a function, a *room* its module, a *climb* a call to one in a higher layer of docs/dev/architecture.md than who
calls it: each is counted once, however often it happens. What lies below `windows` is looked up from everywhere and not
counted. Twice: between packages, which is the way that a reader follows, and between all modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType

import powerprof
from powerprof.cli.app import run_app
from tests.conftest import REPOSITORY
from tests.unit.layers.imports import layers_in

PACKAGE = f"{Path(powerprof.__file__).parent}{os.sep}"
LAYERS = layers_in(REPOSITORY / "docs/dev/architecture.md", "## Layers")
RANKS = {name: number for number, line in enumerate(reversed(LAYERS)) for name in line}
# Module and function that call, module and function that are called.
Call = tuple[str, str, str, str]


def module_of(code: CodeType) -> str:
    """The path of one of our modules within the package; empty for all others."""
    name = code.co_filename
    return name.removeprefix(PACKAGE).removesuffix(".py") if name.startswith(PACKAGE) else ""


def rank(module: str) -> int:
    return RANKS.get(module.partition("/")[0], -1)


class Walk:
    """Every call from one module of ours to another, the first time that it happens."""

    def __init__(self) -> None:
        self.calls: dict[Call, None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        callee, name = module_of(frame.f_code), frame.f_code.co_qualname
        if event != "call" or not callee or (name.rpartition(".")[2].startswith("<") and not name.endswith("<lambda>")):
            return
        back = frame.f_back
        while back is not None and not module_of(back.f_code):
            back = back.f_back
        if back is not None and back.f_code.co_name != "<module>" and module_of(back.f_code) != callee:
            self.calls.setdefault((module_of(back.f_code), back.f_code.co_qualname, callee, name))

    def between(self, *, packages: bool) -> list[Call]:
        """Those that count."""
        low = RANKS["windows"]
        return [
            call
            for call in self.calls
            if min(rank(call[0]), rank(call[2])) >= low
            and not (packages and call[0].partition("/")[0] == call[2].partition("/")[0])
        ]


def climbs(calls: Iterable[Call]) -> set[tuple[str, str, str]]:
    """From which module to which function of a higher layer."""
    return {(caller, callee, name) for caller, _, callee, name in calls if rank(callee) > rank(caller)}


def main() -> int:
    """Run the command, then print its way and the counts."""
    walk = Walk()
    sys.setprofile(walk)
    try:
        code = run_app(sys.argv[1:])
    finally:
        sys.setprofile(None)
    for caller, _, callee, name in walk.between(packages=True):
        print(f"{'up' if rank(callee) > rank(caller) else '':3}{caller} → {callee}: {name}")
    for packages in (True, False):
        calls = walk.between(packages=packages)
        stops, rooms = {call[2:] for call in calls}, {call[2] for call in calls}
        where = "between packages" if packages else "between modules"
        print(f"{where}: {len(stops)} stops in {len(rooms)} rooms, {len(climbs(calls))} climbs")
    return code


if __name__ == "__main__":
    sys.exit(main())
