# SPDX-License-Identifier: Apache-2.0
"""Runs cells, a few at a time: each has its root, kernel and project made or found first."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence

from powerprof.system.errors import PowerprofError
from tools.matrix import kernels, machine, namespaces, roots
from tools.matrix import project as projects
from tools.matrix.arches import ARCHES
from tools.matrix.cells import Cell
from tools.matrix.running import Ended, Running

_POLL_S = 0.25
# A host that others keep busy takes a few times as long: steps and cells that hang may hang that much longer.
_PATIENCE = 3.0


def _job(cell: Cell, commands: Sequence[str], time_scale: float) -> str:
    """What the inside is told."""
    is_machine = cell.kernel is not None
    told = {"is_machine": is_machine, "time_scale": time_scale, "patience": _PATIENCE, "commands": list(commands)}
    return json.dumps({**dataclasses.asdict(cell), **told})


def prepared(cell: Cell, commands: Sequence[str], say: Callable[[str], None]) -> Running:
    """A cell that is ready to run: what it needs is made where it is not there."""
    say(f"{cell.name}: {cell.why}")
    arch, limit_s = ARCHES[cell.arch], _PATIENCE * cell.limit_s
    root = roots.root(cell.root, arch)
    project = projects.project(root)
    if cell.kernel is None:
        job = _job(cell, commands, 1.0)
        return Running(cell, lambda place: namespaces.command(cell, root, project, job, place), limit_s)
    kernel = kernels.kernel(cell.kernel, cell.flavour, cell.arch)
    job = _job(cell, commands, machine.TIME_SCALE)
    return Running(cell, lambda place: machine.command(cell, root, kernel, project, job, place), limit_s)


def run(
    cells: Sequence[Cell], jobs: int, commands: Sequence[str], say: Callable[[str], None]
) -> Iterator[tuple[Cell, Ended]]:
    """Each cell as it ends. However this stops, no process and no folder of a cell is left."""
    waiting, at_work = list(cells), list[tuple[Running, contextlib.ExitStack]]()
    with contextlib.ExitStack() as everything:
        while waiting or at_work:
            while waiting and len(at_work) < jobs:
                cell, one = waiting.pop(0), contextlib.ExitStack()
                everything.push(one)
                try:
                    at_work.append((one.enter_context(prepared(cell, commands, say)), one))
                except (PowerprofError, OSError) as error:
                    yield cell, Ended([], "", f"cannot be made: {error}", 0.0)
            over = [(running, stack) for running, stack in at_work if running.is_over()]
            for running, stack in over:
                ended = running.ended()
                stack.close()
                at_work.remove((running, stack))
                yield running.cell, ended
            if not over:
                time.sleep(_POLL_S)
