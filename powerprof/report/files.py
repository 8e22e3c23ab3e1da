# SPDX-License-Identifier: Apache-2.0
"""Write reports to files: whole or not at all, and with no more than the caller's rights."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import stat
import sys

from powerprof.system.caller import as_caller, caller, is_delegated
from powerprof.system.errors import PowerprofError
from powerprof.system.files import printable_lines, reason_of
from powerprof.system.folders import Folder, check_free, locate, write_all

# What is open already is written to as it is: these names lead to links that are no paths (proc(5)).
_OPEN_ALREADY = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d{1,9})")
# The largest pages and profiles seen were some MB; a host with less than this free is about to fail elsewhere too.
_NEEDED_BYTES = 1 << 20


def check_output(target: str) -> None:
    """Raises PowerprofError where `write_output` could not write there now; called before anything is measured.

    A pipe with a name is not opened: its reader would take the closing for the end. It may come later, too.
    """
    try:
        number = _number_of(target)
        if number is not None:
            _check_open(number)
            return
        with as_caller():
            folder, name = locate(target)
            with folder:
                info = _what_is_there(folder, name)
                if info is None:
                    folder.check_room(_NEEDED_BYTES)
                elif not stat.S_ISFIFO(info.st_mode):
                    handle = _open(folder, name)
                    try:
                        _check_open(handle)
                    finally:
                        os.close(handle)
    except OSError as error:
        raise _cannot_write(target, error) from error


def _number_of(target: str) -> int | None:
    """The descriptor that is meant by - or by the name of what is open already."""
    if target == "-":
        return 1
    match = _OPEN_ALREADY.fullmatch(target)
    if match is None:
        return None
    return int(match[2]) if match[2] else {"stdout": 1, "stderr": 2}[match[1]]


def _check_open(number: int) -> None:
    """Raises OSError where what is open could not be written to now."""
    info = os.fstat(number)
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "open for reading only")
    if stat.S_ISREG(info.st_mode):
        check_free(number, _NEEDED_BYTES)
    elif stat.S_ISCHR(info.st_mode):
        os.write(number, b"")  # a device is asked too where nothing is to be written: /dev/full refuses
    else:
        poll = select.poll()
        poll.register(number, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, "nobody reads it any more")


def write_output(target: str, data: bytes) -> None:
    """To stdout for `-`, else to a file that is replaced at once. Raises PowerprofError where it cannot be written.

    The file is the caller's, with the permissions that its umask gives to any new file. A link is followed where
    root or the caller made it; a pipe or a device of theirs is written to as it is.
    """
    if target == "-":
        if sys.stdout.isatty():
            data = printable_lines(data.decode("utf-8", "replace")).encode()
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise  # a reader that has enough (head) is no failure
        except OSError as error:
            raise _cannot_write(target, error) from error
        return
    try:
        number = _number_of(target)
        if number is not None:
            write_all(number, data)
            return
        with as_caller():
            folder, name = locate(target)
            with folder:
                if _what_is_there(folder, name) is None:
                    folder.write(name, data, 0o666)
                    return
                handle = _open(folder, name)
                try:
                    write_all(handle, data)
                finally:
                    os.close(handle)
    except OSError as error:
        raise _cannot_write(target, error) from error


def _cannot_write(target: str, error: OSError) -> PowerprofError:
    shown = "to stdout" if target == "-" else target
    if is_delegated() and error.errno in (errno.EACCES, errno.EPERM):
        hint = f"under sudo files are written as {caller().name}: choose a place of theirs, or run as root itself"
    else:
        hint = "name another place"
    return PowerprofError(f"cannot write {shown} ({reason_of(error)})", hint)


def _what_is_there(folder: Folder, name: str) -> os.stat_result | None:
    """What is written to as it is; None for a file, which is replaced, and for nothing. Raises OSError."""
    try:
        info = folder.stat(name)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(info.st_mode):
        return None
    if info.st_uid not in (0, caller().uid):
        raise OSError(errno.ENXIO, f"it is not a file, and belongs to user {info.st_uid}")
    if stat.S_ISBLK(info.st_mode):
        raise OSError(errno.ENXIO, "it is a disk")
    if stat.S_ISSOCK(info.st_mode):
        raise OSError(errno.ENXIO, "it is a socket")
    return info


def _open(folder: Folder, name: str) -> int:
    """What is no file, for writing. Raises OSError."""
    return os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder.handle)
