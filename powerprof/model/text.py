# SPDX-License-Identifier: Apache-2.0
"""Plain text for people: numbers with the right digits, and aligned columns."""

from __future__ import annotations

import codecs
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from powerprof.system.next_steps import find_commands

if TYPE_CHECKING:
    from powerprof.model.records import Estimate


# Prints one line of progress.
Say = Callable[[str], None]

UNKNOWN = "?"
DEFAULT_WIDTH = 80
_ABSURD = 1e15  # no figure of a real run has more digits; a damaged record must not fill the screen


# The characters of reports for a stream without Unicode.
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
    """Return a figure with a real minus sign; ? if it is unknown."""
    if value is None:
        return UNKNOWN
    if abs(value) >= _ABSURD:
        return f"{value:.3g}{unit}"
    text = f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0.0:
        text = text.lstrip("-")
    return text.replace("-", "−") + unit


def count(value: int | None) -> str:
    """Return a whole number with thousands separators; ? if it is unknown or absurd."""
    return UNKNOWN if value is None or abs(value) >= _ABSURD else f"{value:,}".replace("-", "−")


def plural(number: int, noun: str) -> str:
    """Return `1 stack`, `2,000 stacks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def signed(value: float | None, digits: int = 2) -> str:
    """Return `number` with + for values that are not negative."""
    text = number(value, digits)
    return text if value is None or text.startswith("−") else f"+{text}"


def half_width(estimate: Estimate) -> float | None:
    """Return half of the 95 % interval. None without one."""
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.high - estimate.low) / 2


def plus_minus(estimate: Estimate, digits: int = 2, *, sign: bool = False) -> str:
    """Return `6.8 ± 0.5`; without an interval the mean alone."""
    mean = signed(estimate.mean, digits) if sign else number(estimate.mean, digits)
    half = half_width(estimate)
    return mean if half is None else f"{mean} ± {number(half, digits)}"


def period(milliseconds: float | None) -> str:
    """Return `every 400 ms`, `every 1 s`; empty for None."""
    if milliseconds is None:
        return ""
    if milliseconds < 1:
        return f"every {milliseconds * 1e3:.3g} µs"
    if milliseconds < 1000:
        return f"every {milliseconds:.3g} ms"
    return f"every {milliseconds / 1e3:.3g} s"


def approximate_time(seconds: float) -> str:
    """Return a rounded duration: `about 40 s`, `about 3 min`, `about 2.5 h`."""
    if seconds < 90:
        return f"about {max(10, math.ceil(seconds / 10) * 10)} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {number(seconds / 3600, 1)} h"


def count_down(say: Say, seconds: float) -> Say:
    """Return a `say` that adds the remaining time of a plan of `seconds` from now. Later it prints the text alone."""
    ends_s = time.monotonic() + seconds

    def line(text: str) -> None:
        left_s = ends_s - time.monotonic()
        say(f"{text} ({approximate_time(left_s)} left)" if left_s > 0 else text)

    return line


def shorten(text: str, width: int) -> str:
    """Return at most `width` characters, with … for a left-out end."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def columns(rows: Sequence[Sequence[str]], *, left: int = 1, gap: int = 2) -> list[str]:
    """Return rows as aligned lines without trailing blanks.

    The first `left` columns are flush left, others flush right.
    """
    widths = [
        max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(max(map(len, rows), default=0))
    ]
    lines = []
    for row in rows:
        cells = [cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


# Units of time that are typed, in ns.
_TIME_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_TIME_UNITS |= {"m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_TIME = re.compile(
    r"([+-]?(?:[0-9]{1,15}(?:\.[0-9]{0,12})?|\.[0-9]{1,12}))(?:e([+-]?[0-9]{1,2}))? ?([a-zµ]*)", re.ASCII
)


def parse_time(text: str, unit: str = "") -> float:
    """Return `5s`, `500ms` or `2m` in seconds. A number without a unit has `unit`; "" requires one.

    Raises ValueError with the accepted units.
    """
    match = _TIME.fullmatch(text.strip().lower())
    typed_unit = (match[3] or unit) if match else ""
    if match is None or typed_unit not in _TIME_UNITS:
        without = f"; a number without a unit is in {unit}" if unit else ""
        raise ValueError(f"not a time: a number with us, ms, s, m, h or d, such as 5s or 500ms{without}")
    return float(match[1]) * 10.0 ** int(match[2] or 0) * _TIME_UNITS[typed_unit] / 1e9


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return a sentence in lines of at most `width` characters. A wrapped command can still be pasted."""
    import textwrap

    commands = find_commands(text)
    room = width - 2 if commands else width
    lines = textwrap.wrap(text, room, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    at = 0
    for number, line in enumerate(lines[:-1] if commands else []):
        at = text.find(line.strip(), at) + len(line.strip())
        if any(start < at < end for start, end in commands):
            lines[number] += " \\"
    return lines or [""]


def label_with_source(label: str, source: str | None) -> str:
    """Return a function with the name and line of its source file, if known: `main (main.c:12)`."""
    return label if source is None else f"{label} ({source.rpartition('/')[2]})"


def without_parameters(function: str) -> str:
    """Return a C++ function without the types of its parameters: `do_command(THD*, bool)` is `do_command`.

    Keep parts of the name, `operator()` and `(anonymous namespace)`, and text after a blank, as in file names.
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
