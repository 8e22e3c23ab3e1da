# SPDX-License-Identifier: Apache-2.0
"""Copies of folders that another account may change meanwhile: by descriptors, bounded, no link followed."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from powerprof.folders import Folder, give

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# copy_file_range refuses some pairs of file systems (copy_file_range(2)); sendfile takes them.
_NO_REFLINK = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class Unfit(Exception):
    """What the folder holds that is not copied; reads as the end of a sentence about it."""


@dataclass
class Rules:
    """How much may be copied, whom the copy belongs to (None: as it is), and whether links are copied as links."""

    owner: tuple[int, int] | None
    most_files: int
    most_bytes: int = 1 << 40
    links: bool = False


def copy_folder(source: Path, target: Path, rules: Rules) -> None:
    """Copy `source` to `target`, which must not exist, sharing blocks where the file system can.

    Modes are 0700 for folders and programs, 0600 for other files. Raises OSError, and Unfit for what is neither file
    nor folder (nor link) and for more than the rules allow.
    """
    given = os.open(source, _FOLDER)
    try:
        with Folder.open(target.parent) as parent:
            _copy(given, parent, target.name, rules, [rules.most_files, rules.most_bytes])
    finally:
        os.close(given)


def _copy(given: int, parent: Folder, name: str, rules: Rules, left: list[int]) -> None:
    parent.make(name)
    with parent.folder(name) as made:
        for entry in sorted(os.listdir(given)):
            info = os.lstat(entry, dir_fd=given)
            left[0] -= 1
            left[1] -= info.st_size
            if min(left) < 0:
                raise Unfit(f"holds more than {rules.most_files:,} files or {rules.most_bytes >> 20:,} MiB")
            if stat.S_ISDIR(info.st_mode):
                inner = os.open(entry, _FOLDER, dir_fd=given)
                try:
                    _copy(inner, made, entry, rules, left)
                finally:
                    os.close(inner)
            elif rules.links and stat.S_ISLNK(info.st_mode):
                os.symlink(os.readlink(entry, dir_fd=given), entry, dir_fd=made.handle)
            else:
                _copy_file(given, made, entry, rules.owner)
        give(made.handle, rules.owner)


def _copy_file(folder: int, target: Folder, name: str, owner: tuple[int, int] | None) -> None:
    given = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        info = os.fstat(given)
        if not stat.S_ISREG(info.st_mode):
            raise Unfit(f"holds {name}, which is not a regular file")
        made = target.create(name)
        try:
            _copy_bytes(given, made, info.st_size)
            give(made, owner, 0o700 if info.st_mode & 0o111 else 0o600)
        finally:
            os.close(made)
    finally:
        os.close(given)


def _copy_bytes(given: int, made: int, size: int) -> None:
    copied = 0
    by_range = True
    while copied < size:
        left = size - copied
        try:
            step = os.copy_file_range(given, made, left) if by_range else os.sendfile(made, given, None, left)
        except OSError as error:
            if not by_range or error.errno not in _NO_REFLINK:
                raise
            by_range = False
            continue
        if step == 0:
            break
        copied += step
