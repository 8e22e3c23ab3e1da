# SPDX-License-Identifier: Apache-2.0
"""Files from other people: opened without blocking, and read and unpacked within limits."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from powerprof.system.errors import DataError, reason_of
from powerprof.system.foreign_data import check_table

_GZIP = b"\x1f\x8b"
# Runs and recordings pack to a tenth or a twentieth. A smaller ratio indicates a file made to fill memory.
_MAX_RATIO = 40
_LEAST_BYTES = 32 << 20
_PART_BYTES = 64 << 10
_MAX_MEMBERS = 1000


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
        raise _explain_unreadable(path, error) from error


def _explain_unreadable(path: Path, error: OSError | ValueError) -> DataError:
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
    check_table(data, path)
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
        raise _explain_unreadable(path, error) from error
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
