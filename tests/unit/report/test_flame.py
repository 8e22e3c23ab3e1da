# SPDX-License-Identifier: Apache-2.0
"""Tests for flame graphs: widths, recursion, differences and hidden frames."""

from __future__ import annotations

import pytest

from powerprof.report.flame import MAX_DEPTH, MAX_FRAMES, build_flame, build_flame_difference


def test_frame_width_is_its_share_below_its_caller() -> None:
    graph = build_flame([(("t", "a", "b"), 3), (("t", "a"), 1), (("u",), 4)], unit="exits")
    found = {frame.label: frame for frame in graph.frames}
    assert (found["all"].value, found["all"].width, found["all"].depth) == (8, 1.0, 0)
    assert (found["a"].value, found["a"].own, found["a"].width, found["a"].depth) == (4, 1, 0.5, 2)
    assert (found["b"].value, found["b"].own, found["b"].width) == (3, 3, 0.375)
    assert found["b"].start == found["a"].start == found["t"].start
    assert sum(frame.own for frame in graph.frames) == 8
    assert [frame.label for frame in graph.frames] == ["all", "t", "a", "b", "u"]


def test_recursion_keeps_its_levels() -> None:
    graph = build_flame([(("f", "f", "f"), 2)], unit="exits")
    found = [(frame.label, frame.depth, frame.value) for frame in graph.frames[1:]]
    assert found == [("f", 1, 2), ("f", 2, 2), ("f", 3, 2)]


def test_difference_keeps_frames_of_one_side() -> None:
    a, b = [(("t", "gone"), 6.0), (("t", "same"), 2.0)], [(("t", "same"), 2.0), (("t", "new"), 4.0)]
    graph = build_flame_difference(a, b, unit="1/s")
    found = {frame.label: frame for frame in graph.frames}
    assert (found["gone"].a, found["gone"].value) == (6, 0)
    assert (found["new"].a, found["new"].value) == (0, 4)
    assert found["gone"].width == pytest.approx(6 / 12)
    assert (found["all"].a, found["all"].value) == (8, 6)


def test_hidden_frames_are_counted() -> None:
    deep = tuple(f"f{number}" for number in range(MAX_DEPTH + 50))
    graph = build_flame([(deep, 1)], unit="exits")
    assert graph.depth == MAX_DEPTH + 1 and graph.hidden_count == 1
    wide = build_flame([((f"f{number}",), 1) for number in range(1500)], unit="exits")
    assert len(wide.frames) == 1501 and wide.hidden_count == 0
    bushy = build_flame([((f"f{n}", f"g{n}", f"h{n}", f"i{n}"), 1) for n in range(1500)], unit="exits")
    assert len(bushy.frames) == MAX_FRAMES and bushy.hidden_count > 0
    narrow = build_flame([(("big",), 1_000_000), (("small",), 1)], unit="exits")
    assert [frame.label for frame in narrow.frames] == ["all", "big"] and narrow.hidden_count == 1


def test_order_of_stacks_does_not_change_the_graph() -> None:
    stacks = [(("a", "x"), 1.0), (("b",), 1.0), (("a", "y"), 1.0)]
    assert build_flame(stacks, unit="exits") == build_flame(reversed(stacks), unit="exits")
