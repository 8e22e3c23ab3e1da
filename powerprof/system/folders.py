# SPDX-License-Identifier: Apache-2.0
"""Directories that are held open, so that no symbolic link can redirect what is created, written or removed in them.

A path is opened name by name. A symbolic link is followed only if root or the acting user made it. The kernel's
`fs.protected_symlinks` does the same, but for sticky directories only (proc_sys_fs(5)). Every later action is relative
to the descriptor, so that renamed directories have no effect. `acting.acting_as` selects the rights.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from powerprof.system.descriptors import writable

_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40  # the kernel's limit (path_resolution(7))


def _read_acting_uid() -> int:
    uid: int = ctypes.CDLL(None).setfsuid(-1)
    return uid


class Folder:
    """An open directory; a context manager that closes it.

    All methods raise OSError. `name` is a single name and never a path.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def open(cls, path: Path | str, *, make: bool = False) -> Folder:
        """Open `path`. With `make`, create missing directories with mode 0700."""
        handle, _ = _walk(os.fspath(path), make=make)
        return cls(handle)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def stat(self, name: str | None = None) -> os.stat_result:
        """Return the status of the directory, or of a name in it without following a link."""
        return os.fstat(self.handle) if name is None else os.lstat(name, dir_fd=self.handle)

    def names(self) -> list[str]:
        """Return the names in the directory, sorted."""
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.handle)
        try:
            return sorted(os.listdir(readable))
        finally:
            os.close(readable)

    def make(self, name: str) -> None:
        """Create a directory in it with mode 0700."""
        os.mkdir(_check_single(name), 0o700, dir_fd=self.handle)

    def folder(self, name: str) -> Folder:
        """Open a directory in it. A symbolic link is an error."""
        return Folder(os.open(_check_single(name), _WALK | os.O_DIRECTORY, dir_fd=self.handle))

    def create(self, name: str, mode: int = 0o600) -> int:
        """Create a file in it. Return a descriptor for reading and writing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(_check_single(name), flags, mode, dir_fd=self.handle)

    @contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[int]:
        """Create a file that replaces `name` at the end of the block. An error leaves the old file unchanged."""
        temporary = f".powerprof-{os.urandom(8).hex()}"
        handle = self.create(temporary, mode)
        try:
            yield handle
            os.replace(temporary, _check_single(name), src_dir_fd=self.handle, dst_dir_fd=self.handle)
        except BaseException:
            with suppress(OSError):
                self.remove(temporary)
            raise
        finally:
            os.close(handle)

    def write(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file atomically."""
        with self.replacing(name, mode) as handle:
            write_all(handle, data)

    def check_room(self, needed_bytes: int) -> None:
        """Create a file and remove it, and raise OSError if less than `needed_bytes` is free.

        The check creates a real file, because a read-only file system, a quota or /proc can refuse what permissions
        allow.
        """
        name = f".powerprof-{os.urandom(8).hex()}"
        handle = self.create(name)
        try:
            check_free(handle, needed_bytes)
        finally:
            os.close(handle)
            self.remove(name)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return the content of a regular file of at most `limit_bytes`. A link is an error. Never block."""
        handle = os.open(
            _check_single(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.handle
        )
        with os.fdopen(handle, "rb") as file:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if info.st_size > limit_bytes:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            return file.read(limit_bytes)

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(_check_single(name), dir_fd=self.handle)

    def remove_folder(self, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(_check_single(name), dir_fd=self.handle)


def check_free(handle: int, needed_bytes: int) -> None:
    """Raise OSError if the file system of an open file has less than `needed_bytes` free."""
    system = os.fstatvfs(handle)
    # Some remote file systems count no blocks (f_blocks is 0), so their free space is unknown.
    if system.f_blocks and system.f_bavail * system.f_frsize < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_all(handle: int, data: bytes) -> None:
    """Write all of `data` to an open file. Wait while a pipe or terminal is full. Raise OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(handle, rest) :]
        except BlockingIOError:
            writable([handle])


