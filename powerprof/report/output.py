# SPDX-License-Identifier: Apache-2.0
"""Writes a report where it was asked for: whole or not at all, and with no more than the caller's rights."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys

from powerprof.caller import as_caller, caller, is_delegated
from powerprof.errors import PowerprofError
from powerprof.files import reason_of
from powerprof.folders import Folder, locate, write_all
from powerprof.foreign import printable_lines

# What is open already is written to as it is: these names lead to links that are no paths (proc(5)).
_OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d{1,9})")
# The largest pages and profiles seen were some MB; a host with less than this free is about to fail elsewhere too.
_NEEDED_BYTES = 1 << 20


def check_output(target: str) -> None:
    """Raises PowerprofError where `write_output` could not write there now; called before anything is measured."""
    if _OPEN_ALREADY.fullmatch(target):
        return
    try:
        with as_caller():
            folder, name = locate(target)
            with folder:
                try:
                    if not stat.S_ISREG(folder.stat(name).st_mode):
                        return
                except FileNotFoundError:
                    pass
                folder.check_room(_NEEDED_BYTES)
    except OSError as error:
        raise PowerprofError(f"cannot write {target} ({reason_of(error)})", "name another place") from error


def write_output(target: str, data: bytes) -> None:
    """To stdout for `-`, else to a file that is replaced at once. Raises PowerprofError where it cannot be written.

    The file is the caller's, with the permissions that its umask gives to any new file. A link is followed where
    root or the caller made it; a pipe or a device of theirs is written to as it is.
    """
    if target == "-":
        if sys.stdout.isatty():
            data = printable_lines(data.decode("utf-8", "replace")).encode()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        open_already = _OPEN_ALREADY.fullmatch(target)
        if open_already:
            number = int(open_already[2]) if open_already[2] else {"stdout": 1, "stderr": 2}[open_already[1]]
            write_all(number, data)
            return
        with as_caller():
            folder, name = locate(target)
            with folder:
                _write(folder, name, data)
    except OSError as error:
        hint = None
        if is_delegated() and error.errno in (errno.EACCES, errno.EPERM):
            hint = f"under sudo files are written as {caller().name}: choose a place of theirs, or run as root itself"
        raise PowerprofError(f"cannot write {target} ({reason_of(error)})", hint) from error


def _write(folder: Folder, name: str, data: bytes) -> None:
    try:
        info = folder.stat(name)
    except FileNotFoundError:
        info = None
    if info is None or stat.S_ISREG(info.st_mode):
        folder.write(name, data, 0o666)
        return
    if info.st_uid not in (0, caller().uid):
        raise OSError(errno.ENXIO, f"it is not a file, and belongs to user {info.st_uid}")
    handle = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder.handle)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)
