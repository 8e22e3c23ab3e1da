# SPDX-License-Identifier: Apache-2.0
"""Opening the files of another process: in its mount namespace, deleted or replaced ones too, and nothing but files.

The names are the process's own words. A name is resolved inside its root only (openat2, RESOLVE_IN_ROOT), a device
or pipe is never opened, and what was opened must be the file that is mapped.
"""

from __future__ import annotations

import ctypes
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from powerprof.files import reason_of

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(frozen=True)
class Opened:
    """An open regular file; a context manager that closes it."""

    fd: int
    size_bytes: int
    mtime_ns: int
    device: int
    inode: int
    uid: int
    mode: int
    stored_bytes: int = 0

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @property
    def is_trusted(self) -> bool:
        """Whether it can have been written only by root or by us."""
        return self.uid in (0, os.geteuid()) and not self.mode & 0o022

    @property
    def key(self) -> str:
        """What tells this file from every other and from itself after a change, for the caches."""
        return f"{self.device:x}-{self.inode:x}-{self.size_bytes:x}-{self.mtime_ns:x}"


def _opened(fd: int) -> Opened | None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        return None
    return Opened(
        fd,
        status.st_size,
        status.st_mtime_ns,
        status.st_dev,
        status.st_ino,
        status.st_uid,
        status.st_mode,
        512 * status.st_blocks,
    )


def open_in_root(root: Path, path: str, *, follow: bool = True) -> Opened | str:
    """A regular file by its name inside `root` (`/proc/PID/root`); the reason where it cannot be had.

    Symbolic links, absolute ones too, are resolved inside of the root; with `follow` False the file itself must
    be none.
    """
    try:
        root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return reason_of(error)
    try:
        # The type is looked at before the real open: opening a device or a pipe may do things.
        probe = _openat2(root_fd, path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        try:
            if not stat.S_ISREG(os.fstat(probe).st_mode):
                return "not a regular file"
            fd = os.open(f"/proc/self/fd/{probe}", _READ)
        finally:
            os.close(probe)
    except (OSError, ValueError) as error:
        return reason_of(error) if isinstance(error, OSError) else "impossible name"
    finally:
        os.close(root_fd)
    return _opened(fd) or "not a regular file"


def _openat2(directory: int, path: str, flags: int) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("NUL in a path")
    libc = ctypes.CDLL(None, use_errno=True)
    how = _How(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    fd: int = libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(name),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


def open_mapped(base: Path, start: int, end: int, path: str, inode: int) -> Opened | str:
    """The very file that a process (`/proc/PID`) has mapped; the reason where it cannot be had.

    map_files leads to the mapped inode whatever became of its name, but needs privileges; the name in the
    process's root serves where the inode is still the same.
    """
    link = base / "map_files" / f"{start:x}-{end:x}"
    try:
        if stat.S_ISREG(link.stat().st_mode):
            opened = _opened(os.open(link, _READ))
            if opened is not None:
                return opened
        else:
            return "not a regular file"
    except OSError:
        pass
    candidate = open_in_root(base / "root", path)
    if isinstance(candidate, Opened) and candidate.inode != inode:
        os.close(candidate.fd)
        return "replaced on disk since it was started (run as root to read it)"
    return candidate
