# SPDX-License-Identifier: Apache-2.0
"""Errors of data from outside: one line for damaged bytes, and a refusal of data that would fill the memory.

Readers of foreign files and formats use `loader` or `reading`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from powerprof.system.errors import DataError, PowerprofError
from powerprof.system.foreign_text import printable

P = ParamSpec("P")
R = TypeVar("R")

# Decoding needs at most 125 bytes for each JSON value (a comma or a bracket each), and up to four for a character.
_VALUE_BYTES = 125
_MAX_DECODED_BYTES = 200 << 20
# Lines and cells of a text: five days of one sample per second.
_MAX_LINES, _MAX_CELLS = 500_000, 6_000_000
# The line ends of str.splitlines() besides \n and \r, in UTF-8.
_OTHER_ENDS = (b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9")
# A statement's text has at most 136 KiB.
_MAX_STRING_BYTES = 256 << 10
_SHOWN = 80


def check_json(data: bytes, path: object) -> None:
    """Raise DataError if the values and strings of a JSON text could take too much memory, before any is decoded."""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    # A single character above U+FFFF, plain or escaped, makes a string four bytes wide.
    width = 4 if max(data, default=0) >= 0xF0 or b"\\u" in data else 1 if data.isascii() else 2
    if _VALUE_BYTES * values + (1 + width) * len(data) > _MAX_DECODED_BYTES:
        raise DataError(path, f"too large: {values:,} values in {len(data) >> 20:,} MiB")
    # The remaining quotes only begin and end strings. A string that is too long contains a tested position.
    plain = data.replace(b"\\\\", b"  ").replace(b'\\"', b"  ") if b"\\" in data else data
    quotes = counted = 0
    for at in range(_MAX_STRING_BYTES, len(plain), _MAX_STRING_BYTES):
        quotes, counted = quotes + plain.count(b'"', counted, at), at
        end = plain.find(b'"', at, at + _MAX_STRING_BYTES)
        if quotes % 2 and (end < 0 or end - plain.rfind(b'"', 0, at) > _MAX_STRING_BYTES):
            raise DataError(path, f"too large: a string of more than {_MAX_STRING_BYTES >> 10} KiB")


def check_table(data: bytes, path: object) -> None:
    """Raise DataError for more lines or cells than a reader of tables may keep, before one is read.

    A line of two figures takes some 500 bytes and 20 µs, so that 29 KB of gzip took 41 s and 2.1 GB.
    """
    lines = data.count(b"\n") + data.count(b"\r") + sum(data.count(end) for end in _OTHER_ENDS)
    cells = sum(data.count(mark) for mark in (b",", b";", b"\t"))
    if lines > _MAX_LINES or cells > _MAX_CELLS:
        what = f"{lines:,} lines, at most {_MAX_LINES:,}" if lines > _MAX_LINES else f"{cells:,} cells"
        raise DataError(path, f"too large: {what}", hint="cut it into several files, or keep fewer rows")


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Convert every exception about invalid bytes to DataError.

    Readers report known errors themselves, with the line. This covers the unexpected errors.
    """
    try:
        yield
    except (PowerprofError, BrokenPipeError):  # a closed pipe is the output's, never a file's
        raise
    except RecursionError:
        raise DataError(path, "nested too deeply") from None
    except MemoryError:
        raise DataError(
            path, "not enough memory to read it", hint="end other programs, or read it on a larger host"
        ) from None
    except OSError as error:
        # A name in the data may be too long, contain a link loop, or be on a broken disk.
        raise DataError(path, f"cannot be read ({(error.strerror or str(error)).lower()})") from None
    except Exception as error:
        if not isinstance(error, _list_data_errors()):
            raise
        reason = printable(str(error))[:_SHOWN] or type(error).__name__
        raise DataError(path, f"damaged ({reason})") from None


def _list_data_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that invalid bytes cause. TypeError and AttributeError are our own bugs and stay."""
    import csv
    import lzma
    import struct
    import zlib

    import msgspec

    outside = (csv.Error, lzma.LZMAError, struct.error, zlib.error, msgspec.MsgspecError)
    return (ValueError, ArithmeticError, LookupError, EOFError, *outside)


def loader(place: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of functions that read foreign data: all errors about the data are DataError.

    `place` is the position of the argument that the error names: a path, or an object with a `path` (an open ELF file).
    Callers pass it by position.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def read(*arguments: P.args, **named: P.kwargs) -> R:
            path = arguments[place]
            with reading(getattr(path, "path", path)):
                return function(*arguments, **named)

        return read

    return decorate


def parse_toml(text: str, path: object) -> dict[str, Any]:
    """Return the tables of a TOML document. Raise DataError in one line, with the line number and tomllib's reason."""
    with reading(path):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            reason = re.sub(r" \(at .*\)$", "", str(error))
            line = re.search(r"\(at line (\d+)", str(error))
            # tomllib reports no line for text that is missing at the end: it is the last line.
            number = int(line[1]) if line else max(text.count("\n") + (not text.endswith("\n")), 1)
            raise DataError(path, f"not TOML: {reason[:1].lower()}{reason[1:]}", number) from None
