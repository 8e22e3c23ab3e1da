# SPDX-License-Identifier: Apache-2.0
"""Flame graphs as values: weighted stacks become placed frames. How they are drawn is not this module's.

The root is at the top, so that the reader begins with the thread and goes down to the function that waited. In a
graph of a difference every frame is as wide as the larger of its two sides: what only A has is seen as well, where
a graph drawn at the widths of B would lose it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from powerprof.report.stacks.samples import WeightedStack, merged

MAX_FRAMES = 4000
MAX_DEPTH = 256
_SMALLEST = 1 / 2000  # of the width: below a pixel on any screen


@dataclass(frozen=True)
class FlameFrame:
    """A frame. `start` and `width` are fractions of the root's; `a` is the other side's value in a difference."""

    label: str
    depth: int
    start: float
    width: float
    value: float
    own: float
    a: float | None = None


@dataclass(frozen=True)
class Flame:
    """Frames in pre-order, the root first. `hidden_count` frames were too narrow or too deep to be drawn."""

    frames: tuple[FlameFrame, ...]
    unit: str
    depth: int
    hidden_count: int
    difference: bool = False


@dataclass
class _FlameNode:
    label: str
    value: float = 0.0
    own: float = 0.0
    a: float = 0.0
    width: float = 0.0
    children: dict[str, _FlameNode] = field(default_factory=dict)


def _grow(root: _FlameNode, frames: tuple[str, ...], value: float, a: float) -> None:
    node, width = root, max(value, a)
    for depth, label in enumerate(("", *frames)):
        if depth:
            node = node.children.setdefault(label, _FlameNode(label))
        node.value += value
        node.a += a
        node.width += width
    node.own += value


def _placed(root: _FlameNode, unit: str, limit: int, *, difference: bool) -> Flame:
    placed: list[FlameFrame] = []
    hidden = depth_seen = 0
    total = root.width
    # A stack of our own, since recursion in a profiled program may be deeper than Python's.
    waiting = [(root, 0, 0.0)]
    while waiting:
        node, depth, start = waiting.pop()
        width = node.width / total if total else 1.0
        if width < _SMALLEST or depth > MAX_DEPTH or len(placed) >= limit:
            hidden += 1
            continue
        depth_seen = max(depth_seen, depth)
        placed.append(FlameFrame(node.label, depth, start, width, node.value, node.own, node.a if difference else None))
        at = start
        below = []
        for child in sorted(node.children.values(), key=lambda frame: (-frame.width, frame.label)):
            below.append((child, depth + 1, at))
            at += child.width / total
        waiting.extend(reversed(below))
    return Flame(tuple(placed), unit, depth_seen + 1, hidden, difference)


def flame(stacks: Iterable[WeightedStack], *, unit: str, root: str = "all", limit: int = MAX_FRAMES) -> Flame:
    """The graph of one set of stacks, of at most `limit` frames."""
    top = _FlameNode(root)
    for frames, value in merged(stacks):
        _grow(top, frames, value, 0.0)
    return _placed(top, unit, limit, difference=False)


def flame_difference(
    a: Iterable[WeightedStack], b: Iterable[WeightedStack], *, unit: str, root: str = "all", limit: int = MAX_FRAMES
) -> Flame:
    """B compared with A: values are B's, `a` is A's. Give rates or per-query figures, which can be compared."""
    before, after = dict(merged(a)), dict(merged(b))
    top = _FlameNode(root)
    for frames in sorted(before.keys() | after.keys()):
        _grow(top, frames, after.get(frames, 0.0), before.get(frames, 0.0))
    return _placed(top, unit, limit, difference=True)
