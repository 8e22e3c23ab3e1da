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
    """What the person at the screen has chosen. `chosen` is the row that is marked; `message` is shown until the next
    key; `help`: the keys and columns are explained instead of the rows."""

    sort: str = "rate"
    wanted: str = ""
    typing: bool = False
    paused: bool = False
    opened: bool = False
    chosen: int = 0
    message: str = ""
    help: bool = False


def spark(values: Sequence[float | None], width: int) -> str:
    """The last `width` values as bars from 0 to the greatest of them; a blank where one is unknown."""
    shown = list(values)[-width:]
    greatest = max((value for value in shown if value is not None), default=0.0)
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
            f"{rest(left)}  {len(left)} more row{'' if len(left) == 1 else 's'} (/ filter, or a taller window)"
        )
    return shown[:room]


def order_line(view: ScreenView, shown: int, all_rows: int, orders: str) -> str:
    """By what the rows are sorted, and which of them a filter shows; `orders` are all that there are."""
    sorting = f"sorted by {view.sort} (s: {orders})"
    if not view.wanted or view.typing:
        return sorting
    return f"filter “{view.wanted}”: {shown:,} of {all_rows:,} rows (Esc: all)  {sorting}"


def help_lines(columns: Sequence[tuple[str, str]], opens: str, width: int) -> list[str]:
    """What the keys do and what each column means; `opens` is what Enter shows."""
    keys = (
        ("s", "sort by the next column"),
        ("/", "filter: type part of a name, Enter keeps it, Esc shows all rows again"),
        ("↑ ↓, k j", "choose a row"),
        ("Enter", opens),
        ("space", "pause; measuring continues"),
        ("w", "save the current interval as a run, when it ends"),
        ("q, Ctrl-C", "quit"),
    )
    named = max(len(name) for name, _ in (*keys, *columns))
    lines = ["Keys", *(_explained(keys, named, width)), "", "Columns", *(_explained(columns, named, width))]
    return [*lines, "", "Any key: back"]


def _explained(pairs: Sequence[tuple[str, str]], named: int, width: int) -> list[str]:
    return [
        f"  {name if at == 0 else '':<{named}}  {line}"
        for name, meaning in pairs
        for at, line in enumerate(text.wrap(meaning, max(20, width - named - 4)))
    ]


def filled(top: list[str], foot: list[str], width: int, height: int) -> list[str]:
    """`height` lines: the top, blanks, and the foot, which is there whatever fits."""
    blank = [""] * max(0, height - len(top) - len(foot))
    return [text.cut(line, width) for line in [*top[: max(0, height - len(foot))], *blank, *foot]][:height]


def last_lines(view: ScreenView, keys: str, cost: str, width: int, height: int) -> list[str]:
    """What is typed, or the keys and what powerprof itself costs: on two lines where one has no room for both."""
    if view.typing:
        return [f"/{view.wanted}_"]
    shown = view.message or keys
    if len(shown) + len(cost) + 2 <= width:
        return [shown + cost.rjust(width - len(shown))]
    return [cost, shown] if cost and height >= _TWO_LINES else [cost or shown]
