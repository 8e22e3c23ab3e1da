# SPDX-License-Identifier: Apache-2.0
"""Tests for the spread of windows as charts."""

from __future__ import annotations

import re

from msgspec.structs import replace

from powerprof.report.html.spread import Strip, draw_run_spread, draw_strips
from tests.unit.report.sample_records import idle_run


def _places(drawing: str, look: str) -> list[float]:
    return [float(x) for x in re.findall(rf'class="one {look}" (?:cx|x)="([\d.]+)%"', drawing)]


def test_each_window_has_a_mark_at_its_value() -> None:
    rows = [Strip("a", (1.0, 2.0, 3.0), "bar-a", 2.0, 1.5, 2.5), Strip("b", (4.0,) * 3, "bar-b", 4.0)]
    drawing = draw_strips(rows, "ms", "latency")
    # From 0 at 2 % of the width to 4 at 97 %.
    assert _places(drawing, "bar-a") == [25.75, 49.5, 73.25]
    assert _places(drawing, "bar-b") == [97.0, 97.0, 97.0]
    # Equal values stand beside each other, and each says what it is.
    assert len(set(re.findall(r'class="one bar-b" x="97.00%" y="([\d.]+)"', drawing))) == 3
    assert "<title>a, window 2: 2.00 ms</title>" in drawing
    assert 'aria-label="latency: a 3 windows from 1.00 to 3.00 ms; b 3 windows from 4.00 to 4.00 ms"' in drawing


def test_axis_begins_at_0_unless_marks_would_overlap() -> None:
    near = draw_strips([Strip("a", (99.0, 100.0), "bar-a", 99.5)], "%", "C0")
    assert ">0<" not in near and ">99<" in near and ">100 %<" in near
    assert ">0<" in draw_strips([Strip("a", (30.0, 100.0), "bar-a", 65.0)], "%", "C0")


def test_sample_of_many_windows_has_their_spread() -> None:
    values = tuple(float(number % 500) for number in range(1000))
    places = _places(draw_strips([Strip("a", values, "bar-a", 249.5)], "1/s", "wake-ups"), "bar-a")
    assert 100 <= len(places) <= 120
    # From 0 to 600.
    assert abs(sum(places) / len(places) - (2 + 95 * 249.5 / 600)) < 1.0


def test_single_window_has_no_chart() -> None:
    one = replace(idle_run(), phases=[replace(phase, windows=phase.windows[:1]) for phase in idle_run().phases])
    assert draw_run_spread(one) == ""
