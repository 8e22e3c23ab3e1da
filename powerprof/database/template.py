"""The empty data directory of a server build: made once, kept in the cache, cloned for each server."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from pathlib import Path

from powerprof import paths, programs
from powerprof.database import builds
from powerprof.database.builds import ServerBuild
from powerprof.database.runtree import RunTree
from powerprof.errors import PowerprofError
from powerprof.files import reason_of

_NEEDED_BYTES = 80 << 20
ROOM_HINT = "make room, or set TMPDIR (servers) and XDG_CACHE_HOME (template) to a larger disk"
# copy_file_range refuses some pairs of file systems (copy_file_range(2)); sendfile takes them.
_NO_REFLINK = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_LIMIT_FILES = 5000


def template_for(build: ServerBuild, tree: RunTree) -> Path:
    """The empty data directory of this build, made now where the cache has none. Raises PowerprofError."""
    if build.template is not None:
        return build.template
    shelf = paths.private_directory(paths.cache_dir() / "server-template")
    finished = shelf / build.key
    if finished.is_dir():
        return finished
    work = tree.path / f"template-{secrets.token_hex(4)}"
    work.mkdir(0o700)
    _initialise(build, work, tree)
    partial = shelf / f".{build.key}.{secrets.token_hex(4)}"
    tree.also_remove(partial)
    owner = shelf.stat()
    clone(work, partial, (owner.st_uid, owner.st_gid) if os.geteuid() == 0 else None)
    shutil.rmtree(work, ignore_errors=True)
    try:
        partial.rename(finished)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise PowerprofError(f"cannot keep the server's template ({reason_of(error)})") from error
        # Another powerprof was first: its template is as good.
        shutil.rmtree(partial, ignore_errors=True)
    tree.keep(partial)
    return finished


def _initialise(build: ServerBuild, work: Path, tree: RunTree) -> None:
    need_room(work, _NEEDED_BYTES)
    command = builds.initialise_command(build, work, "root" if os.geteuid() == 0 else None)
    environment = {**tree.environment, "TMPDIR": str(tree.path)}
    done = programs.run(command, timeout_s=180, env=environment, check=False)
    if done.returncode != 0:
        builds.refuse_missing_library(done.stderr, build.binary)
        need_room(work, 8 << 20)
        raise PowerprofError(f"cannot make the empty data of {build.name}: {done.tail()}")


def need_room(directory: Path, needed_bytes: int) -> None:
    """Raises PowerprofError where the file system of `directory` has less room than that."""
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if free < needed_bytes:
        raise PowerprofError(
            f"not enough room for a server in {directory.parent} ({free >> 20} MiB free, "
            f"{-(-needed_bytes >> 20)} MiB needed)",
            ROOM_HINT,
        )


def room_hint(error: OSError) -> str | None:
    """What to do about an error that means a full disk; None for others."""
    return ROOM_HINT if error.errno in (errno.ENOSPC, errno.EDQUOT) else None


def size_of(directory: Path) -> int:
    """Bytes of all files below."""
    return sum(path.lstat().st_size for path in directory.rglob("*"))


def clone(source: Path, target: Path, owner: tuple[int, int] | None) -> None:
    """Copy a data directory to `target` (which must not exist), shared blocks where the file system can.

    Only directories and regular files are taken and no link is followed: the cache belongs to the caller, who
    under sudo is not root. Raises PowerprofError.
    """
    try:
        _clone_directory(source, target, owner, [_LIMIT_FILES])
    except OSError as error:
        raise PowerprofError(
            f"cannot copy the server's data to {target} ({reason_of(error)})", room_hint(error)
        ) from error


def _clone_directory(source: Path, target: Path, owner: tuple[int, int] | None, left: list[int]) -> None:
    target.mkdir(0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                raise PowerprofError(f"the server template {source} has too many files", f"rm -r {source}")
            if entry.is_dir(follow_symlinks=False):
                _clone_directory(Path(entry.path), target / entry.name, owner, left)
            else:
                _clone_file(entry.path, target / entry.name, owner)
    if owner:
        os.chown(target, *owner)


def _clone_file(source: str, target: Path, owner: tuple[int, int] | None) -> None:
    given = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        info = os.fstat(given)
        if not stat.S_ISREG(info.st_mode):
            raise PowerprofError(f"{source} is not a regular file", f"rm -r {Path(source).parent}")
        made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _copy(given, made, info.st_size)
            if owner:
                os.fchown(made, *owner)
        finally:
            os.close(made)
    finally:
        os.close(given)


def _copy(given: int, made: int, size: int) -> None:
    copied = 0
    by_range = True
    while copied < size:
        try:
            step = (
                os.copy_file_range(given, made, size - copied)
                if by_range
                else os.sendfile(made, given, None, size - copied)
            )
        except OSError as error:
            if not by_range or error.errno not in _NO_REFLINK:
                raise
            by_range = False
            continue
        if step == 0:
            break
        copied += step
