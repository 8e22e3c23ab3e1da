# SPDX-License-Identifier: Apache-2.0
"""The template of a build: its empty data directory.

It is created once, kept in the cache, and cloned for each server.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path

import msgspec

from powerprof.database import builds, products, sandbox
from powerprof.database.builds import ServerBuild
from powerprof.database.runtree import RunTree, may_enter
from powerprof.database.sandbox import account_name, find_server_account
from powerprof.system import paths
from powerprof.system.errors import PowerprofError, reason_of
from powerprof.system.folder_copies import CopyRefused, CopyRules, copy_folder
from powerprof.system.folders import Folder, set_owner
from powerprof.system.next_steps import system_command

ROOM_HINT = "make room, or set TMPDIR (servers) and XDG_CACHE_HOME (template) to a larger disk"
_TEMPLATE_BYTES = 80 << 20
_MAX_DATA_FILES = 5000


def make_folders(folder: Folder, names: tuple[str, ...], owner: tuple[int, int] | None) -> None:
    """Make folders of the server's account."""
    for name in names:
        folder.make(name)
        with folder.folder(name) as inner:
            set_owner(inner.handle, owner)


def check_entry(place: Path, owner: tuple[int, int]) -> None:
    """Raise PowerprofError if the server's account may not enter a place."""
    blocked = may_enter(place, *owner)
    if blocked is not None:
        raise PowerprofError(
            f"the server's account {account_name(owner)} cannot access {blocked}",
            "set TMPDIR to a directory that it may enter, such as /tmp",
        )


def let_pass(tree: RunTree, owner: tuple[int, int]) -> None:
    """Let the server's account pass through the tree. It can write only in its own directory."""
    check_entry(tree.path.parent, owner)
    with Folder.open(tree.path) as folder:
        set_owner(folder.handle, (0, owner[1]), 0o710)


def is_out_of_reach(build: ServerBuild, account: tuple[int, int] | None) -> bool:
    """Return whether the server's account may not enter the folder of its program."""
    return (
        account is not None and build.root is None and may_enter(build.binary.absolute().parent, *account) is not None
    )


def find_template(build: ServerBuild, tree: RunTree) -> Path:
    """Return the empty data directory of this build. Create it if the cache has none. Raise PowerprofError."""
    if build.template is not None:
        return build.template
    shelf = find_shelf()
    if shelf is None:
        return _initialise_for_run(build, tree)
    finished = shelf / build.key
    if finished.is_dir():
        return finished
    if not os.access(shelf, os.W_OK | os.X_OK):
        return _initialise_for_run(build, tree)
    work = tree.path / f"template-{secrets.token_hex(4)}"
    data = _initialise(build, work, tree)
    partial = shelf / f".{build.key}.{secrets.token_hex(4)}"
    tree.also_remove(partial)
    clone_folder(data, partial, None)
    shutil.rmtree(work, ignore_errors=True)
    try:
        partial.rename(finished)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise PowerprofError(
                f"cannot keep the server's template ({reason_of(error)})", "set XDG_CACHE_HOME to another place"
            ) from error
        # Another powerprof has created an equal template in the meantime.
        shutil.rmtree(partial, ignore_errors=True)
    tree.keep(partial)
    return finished


def find_shelf() -> Path | None:
    """Return the cache folder of templates; None without HOME or without the right to write there.

    Raises PowerprofError if other accounts may write to it.
    """
    try:
        with Folder.open(paths.cache_dir() / "server-template", make=True):
            pass
    except OSError:
        return None
    return paths.cache_folder("server-template")


def _initialise_for_run(build: ServerBuild, tree: RunTree) -> Path:
    """Return a template in the tree. Without a cache each run needs some seconds for it."""
    work = tree.path / f"template-{build.key}"
    return work / "data" if work.is_dir() else _initialise(build, work, tree)


def _initialise(build: ServerBuild, work: Path, tree: RunTree) -> Path:
    """Create an empty data directory with the server's own program, as the server's account."""
    owner = find_server_account()
    work.mkdir(0o700)
    build = _bring_within_reach(build, work, owner)
    with Folder.open(work) as folder:
        make_folders(folder, ("data", "tmp"), owner)
        set_owner(folder.handle, owner)
    steps = products.product_of(build).build_initialise_steps(build, work / "data")
    if owner is not None and build.root is None:
        blocked = may_enter(Path(steps[0][0][0]).parent, *owner)
        if blocked is not None:
            raise PowerprofError(
                f"the server's account {account_name(owner)} cannot access {blocked}",
                "put the server below a directory that it may enter, such as /opt",
            )
    check_room_in(work, _TEMPLATE_BYTES)
    environment = {"TMPDIR": str(work / "tmp")}
    try:
        for command, stdin in steps:
            done = sandbox.run(
                command, build.sandbox(work), timeout_s=180, stdin=stdin, env=environment, mark=tree.mark
            )
            if done.returncode != 0:
                break
    except PowerprofError:
        # On a full disk the server retries every minute, so that it ends by its time-out.
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


def _bring_within_reach(build: ServerBuild, work: Path, owner: tuple[int, int] | None) -> ServerBuild:
    """Return the build, or a copy in `work` if it is in a cache that only its owner may enter."""
    basedir = build.basedir
    if owner is None or basedir is None or not basedir.is_relative_to(paths.cache_dir()):
        return build
    if may_enter(basedir, *owner) is None:
        return build
    check_room_in(work, measure_folder(basedir) + _TEMPLATE_BYTES)
    clone_folder(basedir, work / "base", owner)
    copy = work / "base" / build.binary.relative_to(basedir)
    return msgspec.structs.replace(build, basedir=work / "base", binary=copy)


def check_room_in(directory: Path, needed_bytes: int) -> None:
    """Raise PowerprofError if the file system of `directory`, which powerprof created, has less room."""
    check_free(directory, directory.parent, needed_bytes)


def check_free(directory: Path, shown: Path, needed_bytes: int) -> None:
    """Raise PowerprofError, which names `shown`, if the file system of `directory` has less free space."""
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if free < needed_bytes:
        raise PowerprofError(
            f"not enough room for a server in {shown} ({free >> 20} MiB free, {-(-needed_bytes >> 20)} MiB needed)",
            ROOM_HINT,
        )


def hint_about_room(error: OSError) -> str | None:
    """Return the hint for a full disk; None for another error."""
    return ROOM_HINT if error.errno in (errno.ENOSPC, errno.EDQUOT) else None


def measure_folder(directory: Path) -> int:
    """Return the bytes of all files below."""
    return sum(path.lstat().st_size for path in directory.rglob("*"))


def clone_folder(source: Path, target: Path, owner: tuple[int, int] | None) -> None:
    """Copy a data directory to `target`, which must not exist; share blocks if the file system can.

    It copies directories and regular files and follows no link: an account other than root may own the source and
    exchange files during the copy. Raises PowerprofError.
    """
    try:
        copy_folder(source, target, CopyRules(owner, _MAX_DATA_FILES))
    except OSError as error:
        raise PowerprofError(
            f"cannot copy the server's data to {target} ({reason_of(error)})", hint_about_room(error)
        ) from error
    except CopyRefused as unfit:
        raise PowerprofError(f"{source} {unfit}", system_command("rm -r {}", source)) from None
