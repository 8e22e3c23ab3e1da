"""What a report shows beside its record: stacks and timelines are saved apart from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from powerprof.report.samples import TimelineExit, WeightedStack


@dataclass(frozen=True)
class Extras:
    """`stacks` of an attribution or of condition A, `stacks_b` of condition B, both as `unit`, which must compare.

    `modules` maps frames to the file they are in, for their colour. `timeline` is drawn per CPU.
    """

    stacks: Sequence[WeightedStack] = ()
    stacks_b: Sequence[WeightedStack] = ()
    unit: str = "idle exits"
    modules: Mapping[str, str] = field(default_factory=dict)
    timeline: Sequence[TimelineExit] = ()
