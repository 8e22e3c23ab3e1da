# SPDX-License-Identifier: Apache-2.0
"""Text and numbers from outside: names of processes, files and servers, figures in their files.

A terminal runs control sequences, and a spreadsheet runs formulas. `int` and `str.isdigit` accept more than 0-9, and
`int` raises its own exception for long numbers. All such data passes through these functions once.
"""

from __future__ import annotations

import re

# 2^64 has twenty digits, and counters of kernels and servers have no more.
_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
# Characters that start a formula in a spreadsheet (OWASP, CSV Injection), also at full width.
_STARTS = "=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20"
# `;` and tab separate cells with other import settings, so a cell may start after them too.
_FORMULA = re.compile(f"(^|[;\t\r\n])([ \xa0]*)(?=[{_STARTS}])")


def printable(text: str, instead: str = "?") -> str:
    """Return the text in one line without control, format and unassigned characters, each replaced by `instead`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\xa0" else instead for char in text)


def printable_lines(text: str) -> str:
    """Return the text as `printable` does, but keep line ends and tabs."""
    return "\n".join("\t".join(printable(cell) for cell in line.split("\t")) for line in text.split("\n"))


def escape_formulas(text: str) -> str:
    """Return the text as a CSV cell, with an apostrophe before anything that a spreadsheet would run as a formula.

    NUL is replaced, because some readers end the file there.
    """
    return _FORMULA.sub(r"\1\2'", text.replace("\0", "\N{REPLACEMENT CHARACTER}"))


def whole(text: object) -> int | None:
    """Return a whole number of at most 64 bits, from digits 0-9 or an int; None for anything else."""
    if isinstance(text, bool):
        return None
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    if isinstance(text, str):
        if not _DIGITS.fullmatch(text):
            return None
        text = int(text)
    return text if isinstance(text, int) and 0 <= text < 1 << 64 else None
