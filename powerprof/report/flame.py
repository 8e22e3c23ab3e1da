# SPDX-License-Identifier: Apache-2.0
"""Flame graphs as values: weighted stacks become placed frames.

The root is at the top: the reader begins with the thread and ends at the function that waited. In a difference each
frame is as wide as the larger of its two sides. With the widths of B, frames that only A has would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from powerprof.report.stacks import WeightedStack, merge_stacks

MAX_FRAMES = 4000
MAX_DEPTH = 256
_SMALLEST = 1 / 2000  # of the width, less than a pixel on any screen


class FlameFrame(msgspec.Struct, frozen=True):
    """A frame of a flame graph.

    Attributes:
        start: The left end, as a fraction of the width of the root.
        width: The width, as a fraction of the width of the root.
        value: The weight with all callees.
        own: The weight without callees.
        a: The value of the other side of a difference.
    """

    label: str
    depth: int
    start: float
    width: float
    value: float
    own: float
    a: float | None = None


class Flame(msgspec.Struct, frozen=True):
    """Frames in pre-order, the root first.

    Attributes:
        depth: The number of rows.
        hidden_count: The number of frames that are too narrow or too deep to be drawn.
        difference: Whether it compares two sides.
    """

    frames: tuple[FlameFrame, ...]
    unit: str
    depth: int
    hidden_count: int
    difference: bool = False


class _FlameNode(msgspec.Struct):
    label: str
    value: float = 0.0
    own: float = 0.0
    a: float = 0.0
    width: float = 0.0
    children: dict[str, _FlameNode] = msgspec.field(default_factory=dict)


def _add_stack(root: _FlameNode, frames: tuple[str, ...], value: float, a: float) -> None:
    node, width = root, max(value, a)
    for depth, label in enumerate(("", *frames)):
        if depth:
            node = node.children.setdefault(label, _FlameNode(label))
        node.value += value
        node.a += a
        node.width += width
    node.own += value


def _place_frames(root: _FlameNode, unit: str, limit: int, *, difference: bool) -> Flame:
    placed: list[FlameFrame] = []
    hidden = depth_seen = 0
    total = root.width
    # An explicit stack, because recursion in a profiled program may be deeper than Python's limit.
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


def build_flame(stacks: Iterable[WeightedStack], *, unit: str, root: str = "all", limit: int = MAX_FRAMES) -> Flame:
    """Return the graph of a set of stacks, of at most `limit` frames."""
    top = _FlameNode(root)
    for frames, value in merge_stacks(stacks):
        _add_stack(top, frames, value, 0.0)
    return _place_frames(top, unit, limit, difference=False)


def build_flame_difference(
    a: Iterable[WeightedStack], b: Iterable[WeightedStack], *, unit: str, root: str = "all", limit: int = MAX_FRAMES
) -> Flame:
    """Return the graph of B compared with A: values are those of B, `a` those of A.

    The weights must be comparable: rates, or figures per query.
    """
    before, after = dict(merge_stacks(a)), dict(merge_stacks(b))
    top = _FlameNode(root)
    for frames in sorted(before.keys() | after.keys()):
        _add_stack(top, frames, after.get(frames, 0.0), before.get(frames, 0.0))
    return _place_frames(top, unit, limit, difference=True)
