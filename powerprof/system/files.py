# SPDX-License-Identifier: Apache-2.0
"""The one way to read sysfs, procfs and files from outside."""

from __future__ import annotations

import errno
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
from typing import Any, ParamSpec, TypeVar

from powerprof.system.errors import DataError, PowerprofError

_GZIP = b"\x1f\x8b"
# Runs and recordings pack to a tenth or a twentieth; a smaller share is the mark of a file that is made to fill memory.
_MOST_RATIO = 40
_LEAST_BYTES = 32 << 20
_PART_BYTES = 64 << 10
_MOST_MEMBERS = 1000
_REASONS = {errno.ENOENT: "no such file", errno.EACCES: "permission denied", errno.EPERM: "permission denied"}


def reason_of(error: OSError) -> str:
    """The plain words for an OSError."""
    return _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()


def not_understood(path: object, reason: str) -> PowerprofError:
    """A pseudo file that is not as the kernel writes it."""
    return PowerprofError(
        f"cannot read {path} ({reason})", "no kernel writes that: is POWERPROF_SYSFS or POWERPROF_PROCFS set?"
    )


def read_text(path: Path) -> str:
    """A small pseudo file, stripped. Raises PowerprofError with thing, reason and remedy."""
    try:
        # As bytes: a name in it may hold any byte but those that the kernel escapes, \r among them, and text mode
        # makes a line end of it.
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError as error:
        remedy = "run as root" if error.errno in (errno.EACCES, errno.EPERM) else None
        raise PowerprofError(f"cannot read {path} ({reason_of(error)})", remedy) from error


def read_fields(path: Path) -> dict[str, str]:
    """`Key: value` lines of a pseudo file such as /proc/PID/status; empty where it cannot be read.

    Lines end with \\n alone: a process may have \\r or U+2028 in its name. The first line of a key counts.
    """
    fields: dict[str, str] = {}
    for line in (try_text(path) or "").split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key, value.strip())
    return fields


def read_int(path: Path) -> int:
    """A number from a pseudo file. Raises PowerprofError where it is none."""
    text = read_text(path)
    try:
        return int(text)
    except ValueError:
        raise not_understood(path, f"not a number: {text[:40]!r}") from None


def try_text(path: Path) -> str | None:
    """As `read_text`; None where it cannot be read."""
    try:
        return read_text(path)
    except PowerprofError:
        return None


def try_int(path: Path) -> int | None:
    """As `read_int`; None where it cannot be read or is no number."""
    try:
        return read_int(path)
    except PowerprofError:
        return None


class NotRegular(OSError):
    """A folder, pipe, socket or device."""


def open_regular(path: Path | str) -> int:
    """A descriptor to read a regular file that somebody else may exchange at any instant; never waits for anybody.

    A pipe or a device is not opened: what was looked at is what is opened. Where somebody holds a lease on the file,
    opening it would wait until that one gives it up (fcntl(2)). Raises OSError.
    """
    looked_at = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(looked_at).st_mode):
            raise NotRegular(errno.EINVAL, "not a regular file")
        return os.open(f"/proc/self/fd/{looked_at}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(looked_at)


def check_outside(path: Path) -> None:
    """That what a person named is a file that can be read; a pipe or a device is not even opened. Raises DataError."""
    os.close(_opened(path))


def _opened(path: Path) -> int:
    try:
        return open_regular(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | ValueError) -> DataError:
    if not isinstance(error, OSError):  # a NUL in the name
        return DataError(path, "no such file", hint="name one that is there")
    if error.errno == errno.ENOENT:
        return DataError(path, "no such file", hint="name one that is there")
    if isinstance(error, NotRegular):
        return DataError(path, "not a regular file", hint="name a file, no folder, pipe or device")
    if error.errno == errno.EAGAIN:
        return DataError(path, "another process holds a lease on it", hint="end that process, or copy the file")
    hint = "run as its owner, or as root" if error.errno in (errno.EACCES, errno.EPERM) else "name another one"
    return DataError(path, f"cannot be read ({reason_of(error)})", hint=hint)


def read_outside_text(path: Path, limit_bytes: int = 256 << 20) -> str:
    """Return the text of a file from outside, as `read_outside` reads it. Raises DataError."""
    data = read_outside(path, limit_bytes)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(path, f"not text (byte 0x{data[error.start]:02x})", line) from None


def read_outside(path: Path, limit_bytes: int = 256 << 20) -> bytes:
    """Return the bytes of a file that a person gave us, unpacked if gzip packed them.

    Raises DataError if there are more than `limit_bytes`, or more than `_MOST_RATIO` times the packed ones.
    """
    try:
        with os.fdopen(_opened(path), "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if data.startswith(_GZIP):
        data = _unpacked(data, path, limit_bytes)
    if len(data) > limit_bytes:
        raise DataError(path, f"larger than {limit_bytes >> 20} MiB")
    return data


def _unpacked(data: bytes, path: Path, limit_bytes: int) -> bytes:
    import zlib

    most = min(limit_bytes, _LEAST_BYTES + _MOST_RATIO * len(data))
    parts: list[bytes] = []
    size, members, worker = 0, 1, zlib.decompressobj(31)
    try:
        for at in range(0, len(data), _PART_BYTES):
            part = data[at : at + _PART_BYTES]
            while part:
                if worker.eof:  # another member follows, or the zeros that fill a block
                    part = part.lstrip(b"\0")
                    if not part:
                        break
                    members, worker = members + 1, zlib.decompressobj(31)
                parts.append(worker.decompress(part, most + 1 - size))
                size += len(parts[-1])
                if size > most or members > _MOST_MEMBERS:
                    raise DataError(path, f"larger than {most >> 20} MiB when it is unpacked, or in too many parts")
                part = worker.unused_data
    except zlib.error as error:
        raise DataError(path, f"damaged gzip file ({error})") from None
    if not worker.eof:
        raise DataError(path, "damaged gzip file (it is cut off)")
    return b"".join(parts)


def readable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Those that can be read, or have ended; empty where none can within `timeout_s`."""
    return _ready(descriptors, select.POLLIN, timeout_s)


def writable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """As `readable`, of those that can be written."""
    return _ready(descriptors, select.POLLOUT, timeout_s)


def _ready(descriptors: Sequence[int], event: int, timeout_s: float | None) -> list[int]:
    # select() refuses descriptors above 1,023, of which a process with a thousand connections has some.
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    milliseconds = None if timeout_s is None else math.ceil(1e3 * max(0.0, timeout_s))
    return [descriptor for descriptor, _ in poll.poll(milliseconds)]


# Words and numbers that others chose: names of processes, files and servers, figures in their files.
#
# A terminal obeys control characters, a spreadsheet runs formulas, `int` and `str.isdigit` take more than 0-9 and
# refuse long numbers with an exception of their own. What comes from outside passes through here once.

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


# TOML with one line of error that names the line of the file.


def parse(text: str, path: object) -> dict[str, Any]:
    """The tables of a document. Raises DataError with the line and the reason in tomllib's words."""
    with reading(path):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            reason = re.sub(r" \(at .*\)$", "", str(error))
            line = re.search(r"\(at line (\d+)", str(error))
            # What is missing at the end has no line in tomllib's words: it is the last one.
            number = int(line[1]) if line else max(text.count("\n") + (not text.endswith("\n")), 1)
            raise DataError(path, f"not TOML: {reason[:1].lower()}{reason[1:]}", number) from None
