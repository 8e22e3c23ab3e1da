# SPDX-License-Identifier: Apache-2.0
"""Plain text for people: numbers with the right digits, columns that line up, nothing else."""

from __future__ import annotations

import codecs
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from powerprof.model.records import Estimate


# What is going on, a line at a time, to whoever waits.
Say = Callable[[str], None]

UNKNOWN = "?"
DEFAULT_WIDTH = 80
_ABSURD = 1e15  # no figure of a real run has more digits; a damaged record must not fill the screen


# What a stream that knows no Unicode gets for the characters that reports use.
STAND_IN = "powerprof.stand_in"
_ASCII = {
    "−": "-",
    "“": '"',
    "”": '"',
    "’": "'",
    "–": "-",
    "±": "+/-",
    "×": "x",
    "µ": "u",
    "·": "|",
    "…": "...",
    "←": "<-",
    "→": "->",
    "↔": "<->",
    "≈": "~",
    "≤": "<=",
    "≥": ">=",
    "²": "2",
    "Δ": "d",
    "\xa0": " ",
}


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(char, "?") for char in error.object[error.start : error.end]), error.end


codecs.register_error(STAND_IN, _stand_in)


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """A figure with a real minus sign; ? where it is unknown."""
    if value is None:
        return UNKNOWN
    if abs(value) >= _ABSURD:
        return f"{value:.3g}{unit}"
    text = f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0.0:
        text = text.lstrip("-")
    return text.replace("-", "−") + unit


def count(value: int | None) -> str:
    """A whole number with thousands apart; ? where it is unknown or absurd."""
    return UNKNOWN if value is None or abs(value) >= _ABSURD else f"{value:,}".replace("-", "−")


def plural(number: int, noun: str) -> str:
    """`1 stack`, `2,000 stacks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def signed(value: float | None, digits: int = 2) -> str:
    """As `number`, with + before what is not negative."""
    text = number(value, digits)
    return text if value is None or text.startswith("−") else f"+{text}"


def half_width(estimate: Estimate) -> float | None:
    """Half of the 95 % interval; None where there is none."""
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.high - estimate.low) / 2


def plus_minus(estimate: Estimate, digits: int = 2, *, sign: bool = False) -> str:
    """`6.8 ± 0.5`; without an interval the mean alone."""
    mean = signed(estimate.mean, digits) if sign else number(estimate.mean, digits)
    half = half_width(estimate)
    return mean if half is None else f"{mean} ± {number(half, digits)}"


def period(milliseconds: float | None) -> str:
    """`every 400 ms`, `every 1 s`; empty for None."""
    if milliseconds is None:
        return ""
    if milliseconds < 1:
        return f"every {milliseconds * 1e3:.3g} µs"
    if milliseconds < 1000:
        return f"every {milliseconds:.3g} ms"
    return f"every {milliseconds / 1e3:.3g} s"


def approximate_time(seconds: float) -> str:
    """How long something will take: `about 40 s`, `about 3 min`, `about 2.5 h`."""
    if seconds < 90:
        return f"about {max(10, math.ceil(seconds / 10) * 10)} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {number(seconds / 3600, 1)} h"


def count_down(say: Say, seconds: float) -> Say:
    """`say` with the time that is left of a plan of so many seconds from now; alone where it takes longer."""
    ends_s = time.monotonic() + seconds

    def line(text: str) -> None:
        left_s = ends_s - time.monotonic()
        say(f"{text} ({approximate_time(left_s)} left)" if left_s > 0 else text)

    return line


def shorten(text: str, width: int) -> str:
    """At most `width` characters, with … where something was left out."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def columns(rows: Sequence[Sequence[str]], *, left: int = 1, gap: int = 2) -> list[str]:
    """Rows as aligned lines: the first `left` columns flush left, the others flush right. No trailing blanks."""
    widths = [
        max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(max(map(len, rows), default=0))
    ]
    lines = []
    for row in rows:
        cells = [cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def join_words(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """A sentence in lines of at most `width`."""
    import textwrap

    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False) or [""]


def label_with_source(label: str, source: str | None) -> str:
    """A function with the name and line of its source file: `main (main.c:12)`; without them where they are unknown."""
    return label if source is None else f"{label} ({source.rpartition('/')[2]})"


def without_parameters(function: str) -> str:
    """A C++ function without the types of its parameters: `do_command(THD*, bool)` is `do_command`.

    Kept is what belongs to the name, `operator()` and `(anonymous namespace)`, and what follows a blank, as files do.
    """
    name = function.removesuffix(" const")
    if not name.endswith(")"):
        return function
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[at], 0)
        if depth == 0:
            before = name[:at]
            return function if not before or before[-1] in " :" or before.endswith("operator") else before
    return function
