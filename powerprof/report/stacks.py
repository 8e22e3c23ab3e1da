"""From the rows of an attribution to weighted stacks: the thread, then its frames from the outermost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from powerprof.attribution.records import Wakeup
from powerprof.report.samples import Frames, WeightedStack

Weight = Literal["count", "rate_hz", "c0_ms"]
NO_STACK = "[no user stack]"


def frames_of(wakeup: Wakeup) -> Frames:
    """Outermost first, below the thread's name; a stack that breaks off says so."""
    frames = [frame.label for frame in reversed(wakeup.stack)]
    if not frames:
        frames = [NO_STACK]
    elif not wakeup.stack_complete:
        frames.insert(0, "[incomplete]")
    return (wakeup.thread.label, *frames)


def stacks_of(wakeups: Iterable[Wakeup], by: Weight = "count") -> list[WeightedStack]:
    """One weighted stack a row."""
    return [(frames_of(wakeup), getattr(wakeup, by)) for wakeup in wakeups]


def modules_of(wakeups: Sequence[Wakeup]) -> dict[str, str]:
    """The file each frame is in, by the frame's label."""
    return {frame.label: frame.module for wakeup in wakeups for frame in wakeup.stack}
