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

from powerprof.system.acting import as_caller
from powerprof.system.caller import caller, is_delegated
from powerprof.system.errors import PowerprofError, reason_of
from powerprof.system.folders import Folder, check_free, open_parent, write_all
from powerprof.system.foreign_text import printable_lines

# Kind of a file → its suffix.
SUFFIXES = {
    "html": ".html",
    "md": ".md",
    "csv": ".csv",
    "json": ".json",
    "flame": ".flame.html",
    "folded": ".folded",
    "pprof": ".pb.gz",
    "otlp": ".otlp",
    "perfetto": ".perfetto.json",
}
# These names refer to files that this process has open: they are links without a path (proc(5)).
_OPEN_FILE = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d{1,9})")
# The largest pages and profiles seen had some MB; a host with less free space than this fails elsewhere too.
_NEEDED_BYTES = 1 << 20


def check_output(target: str) -> None:
    """Raise PowerprofError if `write_output` could not write to `target` now. Call it before measuring.

    A named pipe is not opened: its reader would take the closing for the end. The reader may also come later.
    """
    try:
        number = _descriptor_of(target)
        if number is not None:
            _check_descriptor(number)
            return
        with as_caller():
            folder, name = open_parent(target)
            with folder:
                info = _stat_special(folder, name)
                if info is None:
                    folder.check_room(_NEEDED_BYTES)
                elif not stat.S_ISFIFO(info.st_mode):
                    handle = _open_special(folder, name)
                    try:
                        _check_descriptor(handle)
                    finally:
                        os.close(handle)
    except OSError as error:
        raise _write_error(target, error) from error


def write_output(target: str, data: bytes) -> None:
    """Write to stdout for `-`, else replace a file in one step. Raise PowerprofError if that fails.

    The file belongs to the caller and has the permissions that its umask gives to new files. A link of root or of the
    caller is followed. A pipe or a device of theirs is written to instead of being replaced.
    """
    if target == "-":
        if sys.stdout.isatty():
            data = printable_lines(data.decode("utf-8", "replace")).encode()
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise  # a reader that has left (head) is no failure
        except OSError as error:
            raise _write_error(target, error) from error
        return
    try:
        number = _descriptor_of(target)
        if number is not None:
            write_all(number, data)
            return
        with as_caller():
            folder, name = open_parent(target)
            with folder:
                if _stat_special(folder, name) is None:
                    folder.write(name, data, 0o666)
                    return
                handle = _open_special(folder, name)
                try:
                    write_all(handle, data)
                finally:
                    os.close(handle)
    except OSError as error:
        raise _write_error(target, error) from error


def _descriptor_of(target: str) -> int | None:
    """Return the descriptor that `-` or the name of an open file refers to; `None` for any other path."""
    if target == "-":
        return 1
    match = _OPEN_FILE.fullmatch(target)
    if match is None:
        return None
    return int(match[2]) if match[2] else {"stdout": 1, "stderr": 2}[match[1]]


def _check_descriptor(number: int) -> None:
    """Raise OSError if an open file could not be written to now."""
    info = os.fstat(number)
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "open for reading only")
    if stat.S_ISREG(info.st_mode):
        check_free(number, _NEEDED_BYTES)
    elif stat.S_ISCHR(info.st_mode):
        os.write(number, b"")  # a device may refuse even this: /dev/full does
    else:
        poll = select.poll()
        poll.register(number, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, "the reader closed the pipe")


def _write_error(target: str, error: OSError) -> PowerprofError:
    shown = "to stdout" if target == "-" else target
    if is_delegated() and error.errno in (errno.EACCES, errno.EPERM):
        hint = f"under sudo, files are written as {caller().name}: choose a folder of this user, or run as root itself"
    else:
        hint = "choose another file"
    return PowerprofError(f"cannot write {shown} ({reason_of(error)})", hint)


def _stat_special(folder: Folder, name: str) -> os.stat_result | None:
    """Return the status of a pipe or a device; `None` for a regular file and for a free name.

    Raises OSError for disks, sockets and special files of other accounts.
    """
    try:
        info = folder.stat(name)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(info.st_mode):
        return None
    if info.st_uid not in (0, caller().uid):
        raise OSError(errno.ENXIO, f"it is a special file of user {info.st_uid}")
    if stat.S_ISBLK(info.st_mode):
        raise OSError(errno.ENXIO, "it is a disk")
    if stat.S_ISSOCK(info.st_mode):
        raise OSError(errno.ENXIO, "it is a socket")
    return info


def _open_special(folder: Folder, name: str) -> int:
    """Open a pipe or a device for writing. Raises OSError."""
    return os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder.handle)
