# SPDX-License-Identifier: Apache-2.0
"""Plain text for people: numbers with the right digits, and aligned columns."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterable, Sequence

from powerprof.system.next_steps import find_commands

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


def plural(total: int, noun: str) -> str:
    """Return `1 stack`, `2,000 stacks`."""
    return f"{total:,} {noun}{'' if total == 1 else 's'}"


def signed(value: float | None, digits: int = 2) -> str:
    """Return `number` with + for values that are not negative."""
    text = number(value, digits)
    return text if value is None or text.startswith("−") else f"+{text}"


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


def fit_columns(rows: Sequence[Sequence[str]], width: int, *, left: int = 1, gap: int = 2) -> list[str]:
    """Return rows as aligned lines of at most `width` characters, with all figures.

    Narrow terminals get smaller gaps, then several blocks of columns, each with the first column, whose names may be
    shortened.
    """
    for space in range(gap, 0, -1):
        lines = columns(rows, left=left, gap=space)
        if max(map(len, lines), default=0) <= width:
            return lines
    widths = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(max(map(len, rows)))]
    named = min(widths[0], max(8, width - max(widths[1:], default=0) - 1))
    blocks: list[list[int]] = []
    room = 0
    for at in range(1, len(widths)):
        if not blocks or room < widths[at] + 1:
            blocks.append([])
            room = width - named
        blocks[-1].append(at)
        room -= widths[at] + 1
    lines = []
    for block in blocks:
        cells = [[shorten(row[0], named), *(row[at] if at < len(row) else "" for at in block)] for row in rows]
        cells = [cells[0], *(row for row in cells[1:] if any(row[1:]))]
        lines += [*([""] if lines else []), *columns(cells, gap=1)]
    return lines


# A name keeps at least this many characters of the line with its figures, else it is below them.
LEAST_NAME = 24
_NAME_INDENT = 4


def name_rows(
    rows: Sequence[Sequence[str]], width: int, *, left: Sequence[int] = (), whole: bool = False
) -> tuple[list[list[str]], int]:
    """Return the lines of each row of figures with a name as last cell, and the indent of further lines below a name.

    The first row has the headings. A name is shortened at the end of its line, or wrapped if it is `whole`. On a
    narrow terminal it is below its figures, whole; if the figures need more than a line, each is next to its heading.
    Empty columns are left out.

    Args:
        rows: The rows of cells.
        width: The number of columns of the terminal.
        left: The columns that are flush left.
        whole: Whether names have figures and are never shortened.
    """
    last = len(rows[0]) - 1
    used = [at for at in range(last) if any(row[at] for row in rows[1:])]
    sizes = {at: max(len(row[at]) for row in rows) for at in used}
    for space in (2, 1):
        heads = [
            (" " * space).join((row[at].ljust if at in left else row[at].rjust)(sizes[at]) for at in used)
            for row in rows
        ]
        indent = len(heads[0]) + 2 if used else 0
        if width - indent >= min(LEAST_NAME, max(len(row[last]) for row in rows)):
            cells = [wrap(row[last], width - indent) if whole else [shorten(row[last], width - indent)] for row in rows]
            return [
                [f"{head}  {first}".rstrip() if used else first, *(" " * indent + line for line in more)]
                for head, (first, *more) in zip(heads, cells, strict=True)
            ], indent
    below = " " * _NAME_INDENT
    if len(heads[0]) <= width:
        return [
            [head.rstrip(), *wrap(row[last], width, below)] for head, row in zip(heads, rows, strict=True)
        ], _NAME_INDENT
    paired = [
        [
            *wrap(row[last], width),
            *wrap(" · ".join(f"{rows[0][at]} {row[at]}".strip() for at in used if row[at]), width, below),
        ]
        for row in rows[1:]
    ]
    return [[], *paired], _NAME_INDENT


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


# Units of time that are typed, in ns.
_TIME_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_TIME_UNITS |= {"m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_SPELLED_UNITS = {"sec": "s", "second": "s", "minute": "m", "hour": "h", "day": "d", "msec": "ms", "usec": "us"}
_TIME_UNITS |= {f"{word}{end}": _TIME_UNITS[unit] for word, unit in _SPELLED_UNITS.items() for end in ("", "s")}
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


_BLANKS = str.maketrans("\t\n\x0b\x0c\r", "     ")
# A mark at which a line may end. It is a blank for textwrap, and it is in no text (`printable`).
_MAY_BREAK = "\x0b"
# A blank at which no line may end. It is no blank for textwrap, and it is in no text.
_MUST_NOT_BREAK = "\x01"
_WORD = re.compile(r"\S+")
_AFTER_PUNCTUATION = re.compile(r"(?<=[:/,<>.=&|()\-+])(?=[^:/,<>.=&|()\-+])")


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return a sentence in lines of at most `width` characters.

    A command has one line. One that is longer than a line has its own lines, which can be pasted together. A word
    longer than a line is broken after a punctuation mark if it has one, except in a command: the terminal wraps it.
    The indent leaves LEAST_NAME characters of a line, or half of a narrow one.
    """
    lines: list[str] = []
    indent = indent[: max(width // 2, width - LEAST_NAME)]
    text, at = text.translate(_BLANKS), 0
    for start, end in _with_punctuation(text):
        if end - start <= width - len(indent):
            continue
        *broken, last = _wrap_prose(text[start:end], width - 2, indent, is_command=True)
        lines += [*_wrap_prose(text[at:start], width, indent), *(f"{line} \\" for line in broken), last]
        at = end
    return [*lines, *_wrap_prose(text[at:], width, indent)] or [""]


def _with_punctuation(text: str) -> list[tuple[int, int]]:
    """Return the places of commands, each with the punctuation that follows it."""
    return [(start, end + len(text[end:].split(" ", maxsplit=1)[0])) for start, end in find_commands(text)]


def _wrap_prose(text: str, width: int, indent: str, *, is_command: bool = False) -> list[str]:
    """Return the lines of words and of commands that each fit in a line; or those of one long command."""
    import textwrap

    commands = [(0, len(text))] if is_command else _with_punctuation(text)
    most = max(1, width - len(indent))

    def breakable(word: re.Match[str]) -> str:
        if len(word[0]) <= most or any(start <= word.start() < end for start, end in commands):
            return word[0]
        parts = [part[at : at + most] for part in _AFTER_PUNCTUATION.split(word[0]) for at in range(0, len(part), most)]
        return _MAY_BREAK.join(parts)

    for start, end in [] if is_command else commands:
        text = f"{text[:start]}{text[start:end].replace(' ', _MUST_NOT_BREAK)}{text[end:]}"
    lines = textwrap.wrap(
        _WORD.sub(breakable, text),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
        replace_whitespace=False,
    )
    return [line.replace(_MAY_BREAK, "").replace(_MUST_NOT_BREAK, " ") for line in lines]


def fit_lines(lines: Iterable[str], width: int) -> list[str]:
    """Return lines of at most `width` characters: longer ones are wrapped with their own indent."""
    fitted: list[str] = []
    for line in lines:
        blanks = len(line) - len(line.lstrip(" "))
        fitted += [line] if len(line) <= width else wrap(line.lstrip(), width, " " * min(blanks, width // 2))
    return fitted


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
