# SPDX-License-Identifier: Apache-2.0
"""The windows of a record in the order of time, as bars as high as their C0."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from powerprof import text
from powerprof.records import Window
from powerprof.report.html.svg import Bar


def c0_bars(named: Iterable[tuple[Window, str, str, str]]) -> list[Bar]:
    """A bar for each (window, look, title, label) that says when it began."""
    times = [(start, *bar) for bar in named if (start := _seconds(bar[0])) is not None]
    first = min((start for start, *_ in times), default=0.0)
    bars: list[Bar] = []
    for start, window, look, title, label in sorted(times, key=lambda bar: bar[0]):
        # Two that took turns began together and were measured half of the time each: side by side that is as long.
        begin = max(start - first, bars[-1].end_s) if bars else start - first
        tooltip = f"{title}: C0 {text.number(window.c0_percent, 2, ' %')}"
        bars.append(Bar(begin, begin + (window.window_s or 0.0), window.c0_percent, look, tooltip, label))
    return bars


def _seconds(window: Window) -> float | None:
    try:
        return datetime.fromisoformat(window.started_at).timestamp()
    except ValueError:
        return None
