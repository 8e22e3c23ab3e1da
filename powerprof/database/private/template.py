# SPDX-License-Identifier: Apache-2.0
"""The empty data directory of a server build: made once, kept in the cache, cloned for each server."""

from __future__ import annotations

import dataclasses
import errno
import os
import secrets
import shutil
from pathlib import Path

from powerprof.database.isolation import sandbox
from powerprof.database.isolation.runtree import RunTree, may_enter
from powerprof.database.isolation.sandbox import account_name, find_server_account
from powerprof.database.products import builds, products
from powerprof.database.products.builds import ServerBuild
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.files import reason_of
from powerprof.system.folders import Folder, Rules, Unfit, copy_folder, give

_NEEDED_BYTES = 80 << 20
ROOM_HINT = "make room, or set TMPDIR (servers) and XDG_CACHE_HOME (template) to a larger disk"
_LIMIT_FILES = 5000


def find_template(build: ServerBuild, tree: RunTree) -> Path:
    """The empty data directory of this build, made now where the cache has none. Raises PowerprofError."""
    if build.template is not None:
        return build.template
    shelf = _shelf()
    if shelf is None:
        return _for_this_run(build, tree)
    finished = shelf / build.key
    if finished.is_dir():
        return finished
    if not os.access(shelf, os.W_OK | os.X_OK):
        return _for_this_run(build, tree)
    work = tree.path / f"template-{secrets.token_hex(4)}"
    made = _initialise(build, work, tree)
    partial = shelf / f".{build.key}.{secrets.token_hex(4)}"
    tree.also_remove(partial)
    clone_folder(made, partial, None)
    shutil.rmtree(work, ignore_errors=True)
    try:
        partial.rename(finished)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise PowerprofError(
                f"cannot keep the server's template ({reason_of(error)})", "set XDG_CACHE_HOME to another place"
            ) from error
        # Another powerprof was first: its template is as good.
        shutil.rmtree(partial, ignore_errors=True)
    tree.keep(partial)
    return finished


def _shelf() -> Path | None:
    """Where templates are kept; None where there can be no such place: no HOME, or one that nobody may write.

    Raises PowerprofError where others may write to it.
    """
    try:
        with Folder.open(paths.cache_dir() / "server-template", make=True):
            pass
    except OSError:
        return None
    return paths.cache_folder("server-template")


def _for_this_run(build: ServerBuild, tree: RunTree) -> Path:
    """A template that goes with the run: it costs each run the seconds that the cache would save."""
    work = tree.path / f"template-{build.key}"
    return work / "data" if work.is_dir() else _initialise(build, work, tree)


def _initialise(build: ServerBuild, work: Path, tree: RunTree) -> Path:
    """Let the server's own program make its data, as the server's account, which may enter the tree."""
    owner = find_server_account()
    work.mkdir(0o700)
    build = _within_reach(build, work, owner)
    with Folder.open(work) as folder:
        for name in ("data", "tmp"):
            folder.make(name)
            with folder.folder(name) as inner:
                give(inner.handle, owner)
        give(folder.handle, owner)
    steps = products.product_of(build).initialise(build, work / "data")
    own = owner if build.root is None else None
    blocked = may_enter(Path(steps[0][0][0]).parent, *own) if own is not None else None
    if owner is not None and blocked is not None:
        raise PowerprofError(
            f"the user {account_name(owner)}, as whom the server runs, cannot enter {blocked}",
            "put the server below a directory that it may enter, such as /opt",
        )
    check_room_in(work, _NEEDED_BYTES)
    environment = {**tree.environment, "TMPDIR": str(work / "tmp")}
    try:
        for command, stdin in steps:
            done = sandbox.run(command, build.sandbox(work), timeout_s=180, stdin=stdin, env=environment)
            if done.returncode != 0:
                break
    except PowerprofError:
        # A server whose disk is full waits until somebody makes room, a minute at a time.
        check_room_in(work, 8 << 20)
        raise
    if done.returncode != 0:
        builds.raise_missing_library(done.stderr, build.binary)
        check_room_in(work, 8 << 20)
        raise PowerprofError(
            f"cannot create the empty data directory of {build.name}: {done.tail()}",
            "its own words say why; --server-binary names another server",
        )
    return work / "data"


def _within_reach(build: ServerBuild, work: Path, owner: tuple[int, int] | None) -> ServerBuild:
    """The build, or a copy in `work` of one that was fetched: it lies in a cache that only its owner may enter."""
    here = build.basedir
    if owner is None or here is None or not here.is_relative_to(paths.cache_dir()):
        return build
    if may_enter(here, *owner) is None:
        return build
    check_room_in(work, measure_folder(here) + _NEEDED_BYTES)
    clone_folder(here, work / "base", owner)
    copied = work / "base" / build.binary.relative_to(here)
    return dataclasses.replace(build, basedir=work / "base", binary=copied)


def check_room_in(directory: Path, needed_bytes: int) -> None:
    """Raises PowerprofError where the file system of `directory`, one of ours, has less room than that."""
    check_free(directory, directory.parent, needed_bytes)


def check_free(directory: Path, place: Path, needed_bytes: int) -> None:
    """As `need_room`; `place` is what people call the directory."""
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if free < needed_bytes:
        raise PowerprofError(
            f"not enough room for a server in {place} ({free >> 20} MiB free, {-(-needed_bytes >> 20)} MiB needed)",
            ROOM_HINT,
        )


def hint_about_room(error: OSError) -> str | None:
    """What to do about an error that means a full disk; None for others."""
    return ROOM_HINT if error.errno in (errno.ENOSPC, errno.EDQUOT) else None


def measure_folder(directory: Path) -> int:
    """Bytes of all files below."""
    return sum(path.lstat().st_size for path in directory.rglob("*"))


def clone_folder(source: Path, target: Path, owner: tuple[int, int] | None) -> None:
    """Copy a data directory to `target` (which must not exist), shared blocks where the file system can.

    Only directories and regular files are taken and no link is followed: what was just made may belong to an account
    that is not root, and be exchanged while it is copied. Raises PowerprofError.
    """
    try:
        copy_folder(source, target, Rules(owner, _LIMIT_FILES))
    except OSError as error:
        raise PowerprofError(
            f"cannot copy the server's data to {target} ({reason_of(error)})", hint_about_room(error)
        ) from error
    except Unfit as unfit:
        raise PowerprofError(f"{source} {unfit}", f"rm -r {source}") from None
