# SPDX-License-Identifier: Apache-2.0
"""Directories held open: what is made, written and removed in one cannot be led elsewhere by a link.

A path is walked name by name. A symbolic link on the way is followed only where root or the acting user made it, as
the kernel's `fs.protected_symlinks` does for sticky directories only (proc_sys_fs(5)); then every action is relative
to the descriptor, so that renaming directories meanwhile changes nothing. With whose rights is for `caller.acting_as`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as the kernel (path_resolution(7))


def _acting_uid() -> int:
    uid: int = ctypes.CDLL(None).setfsuid(-1)
    return uid


class Folder:
    """An open directory; a context manager that closes it. All methods raise OSError; `name` is never a path."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def open(cls, path: Path | str, *, make: bool = False) -> Folder:
        """Walk to `path`. With `make` missing directories are made, with mode 0700."""
        handle, _ = _walk(os.fspath(path), make=make)
        return cls(handle)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def stat(self, name: str | None = None) -> os.stat_result:
        """Of the directory, or of a name in it; a link is not followed."""
        return os.fstat(self.handle) if name is None else os.lstat(name, dir_fd=self.handle)

    def names(self) -> list[str]:
        """What is in it, sorted."""
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.handle)
        try:
            return sorted(os.listdir(readable))
        finally:
            os.close(readable)

    def make(self, name: str) -> None:
        """A new directory in it, mode 0700."""
        os.mkdir(_single(name), 0o700, dir_fd=self.handle)

    def folder(self, name: str) -> Folder:
        """A directory in it, no link."""
        return Folder(os.open(_single(name), _WALK | os.O_DIRECTORY, dir_fd=self.handle))

    def create(self, name: str, mode: int = 0o600) -> int:
        """A new file in it, opened for reading and writing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(_single(name), flags, mode, dir_fd=self.handle)

    @contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[int]:
        """A new file that takes the place of `name` at the end of the block; after an error nothing has changed."""
        temporary = f".powerprof-{os.urandom(8).hex()}"
        handle = self.create(temporary, mode)
        try:
            yield handle
            os.replace(temporary, _single(name), src_dir_fd=self.handle, dst_dir_fd=self.handle)
        except BaseException:
            with suppress(OSError):
                self.remove(temporary)
            raise
        finally:
            os.close(handle)

    def write(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """A file with this content, whole or not at all."""
        with self.replacing(name, mode) as handle:
            write_all(handle, data)

    def check_room(self, needed_bytes: int) -> None:
        """Make a file and remove it; refused too where less is free than is needed.

        Tried for real: a read-only file system, a quota or /proc refuse what the permissions allow.
        """
        name = f".powerprof-{os.urandom(8).hex()}"
        handle = self.create(name)
        try:
            check_free(handle, needed_bytes)
        finally:
            os.close(handle)
            self.remove(name)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The content of a regular file of at most `limit_bytes`; no link, and nothing that could wait."""
        handle = os.open(_single(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.handle)
        with os.fdopen(handle, "rb") as file:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if info.st_size > limit_bytes:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            return file.read(limit_bytes)

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(_single(name), dir_fd=self.handle)

    def remove_folder(self, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(_single(name), dir_fd=self.handle)


def check_free(handle: int, needed_bytes: int) -> None:
    """Refuse where less is free on the file system of what is open than is needed. Raises OSError."""
    system = os.fstatvfs(handle)
    # A file system that counts no blocks (some remote ones say 0) says nothing about room.
    if system.f_blocks and system.f_bavail * system.f_frsize < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_all(handle: int, data: bytes) -> None:
    """All of `data` into an open file. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def give(handle: int, owner: tuple[int, int] | None, mode: int | None = None) -> None:
    """Make what is open, not what has a name, belong to `owner` (None: as it is). Raises OSError."""
    # An O_PATH descriptor is refused by fchown(2); the link leads to the very same thing.
    place = f"/proc/self/fd/{handle}"
    if owner is not None:
        os.chown(place, *owner)
    if mode is not None:
        os.chmod(place, mode)  # noqa: PTH101


def locate(path: Path | str) -> tuple[Folder, str]:
    """The directory in which a file lies, or is to lie, and its name there. Raises OSError.

    A link in the file's place is followed as those on the way are.
    """
    handle, name = _walk(os.fspath(path), last=True)
    return Folder(handle), name


def only_root_writes(path: Path) -> str | None:
    """Why somebody other than root could change what `path` leads to; None where nobody could.

    Every directory, link and the file itself must be root's and writable by nobody else. In a sticky directory others
    can make names, and not change those of root.
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
    """A name on the way that others may change."""


def _check(info: os.stat_result, here: str) -> None:
    if info.st_uid != 0:
        raise _Writable(errno.EPERM, f"{here} belongs to user {info.st_uid}")
    loose = info.st_mode & 0o022 and not stat.S_ISLNK(info.st_mode)
    if loose and not (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX):
        raise _Writable(errno.EPERM, f"others than root may write to {here}")


def _single(name: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, "not a single name")
    return name


def _walk(
    path: str, *, make: bool = False, last: bool = False, file: bool = False, checked: bool = False
) -> tuple[int, str]:
    """An O_PATH descriptor of the directory and "", or with `last` of the parent and the last name, found or not.

    `file` lets the end be no directory; `checked` asks of every step what `only_root_writes` does.
    """
    if not path or "\0" in path:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    shown, todo = ["" if path.startswith("/") else "."], _names(path)
    here = os.open("/" if path.startswith("/") else ".", _WALK | os.O_DIRECTORY)
    links = 0
    try:
        if checked:
            _check(os.fstat(here), "/")
        while todo:
            name = todo.pop()
            at_end = last and not todo
            step = _step(here, name, make=make, may_lack=at_end)
            if step is None:
                return here, name
            try:
                info = os.fstat(step)
                if checked:
                    _check(info, "/".join([*shown, name]))
                if stat.S_ISLNK(info.st_mode):
                    links += 1
                    target = _target(step, info, links)
                    todo += _names(target)
                    if target.startswith("/"):
                        step, link, shown = os.open("/", _WALK | os.O_DIRECTORY), step, [""]
                        os.close(link)
                    else:
                        step, link = os.dup(here), step
                        os.close(link)
                elif at_end and name != "..":
                    os.close(step)
                    return here, name
                elif not stat.S_ISDIR(info.st_mode) and (todo or not file):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                else:
                    shown.append(name)
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
    """The parts of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _step(here: int, name: str, *, make: bool, may_lack: bool) -> int | None:
    """`name` opened without following it; None where it is not there and need not be."""
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


def _target(link: int, info: os.stat_result, links: int) -> str:
    """Where an open link leads. Raises OSError where it is not to be followed."""
    if links > _MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if info.st_uid not in (0, _acting_uid()):
        raise OSError(errno.ELOOP, f"a symbolic link of user {info.st_uid} is in its way")
    return os.readlink("", dir_fd=link)


# Copies of folders that another account may change meanwhile: by descriptors, bounded, no link followed.

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
