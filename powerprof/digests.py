# SPDX-License-Identifier: Apache-2.0
"""One number for all that a folder holds, to tell whether it still is what was checked once."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from powerprof.errors import DataError
from powerprof.files import reason_of

_CHUNK = 1 << 20


@dataclass
class _Left:
    """What a folder may still hold."""

    files: int
    size_bytes: int


def tree_digest(folder: Path, *, most_files: int = 5000, most_bytes: int = 1 << 30) -> str:
    """SHA-256 over names, kinds, execute bits and contents of everything below `folder`, as 64 hexadecimal digits.

    Symbolic links count by their text and are not followed. Raises DataError for what is neither file, folder nor link,
    for more than that many files or bytes, and where something cannot be read.
    """
    total = hashlib.sha256()
    left = _Left(most_files, most_bytes)
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _add(total, top, b"", left)
        finally:
            os.close(top)
    except OSError as error:
        raise DataError(folder, f"cannot be read ({reason_of(error)})") from error
    except _NoDigest as error:
        raise DataError(folder, str(error)) from None
    return total.hexdigest()


class _NoDigest(Exception):
    """What cannot have a digest."""


def _add(total: hashlib._Hash, directory: int, prefix: bytes, left: _Left) -> None:
    for name in sorted(os.fsencode(entry) for entry in os.listdir(directory)):
        left.files -= 1
        if left.files < 0:
            raise _NoDigest("holds too many files")
        info = os.lstat(name, dir_fd=directory)
        path = prefix + name
        if stat.S_ISLNK(info.st_mode):
            _say(total, b"link", path, os.readlink(name, dir_fd=directory))
        elif stat.S_ISDIR(info.st_mode):
            _say(total, b"folder", path, b"")
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                _add(total, inner, path + b"/", left)
            finally:
                os.close(inner)
        elif stat.S_ISREG(info.st_mode):
            kind = b"program" if info.st_mode & 0o111 else b"file"
            _say(total, kind, path, _content(directory, name, left))
        else:
            raise _NoDigest(f"{os.fsdecode(path)} is neither file, folder nor link")


def _say(total: hashlib._Hash, kind: bytes, path: bytes, what: bytes) -> None:
    # Lengths in front: no two different trees are the same bytes.
    for part in (kind, path, what):
        total.update(len(part).to_bytes(8, "big") + part)


def _content(directory: int, name: bytes, left: _Left) -> bytes:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    digest = hashlib.sha256()
    with os.fdopen(handle, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            left.size_bytes -= len(chunk)
            if left.size_bytes < 0:
                raise _NoDigest("holds too many bytes")
            digest.update(chunk)
    return digest.digest()