def set_owner(handle: int, owner: tuple[int, int] | None, mode: int | None = None) -> None:
    """Set the owner (None: unchanged) and the mode of an open file, not of a name. Raise OSError."""
    # fchown(2) refuses an O_PATH descriptor. The link in /proc leads to the same file.
    path = f"/proc/self/fd/{handle}"
    if owner is not None:
        os.chown(path, *owner)
    if mode is not None:
        os.chmod(path, mode)  # noqa: PTH101


def open_parent(path: Path | str) -> tuple[Folder, str]:
    """Return the open directory of a file and the file's name in it. Raise OSError.

    The file need not exist. If it is a symbolic link, the link is followed under the rules of this module.
    """
    handle, name = _walk(os.fspath(path), last=True)
    return Folder(handle), name


def only_root_writes(path: Path) -> str | None:
    """Return why an account other than root could change the file at `path`; None if only root can.

    Every directory and link on the path, and the file, must belong to root and be writable by root only. In a sticky
    directory other accounts can create names, but they cannot change root's.
    """
    try:
        handle, _ = _walk(os.fspath(path.absolute()), checked=True, file=True)
    except _Writable as error:
        return error.strerror
    except OSError as error:
        return (error.strerror or str(error)).lower()
    os.close(handle)
    return None


class _Writable(OSError):
    """A name on the path that other accounts can change."""


def _check(info: os.stat_result, here: str) -> None:
    if info.st_uid != 0:
        raise _Writable(errno.EPERM, f"{here} belongs to user {info.st_uid}")
    loose = info.st_mode & 0o022 and not stat.S_ISLNK(info.st_mode)
    if loose and not (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX):
        raise _Writable(errno.EPERM, f"others than root may write to {here}")


def _check_single(name: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, "not a single name")
    return name


def _walk(
    path: str, *, make: bool = False, last: bool = False, file: bool = False, checked: bool = False
) -> tuple[int, str]:
    """Return an O_PATH descriptor of the directory and "", or with `last` of its parent and the last name.

    With `last` the last name need not exist. With `file` the end may be a file. With `checked` every step is checked as
    `only_root_writes` describes.
    """
    if not path or "\0" in path:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    walked, pending = ["" if path.startswith("/") else "."], _names(path)
    here = os.open("/" if path.startswith("/") else ".", _WALK | os.O_DIRECTORY)
    links = 0
    try:
        if checked:
            _check(os.fstat(here), "/")
        while pending:
            name = pending.pop()
            at_end = last and not pending
            step = _open_step(here, name, make=make, may_lack=at_end)
            if step is None:
                return here, name
            try:
                info = os.fstat(step)
                if checked:
                    _check(info, "/".join([*walked, name]))
                if stat.S_ISLNK(info.st_mode):
                    links += 1
                    target = _read_target(step, info, links)
                    pending += _names(target)
                    if target.startswith("/"):
                        step, link, walked = os.open("/", _WALK | os.O_DIRECTORY), step, [""]
                        os.close(link)
                    else:
                        step, link = os.dup(here), step
                        os.close(link)
                elif at_end and name != "..":
                    os.close(step)
                    return here, name
                elif not stat.S_ISDIR(info.st_mode) and (pending or not file):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                else:
                    walked.append(name)
            except BaseException:
                os.close(step)
                raise
            os.close(here)
            here = step
        if last:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except BaseException:
        os.close(here)
        raise
    return here, ""


def _names(path: str) -> list[str]:
    """Return the parts of a path in reverse order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _open_step(here: int, name: str, *, make: bool, may_lack: bool) -> int | None:
    """Open `name` without following it. Return None if it is missing and `may_lack` is set."""
    try:
        return os.open(name, _WALK, dir_fd=here)
    except FileNotFoundError:
        if may_lack:
            return None
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=here)
    return os.open(name, _WALK | os.O_DIRECTORY, dir_fd=here)


def _read_target(link: int, info: os.stat_result, links: int) -> str:
    """Return the target of an open link. Raise OSError if it must not be followed."""
    if links > _MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if info.st_uid not in (0, _read_acting_uid()):
        raise OSError(errno.ELOOP, f"a symbolic link of user {info.st_uid} is in the path")
    return os.readlink("", dir_fd=link)
