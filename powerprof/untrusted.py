# SPDX-License-Identifier: Apache-2.0
"""Words and numbers that others chose: names of processes, files and servers, figures in their files.

A terminal obeys control characters, a spreadsheet runs formulas, `int` and `str.isdigit` take more than 0-9 and refuse
long numbers with an exception of their own. What comes from outside passes through here once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from powerprof.errors import DataError, PowerprofError

P = ParamSpec("P")
R = TypeVar("R")

# Decoding takes at most 125 bytes for a value of JSON (a comma or a bracket each), and up to four for a character.
_VALUE_BYTES = 125
_MOST_DECODED_BYTES = 200 << 20
# A statement's text has at most 136 KiB.
_MOST_STRING_BYTES = 256 << 10
# 2^64 has twenty digits: no counter of a kernel or server has more.
_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
_SHOWN = 80
# What a spreadsheet takes for the start of a formula (OWASP, CSV Injection), also at full width.
_STARTS = "=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20"
# `;` and tab separate cells where a file is opened with other settings: what follows them may be a cell as well.
_FORMULA = re.compile(f"(^|[;\t\r\n])([ \xa0]*)(?=[{_STARTS}])")


def printable(text: str, instead: str = "?") -> str:
    """The text in one line that no terminal obeys: control, format and unassigned characters become `instead`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\xa0" else instead for char in text)


def printable_lines(text: str) -> str:
    """As `printable`, line by line: line ends and tabs stay."""
    return "\n".join("\t".join(printable(cell) for cell in line.split("\t")) for line in text.split("\n"))


def disarmed(text: str) -> str:
    """The text as a cell of a CSV file: one that a spreadsheet would run as a formula gets an apostrophe before it.

    A NUL ends the file for some readers and is replaced.
    """
    return _FORMULA.sub(r"\1\2'", text.replace("\0", "\N{REPLACEMENT CHARACTER}"))


def whole(text: object) -> int | None:
    """A whole number of at most 64 bits in the digits 0-9, or an int; None for anything else."""
    if isinstance(text, bool):
        return None
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    if isinstance(text, str):
        if not _DIGITS.fullmatch(text):
            return None
        text = int(text)
    return text if isinstance(text, int) and 0 <= text < 1 << 64 else None


def check_json(data: bytes, path: object) -> None:
    """Raise DataError if the values and strings of a JSON text could take too much memory, before any is decoded."""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    # One character above U+FFFF, as it is or escaped, makes a string four bytes wide.
    width = 4 if max(data, default=0) >= 0xF0 or b"\\u" in data else 1 if data.isascii() else 2
    if _VALUE_BYTES * values + (1 + width) * len(data) > _MOST_DECODED_BYTES:
        raise DataError(path, f"too large: {values:,} values in {len(data) >> 20:,} MiB")
    # Quotes then only begin and end strings. A string that is too long contains one of the places looked at.
    plain = data.replace(b"\\\\", b"  ").replace(b'\\"', b"  ") if b"\\" in data else data
    quotes = counted = 0
    for at in range(_MOST_STRING_BYTES, len(plain), _MOST_STRING_BYTES):
        quotes, counted = quotes + plain.count(b'"', counted, at), at
        end = plain.find(b'"', at, at + _MOST_STRING_BYTES)
        if quotes % 2 and (end < 0 or end - plain.rfind(b'"', 0, at) > _MOST_STRING_BYTES):
            raise DataError(path, f"too large: a string of more than {_MOST_STRING_BYTES >> 10} KiB")


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Whatever Python says of bytes that make no sense, as the one error: DataError.

    Readers refuse what they know to be wrong themselves, with its line; this is for what they did not think of.
    """
    try:
        yield
    except PowerprofError:
        raise
    except RecursionError:
        raise DataError(path, "nested too deeply") from None
    except MemoryError:
        raise DataError(path, "too large for this host's memory") from None
    except OSError as error:
        # A name that was read may be too long, go round in links, or lie on a disk that is broken.
        raise DataError(path, f"cannot be read ({(error.strerror or str(error)).lower()})") from None
    except Exception as error:
        if not isinstance(error, _senseless()):
            raise
        reason = printable(str(error))[:_SHOWN] or type(error).__name__
        raise DataError(path, f"damaged ({reason})") from None


def _senseless() -> tuple[type[Exception], ...]:
    """What bytes without sense raise. A TypeError or AttributeError is a mistake of ours and stays one."""
    import csv
    import lzma
    import struct
    import zlib

    import msgspec

    outside = (csv.Error, lzma.LZMAError, struct.error, zlib.error, msgspec.MsgspecError)
    return (ValueError, ArithmeticError, LookupError, EOFError, *outside)


def loader(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function that reads what others wrote: all that it raises of it is DataError.

    The error names the argument `path`, else the first one, by its `path` where it has one (an open ELF file).
    """
    names = list(signature(function).parameters)
    name = "path" if "path" in names else names[0]
    place = names.index(name)

    @wraps(function)
    def read(*arguments: P.args, **named: P.kwargs) -> R:
        path = arguments[place] if place < len(arguments) else named.get(name)
        with reading(getattr(path, "path", path)):
            return function(*arguments, **named)

    return read
