# SPDX-License-Identifier: Apache-2.0
"""What every live screen is made of: what the person has chosen, rows that scroll, bars, and a last line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from powerprof import text

_BARS = "▁▂▃▄▅▆▇█"
# Screens of fewer lines have none to spare for the keys.
_TWO_LINES = 16
T = TypeVar("T")


@dataclass(frozen=True)
class ScreenView:
    """What the person at the screen has chosen. `chosen` is the row that is marked; `message` is said once."""

    sort: str = "rate"
    wanted: str = ""
    typing: bool = False
    paused: bool = False
    opened: bool = False
    chosen: int = 0
    message: str = ""


def spark(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """The last `width` values as bars from 0 to the greatest of them; a blank where one is unknown."""
    shown = list(values)[-width:]
    greatest = top or max((value for value in shown if value is not None), default=0.0)
    bars = [
        " "
        if value is None
        else _BARS[min(len(_BARS) - 1, int(len(_BARS) * value / greatest))]
        if greatest > 0
        else _BARS[0]
        for value in shown
    ]
    return "".join(bars).rjust(width)


def scrolled(
    lines: Sequence[T],
    view: ScreenView,
    room: int,
    *,
    row: Callable[[T], str],
    details: Callable[[T], list[str]],
    rest: Callable[[Sequence[T]], str],
) -> list[str]:
    """At most `room` rows with the chosen one among them, marked and with its details where it is open.

    `rest` gives the figure of the rows that are not shown, above and below: with the rows it is the sum of all.
    """
    if not lines:
        return []
    chosen = min(view.chosen, len(lines) - 1)
    opened = details(lines[chosen]) if view.opened else []
    rows, first = len(lines), 0
    if len(lines) + len(opened) > room:
        # The chosen row is shown whatever there is no room for; the last line is for the figure of the rest.
        place = max(1, room - 1)
        opened = opened[: place - 1]
        rows = place - len(opened)
        first = min(max(0, chosen + 1 - rows), max(0, len(lines) - rows))
    shown: list[str] = []
    for number, line in enumerate(lines[first : first + rows], first):
        shown.append((">" if number == chosen else " ") + row(line)[1:])
        if number == chosen:
            shown += opened
    left = [*lines[:first], *lines[first + rows :]]
    if left:
        shown.append(
            f"{rest(left)}  {len(left)} more row{'' if len(left) == 1 else 's'} (/ filter, or a higher window)"
        )
    return shown[:room]


def filled(top: list[str], foot: list[str], width: int, height: int) -> list[str]:
    """`height` lines: the top, blanks, and the foot, which is there whatever fits."""
    blank = [""] * max(0, height - len(top) - len(foot))
    return [text.cut(line, width) for line in [*top[: max(0, height - len(foot))], *blank, *foot]][:height]


def last_lines(view: ScreenView, keys: str, cost: str, width: int, height: int) -> list[str]:
    """What is typed, or the keys and what powerprof itself costs: on two lines where one has no room for both."""
    if view.typing:
        return [f"/{view.wanted}_"]
    said = view.message or keys
    if len(said) + len(cost) + 2 <= width:
        return [said + cost.rjust(width - len(said))]
    return [cost, said] if cost and height >= _TWO_LINES else [cost or said]
