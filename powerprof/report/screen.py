# SPDX-License-Identifier: Apache-2.0
"""Parts of all live screens: the choices of the user, scrolling rows, bars and the last line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from powerprof.model import text

_BARS = "▁▂▃▄▅▆▇█"
# Smaller screens have no second line for the keys.
_TWO_LINES = 16
T = TypeVar("T")


class ScreenView(msgspec.Struct, frozen=True):
    """The choices of the user at a screen.

    Attributes:
        sort: The order of the rows.
        wanted: The filter.
        typing: Whether the filter is being typed.
        paused: Whether the screen is frozen.
        opened: Whether the details of the chosen row are shown.
        chosen: The number of the marked row.
        message: A message until the next key.
        help: Whether the keys and columns are explained instead of the rows.
        all: Whether other processes than the target have rows.
    """

    sort: str = "rate"
    wanted: str = ""
    typing: bool = False
    paused: bool = False
    opened: bool = False
    chosen: int = 0
    message: str = ""
    help: bool = False
    all: bool = False


def draw_bars(values: Sequence[float | None], width: int) -> str:
    """Return the last `width` values as bars from 0 to their maximum; a blank for an unknown value."""
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


def scroll_rows(
    lines: Sequence[T],
    view: ScreenView,
    room: int,
    *,
    row: Callable[[T], str],
    details: Callable[[T], list[str]],
    rest: Callable[[Sequence[T]], str],
) -> list[str]:
    """Return at most `room` lines with the chosen row among them, marked, and with its details if it is open.

    `rest` returns the figure of the hidden rows above and below: with the shown rows it is the sum of all.
    """
    if not lines:
        return []
    chosen = min(view.chosen, len(lines) - 1)
    opened = details(lines[chosen]) if view.opened else []
    rows, first = len(lines), 0
    if len(lines) + len(opened) > room:
        # The chosen row is always shown; the last line is for the figure of the rest.
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


def order_line(view: ScreenView, shown: int, all_rows: int, orders: str, left_out: str = "") -> str:
    """Return the order of the rows and the effect of the filter.

    `orders` names all orders, and `left_out` the columns for which the screen is too narrow.
    """
    sorting = f"by {view.sort} · wider: {left_out}" if left_out else f"sorted by {view.sort} (s: {orders})"
    if not view.wanted or view.typing:
        return sorting
    return f"filter “{view.wanted}”: {shown:,} of {all_rows:,} rows (Esc: all)  {sorting}"


def help_lines(
    columns: Sequence[tuple[str, str]], opens: str, width: int, more: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """Return the keys and the meaning of each column; `opens` is the effect of Enter, `more` are other keys."""
    keys = (
        *more,
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


def fill_screen(top: list[str], foot: list[str], width: int, height: int) -> list[str]:
    """Return `height` lines: the top, blanks, and the foot, which is always shown."""
    blank = [""] * max(0, height - len(top) - len(foot))
    return [text.shorten(line, width) for line in [*top[: max(0, height - len(foot))], *blank, *foot]][:height]


def last_lines(view: ScreenView, keys: str, cost: str, width: int, height: int) -> list[str]:
    """Return the typed filter, or the keys and powerprof's own cost, on two lines if one is too short."""
    if view.typing:
        return [f"/{view.wanted}_"]
    shown = view.message or _fitting_keys(keys, width)
    if len(shown) + len(cost) + 2 <= width:
        return [shown + cost.rjust(width - len(shown))]
    return [*text.fit_lines([cost], width), shown] if cost and height >= _TWO_LINES else [cost or shown]


def _fitting_keys(keys: str, width: int) -> str:
    """Return as many of the first keys as fit."""
    shown = keys
    while len(shown) > width and "  " in shown:
        shown = shown.rpartition("  ")[0]
    return shown


def two_ends(left: str, right: str, width: int) -> list[str]:
    """Return a line with texts at both ends; a narrow one has only the last parts of the left text."""
    while len(left) + len(right) >= width and " · " in left:
        left = left.partition(" · ")[2]
    return [left + right.rjust(max(len(right) + 1, width - len(left)))]


def format_rate(hertz: float | None) -> str:
    """Return a rate for a narrow column: one decimal below 10/s, none above; ? if it is unknown."""
    return text.number(hertz, 1 if hertz is None or hertz < 10 else 0)
