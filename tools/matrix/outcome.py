# SPDX-License-Identifier: Apache-2.0
"""What became of a cell: green, or red and why; one line of JSON each, which the page is made from."""

from __future__ import annotations

import datetime
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from powerprof.stacks.registers import AARCH64, X86_64
from tools.matrix.cells import Cell
from tools.matrix.running import Ended
from tools.probes.shapes import shapes


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step as the inside told it."""

    step: str
    ok: bool
    seconds: float
    facts: dict[str, Any] = {}
    why: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One cell, one day. `missing` are steps that were never reached, `programs` is the digest of the BPF programs."""

    cell: str
    programs: str | None = None
    date: str
    why_ended: str | None
    seconds: float
    steps: list[Step]
    missing: list[str]

    @property
    def is_green(self) -> bool:
        """Every step was done and found nothing wrong."""
        return self.why_ended is None and not self.missing and all(step.ok for step in self.steps)

    def reasons(self) -> list[str]:
        """Why it is red."""
        said = [f"{step.step}: {step.why}" for step in self.steps if not step.ok]
        if self.why_ended is not None:
            said.append(self.why_ended)
        if self.missing:
            said.append(f"never reached: {', '.join(self.missing)}")
        return said

    def facts(self, step: str) -> dict[str, Any]:
        """What a step found; nothing where it failed or was not reached."""
        return next((one.facts for one in self.steps if one.step == step and one.facts), {})


@cache
def digest_programs(arch: str) -> str:
    """Return the digest of the BPF programs that are carried for an architecture of Debian.

    The name of a file holds the digest of its source without comments and of its definitions.
    """
    machine = {"amd64": X86_64, "arm64": AARCH64}[arch]
    return hashlib.sha256("\n".join(sorted(shapes(machine))).encode()).hexdigest()[:16]


def outcome(cell: Cell, ended: Ended) -> Outcome:
    """Judge what a cell said."""
    steps = [msgspec.convert(one, Step) for one in ended.results if "step" in one]
    missing = [name for name in ("machine", *cell.steps) if name not in {step.step for step in steps}]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Outcome(
        cell=cell.name,
        programs=digest_programs(cell.arch),
        date=today,
        why_ended=ended.why_ended,
        seconds=float(round(ended.seconds)),
        steps=steps,
        missing=missing,
    )


def load(path: Path) -> dict[str, Outcome]:
    """The newest outcome of each cell."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [msgspec.json.decode(line, type=Outcome) for line in lines]
    return {one.cell: one for one in found}


def save(path: Path, outcomes: dict[str, Outcome]) -> None:
    """One line a cell, in the order of their names: a new run changes its own lines only."""
    path.write_text("".join(msgspec.json.encode(outcomes[name]).decode() + "\n" for name in sorted(outcomes)))
