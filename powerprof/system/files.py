# SPDX-License-Identifier: Apache-2.0
"""Readers of sysfs, procfs and files from other people."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import select
import stat
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from powerprof.system.errors import DataError, PowerprofError

_GZIP = b"\x1f\x8b"
# Runs and recordings pack to a tenth or a twentieth. A smaller ratio indicates a file made to fill memory.
_MAX_RATIO = 40
_LEAST_BYTES = 32 << 20
_PART_BYTES = 64 << 10
_MAX_MEMBERS = 1000
_REASONS = {errno.ENOENT: "no such file", errno.EACCES: "permission denied", errno.EPERM: "permission denied"}


def reason_of(error: OSError) -> str:
    """Return the reason of an OSError in plain words."""
    return _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()


def not_understood(path: object, reason: str) -> PowerprofError:
    """Return an error for a pseudo file in a format that the kernel does not write."""
    return PowerprofError(
        f"cannot read {path} ({reason})", "a kernel never writes that: is POWERPROF_SYSFS or POWERPROF_PROCFS set?"
    )


def read_text(path: Path) -> str:
    """Return the stripped text of a small pseudo file. Raise PowerprofError with file, reason and remedy."""
    try:
        # The text is read as bytes: a name in it may contain any byte that the kernel does not escape, such as \r. Text
        # mode would convert \r to a line end.
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError as error:
        remedy = "run as root" if error.errno in (errno.EACCES, errno.EPERM) else None
        raise PowerprofError(f"cannot read {path} ({reason_of(error)})", remedy) from error


def read_fields(path: Path) -> dict[str, str]:
    r"""Return the `Key: value` lines of a pseudo file such as /proc/PID/status; empty if it cannot be read.

    Only \n ends a line, because a process may have \r or U+2028 in its name. The first line of a key counts.
    """
    fields: dict[str, str] = {}
    for line in (try_text(path) or "").split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key, value.strip())
    return fields


def read_int(path: Path) -> int:
    """Return the number in a pseudo file. Raise PowerprofError for other text."""
    text = read_text(path)
    try:
        return int(text)
    except ValueError:
        raise not_understood(path, f"not a number: {text[:40]!r}") from None


def try_text(path: Path) -> str | None:
    """Return the text as `read_text` does; None if it cannot be read."""
    try:
        return read_text(path)
    except PowerprofError:
        return None


def try_int(path: Path) -> int | None:
    """Return the number as `read_int` does; None if it cannot be read or is not a number."""
    try:
        return read_int(path)
    except PowerprofError:
        return None


class NotRegular(OSError):
    """A folder, pipe, socket or device."""


def open_regular(path: Path | str) -> int:
    """Open a regular file for reading, although another account may replace it at any time. Never block.

    The file is checked before it is opened, so that pipes and devices are never opened. A lease of another process on
    the file would delay the open (fcntl(2)); it is an error instead. Raise OSError.
    """
    probe = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(probe).st_mode):
            raise NotRegular(errno.EINVAL, "not a regular file")
        return os.open(f"/proc/self/fd/{probe}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(probe)


def check_outside(path: Path) -> None:
    """Raise DataError unless the path is a readable regular file. Pipes and devices are not opened."""
    os.close(_open_outside(path))


def _open_outside(path: Path) -> int:
    try:
        return open_regular(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | ValueError) -> DataError:
    # A ValueError means that the name contains NUL.
    if not isinstance(error, OSError) or error.errno == errno.ENOENT:
        return DataError(path, "no such file", hint="name an existing file")
    if isinstance(error, NotRegular):
        return DataError(path, "not a regular file", hint="name a file, not a directory, pipe or device")
    if error.errno == errno.EAGAIN:
        return DataError(path, "another process holds a lease on it", hint="end that process, or copy the file")
    hint = "run as its owner, or as root" if error.errno in (errno.EACCES, errno.EPERM) else "name another file"
    return DataError(path, f"cannot be read ({reason_of(error)})", hint=hint)


def read_outside_text(path: Path, limit_bytes: int = 256 << 20, below: Path | None = None) -> str:
    """Return the text of a file from outside, read by `read_outside`. Raise DataError."""
    return _decode(read_outside(path, limit_bytes, below), path)


def read_outside_table(path: Path, limit_bytes: int = 256 << 20) -> str:
    """Return the text of a recording, which has a limited number of lines and cells. Raise DataError."""
    data = read_outside(path, limit_bytes)
    _check_table(data, path)
    return _decode(data, path)


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(path, f"not text (byte 0x{data[error.start]:02x})", line) from None


def read_outside(path: Path, limit_bytes: int = 256 << 20, below: Path | None = None) -> bytes:
    """Return the bytes of a file from outside, unpacked if it is a gzip file.

    Raise DataError for more than `limit_bytes`, or for more than `_MAX_RATIO` times the packed size. `below` is a
    folder without links in its path: the opened file must be in it.
    """
    try:
        with os.fdopen(_open_outside(path), "rb") as file:
            if below is not None and not Path(os.readlink(f"/proc/self/fd/{file.fileno()}")).is_relative_to(below):
                raise DataError(path, f"is a link that leaves {below}", hint="put the file itself there")
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if data.startswith(_GZIP) and len(data) <= limit_bytes:
        data = _unpack(data, path, limit_bytes)
    if len(data) > limit_bytes:
        raise DataError(path, f"larger than {limit_bytes >> 20} MiB")
    return data


def _unpack(data: bytes, path: Path, limit_bytes: int) -> bytes:
    import zlib

    limit = min(limit_bytes, _LEAST_BYTES + _MAX_RATIO * len(data))
    parts: list[bytes] = []
    size, members, worker = 0, 1, zlib.decompressobj(31)
    try:
        for at in range(0, len(data), _PART_BYTES):
            part = data[at : at + _PART_BYTES]
            while part:
                if worker.eof:  # Another member follows, or zeros that fill a block.
                    part = part.lstrip(b"\0")
                    if not part:
                        break
                    members, worker = members + 1, zlib.decompressobj(31)
                parts.append(worker.decompress(part, limit + 1 - size))
                size += len(parts[-1])
                if size > limit or members > _MAX_MEMBERS:
                    raise DataError(path, f"larger than {limit >> 20} MiB when it is unpacked, or in too many parts")
                part = worker.unused_data
    except zlib.error as error:
        raise DataError(path, f"damaged gzip file ({error})") from None
    if not worker.eof:
        raise DataError(path, "damaged gzip file (truncated)")
    return b"".join(parts)


def readable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Return the descriptors that can be read or have ended; empty if there is none within `timeout_s` seconds."""
    return _poll(descriptors, select.POLLIN, timeout_s)


