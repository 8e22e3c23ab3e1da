# SPDX-License-Identifier: Apache-2.0
"""What a report shows beside its record: stacks and timelines are saved apart from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from powerprof.attribution.records import Attribution
from powerprof.report.stacks.samples import TimelineExit, WeightedStack
from powerprof.report.stacks.weighted import modules_of, stacks_of


@dataclass(frozen=True)
class Extras:
    """`stacks` of an attribution or of condition A, `stacks_b` of condition B, both as `unit`, which must compare.

    `modules` maps frames to the file they are in, for their colour. `timeline` is drawn per CPU. `derived` is a
    sentence of what follows from terms that somebody stated.
    """

    stacks: Sequence[WeightedStack] = ()
    stacks_b: Sequence[WeightedStack] = ()
    unit: str = "idle exits"
    modules: Mapping[str, str] = field(default_factory=dict)
    timeline: Sequence[TimelineExit] = ()
    derived: str = ""


def extras_of_two(a: Attribution | None, b: Attribution | None) -> Extras:
    """The stacks of a comparison's two conditions, per second of each; none for a condition that was not traced."""
    rows_a, rows_b = (side.wakeups if side is not None else [] for side in (a, b))
    return Extras(
        stacks=stacks_of(rows_a, "rate_hz"),
        stacks_b=stacks_of(rows_b, "rate_hz"),
        unit="idle exits/s",
        modules={**modules_of(rows_a), **modules_of(rows_b)},
    )
