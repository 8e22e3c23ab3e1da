# SPDX-License-Identifier: Apache-2.0
"""Copies of folders that another account may change during the copy: by descriptors, bounded, without links."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec

from powerprof.system.folders import Folder, set_owner

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# copy_file_range(2) refuses some pairs of file systems. sendfile accepts them.
_NO_REFLINK = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
# The longest names of tables take 640 bytes. A deeper tree would end Python's recursion.
_MAX_INNER_BYTES = 1024


class CopyRefused(Exception):
    """A folder that is not copied. The message completes a sentence about the folder."""


class CopyRules(msgspec.Struct):
    """The limits of a copy.

    `owner` is the owner of the copy (None: unchanged). With `links`, symbolic links are copied as links.
    """

    owner: tuple[int, int] | None
    max_files: int
    max_bytes: int = 1 << 40
    links: bool = False


def copy_folder(source: Path, target: Path, rules: CopyRules) -> None:
    """Copy `source` to `target`, which must not exist, and share blocks if the file system can.

    Folders and programs get mode 0700, other files 0600. Raise OSError, and CopyRefused for special files, long paths
    and more than the rules allow.
    """
    handle = os.open(source, _FOLDER)
    try:
        with Folder.open(target.parent) as parent:
            _copy(handle, parent, target.name, rules, [rules.max_files, rules.max_bytes], 0)
    finally:
        os.close(handle)


def _copy(source: int, parent: Folder, name: str, rules: CopyRules, budget: list[int], length: int) -> None:
    """Copy a folder whose path has `length` bytes below the source."""
    parent.make(name)
    with parent.folder(name) as copy:
        for entry in sorted(os.listdir(source)):
            info = os.lstat(entry, dir_fd=source)
            budget[0] -= 1
            budget[1] -= info.st_size
            if min(budget) < 0:
                raise CopyRefused(f"holds more than {rules.max_files:,} files or {rules.max_bytes >> 20:,} MiB")
            inner_length = length + 1 + len(os.fsencode(entry))
            if inner_length > _MAX_INNER_BYTES:
                raise CopyRefused(f"holds a path of more than {_MAX_INNER_BYTES:,} bytes")
            if stat.S_ISDIR(info.st_mode):
                inner = os.open(entry, _FOLDER, dir_fd=source)
                try:
                    _copy(inner, copy, entry, rules, budget, inner_length)
                finally:
                    os.close(inner)
            elif rules.links and stat.S_ISLNK(info.st_mode):
                os.symlink(os.readlink(entry, dir_fd=source), entry, dir_fd=copy.handle)
            else:
                _copy_file(source, copy, entry, rules.owner)
        set_owner(copy.handle, rules.owner)


def _copy_file(folder: int, target: Folder, name: str, owner: tuple[int, int] | None) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        info = os.fstat(source)
        if not stat.S_ISREG(info.st_mode):
            raise CopyRefused(f"holds {name}, which is not a regular file")
        copy = target.create(name)
        try:
            _copy_bytes(source, copy, info.st_size)
            set_owner(copy, owner, 0o700 if info.st_mode & 0o111 else 0o600)
        finally:
            os.close(copy)
    finally:
        os.close(source)


def _copy_bytes(source: int, copy: int, size: int) -> None:
    copied = 0
    by_range = True
    while copied < size:
        remaining = size - copied
        try:
            step = (
                os.copy_file_range(source, copy, remaining) if by_range else os.sendfile(copy, source, None, remaining)
            )
        except OSError as error:
            if not by_range or error.errno not in _NO_REFLINK:
                raise
            by_range = False
            continue
        if step == 0:
            break
        copied += step