def writable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Return the descriptors that can be written; empty if there is none within `timeout_s` seconds."""
    return _poll(descriptors, select.POLLOUT, timeout_s)


class WaitingFile(io.FileIO):
    """An open descriptor that waits while it cannot be written or read, even if it does not block (O_NONBLOCK).

    Another process can set O_NONBLOCK on a pipe or terminal that it shares with this one. Python's own files then lose
    output.
    """

    def write(self, data: Any, /) -> int:
        """Write some of the data and return the number of bytes, at least 1."""
        # The type stubs do not know that FileIO returns None if the descriptor is full.
        while (count := cast("int | None", super().write(data))) is None:
            writable([self.fileno()])
        return count

    def readinto(self, buffer: Any, /) -> int:
        """Fill some of the buffer and return the number of bytes; 0 at the end."""
        while (count := cast("int | None", super().readinto(buffer))) is None:
            readable([self.fileno()])
        return count


def _poll(descriptors: Sequence[int], event: int, timeout_s: float | None) -> list[int]:
    # select() refuses descriptors above 1,023. A process with a thousand connections has some.
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    milliseconds = None if timeout_s is None else math.ceil(1e3 * max(0.0, timeout_s))
    return [descriptor for descriptor, _ in poll.poll(milliseconds)]


# Text and numbers from outside: names of processes, files and servers, figures in their files.
#
# A terminal runs control sequences, and a spreadsheet runs formulas. `int` and `str.isdigit` accept more than 0-9, and
# `int` raises its own exception for long numbers. All such data passes through these functions once.

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
# 2^64 has twenty digits, and counters of kernels and servers have no more.
_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
_SHOWN = 80
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


def _check_table(data: bytes, path: object) -> None:
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
        if not isinstance(error, _data_errors()):
            raise
        reason = printable(str(error))[:_SHOWN] or type(error).__name__
        raise DataError(path, f"damaged ({reason})") from None


def _data_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that invalid bytes cause. TypeError and AttributeError are our own bugs and stay."""
    import csv
    import lzma
    import struct
    import zlib

    import msgspec

    outside = (csv.Error, lzma.LZMAError, struct.error, zlib.error, msgspec.MsgspecError)
    return (ValueError, ArithmeticError, LookupError, EOFError, *outside)


def loader(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that reads foreign data, so that all errors about the data are DataError.

    The error names the argument `path`, otherwise the first argument, or its attribute `path` (an open ELF file).
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


# TOML, with errors in one line that contain the line number.


def parse(text: str, path: object) -> dict[str, Any]:
    """Return the tables of a TOML document. Raise DataError with the line and tomllib's reason."""
    with reading(path):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            reason = re.sub(r" \(at .*\)$", "", str(error))
            line = re.search(r"\(at line (\d+)", str(error))
            # tomllib reports no line for text that is missing at the end: it is the last line.
            number = int(line[1]) if line else max(text.count("\n") + (not text.endswith("\n")), 1)
            raise DataError(path, f"not TOML: {reason[:1].lower()}{reason[1:]}", number) from None
