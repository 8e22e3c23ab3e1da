# SPDX-License-Identifier: Apache-2.0
"""What is done before a private server runs: its directory, its account, its command line."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from powerprof.caller import acting_as
from powerprof.database.clients.base import Login
from powerprof.database.isolation.accounts import name_of, server_account, server_owner
from powerprof.database.isolation.runtree import RunTree, may_enter
from powerprof.database.private import template
from powerprof.database.products import products
from powerprof.database.products.builds import ServerBuild
from powerprof.database.products.options import ServerOptions
from powerprof.errors import PowerprofError
from powerprof.files import reason_of
from powerprof.folders import Folder, give, write_all
from powerprof.paths import temporary_base

ERROR_LOG = "error.log"
# A redo log of the default size (96 MiB) and a temporary tablespace (12 MiB) are made at the start.
_ROOM_BYTES = 128 << 20
# sockaddr_un.sun_path is 108 bytes with the final NUL (unix(7)).
_LONGEST_SOCKET = 107


def check_room() -> None:
    """See that a private server will have room; the rest is seen when it is made. Raises PowerprofError."""
    place = temporary_base()
    owner = server_account()
    if owner is not None:
        _check_entry(place, owner)
    template.check_free(place, place, _ROOM_BYTES)


# MySQL's server_uuid: two with one do not replicate from each other. A server without makes its own.
_IDENTITY = "auto.cnf"


def prepare(build: ServerBuild, options: ServerOptions, tree: RunTree) -> Login:
    """Make the server's directory with data cloned from the template, and powerprof's account.

    Raises PowerprofError.
    """
    product = products.of(build)
    directory = tree.path / options.name
    login = product.login(directory)
    socket = login.socket
    if socket is not None and len(os.fsencode(socket)) > _LONGEST_SOCKET:
        raise PowerprofError(f"{socket} is too long for a socket", "set TMPDIR to a shorter path")
    owner = server_account()
    if owner is not None:
        let_pass(tree, owner)
    source = template.template_for(build, tree)
    template.need_room(tree.path, template.size_of(source) + _ROOM_BYTES)
    try:
        directory.mkdir(0o700)
        with Folder.open(directory) as folder:
            _fill(folder, product.files(build, login), owner)
            template.clone(source, directory / "data", owner)
            with Folder.open(directory / "data") as data, suppress(FileNotFoundError):
                data.remove(_IDENTITY)
            if build.basedir is not None and _is_out_of_reach(build, owner):
                template.clone(build.basedir / "share", directory / "base/share", owner)
            # Last: until now nobody else could enter, and from now on root does nothing in it by its own rights.
            give(folder.handle, owner)
    except OSError as error:
        raise PowerprofError(f"cannot prepare {directory} ({reason_of(error)})", template.room_hint(error)) from error
    return login


def _fill(folder: Folder, files: Mapping[str, str], owner: tuple[int, int] | None) -> None:
    for name, text in {**files, ERROR_LOG: ""}.items():
        handle = folder.create(name)
        try:
            write_all(handle, text.encode())
            give(handle, owner)
        finally:
            os.close(handle)
    for name in ("tmp", "base"):
        folder.make(name)
        with folder.folder(name) as inner:
            give(inner.handle, owner)


def _check_entry(place: Path, owner: tuple[int, int]) -> None:
    blocked = may_enter(place, *owner)
    if blocked is not None:
        raise PowerprofError(
            f"the user {name_of(owner)}, as whom the server runs, cannot enter {blocked}",
            "set TMPDIR to a directory that it may enter, such as /tmp",
        )


def let_pass(tree: RunTree, owner: tuple[int, int]) -> None:
    """The server's user may pass through the tree and write only in its own part of it."""
    _check_entry(tree.path.parent, owner)
    with Folder.open(tree.path) as folder:
        give(folder.handle, (0, owner[1]), 0o710)


@contextmanager
def as_server() -> Iterator[None]:
    """What is done in a server's directory once it has it, with no more than its own rights."""
    owner = server_owner()
    if owner is None:
        yield
        return
    with acting_as(owner):
        yield


def open_log(directory: Path) -> int:
    """The server's error log, for appending and reading. Raises PowerprofError."""
    try:
        with as_server(), Folder.open(directory) as folder:
            flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(ERROR_LOG, flags, dir_fd=folder.handle)
    except OSError as error:
        raise PowerprofError(
            f"cannot open {directory / ERROR_LOG} ({reason_of(error)})",
            "set TMPDIR to a folder of root's on another disk",
        ) from error


def command(build: ServerBuild, options: ServerOptions, directory: Path, port: int | None) -> tuple[Path, list[str]]:
    """Where to start the server, and its command line: what makes it private comes last, and holds."""
    place, binary, basedir = _reach(build, directory)
    product = products.of(build)
    base = [f"--basedir={basedir}"] if basedir is not None else []
    words = product.words(build, options.settings, options.connections, directory)
    return place, [binary, *words, *base, *product.network(port, options.address)]


def _is_out_of_reach(build: ServerBuild, account: tuple[int, int] | None) -> bool:
    return (
        account is not None and build.root is None and may_enter(build.binary.absolute().parent, *account) is not None
    )


def _reach(build: ServerBuild, directory: Path) -> tuple[Path, str, Path | None]:
    """Working directory, program and base directory, such that the server's user gets at them.

    A fetched server lies in a cache that only its owner may enter. The program is then started from its own
    directory, for which that does not matter, and keeps its name and path; its messages were copied by `prepare`.
    """
    if not _is_out_of_reach(build, server_account()):
        return Path("/"), str(build.binary.absolute()), build.basedir
    near = directory / "base" if build.basedir is not None else None
    return build.binary.absolute().parent, f"./{build.binary.name}", near


def ready(build: ServerBuild, directory: Path) -> None:
    """Once it answers: remove what made the account, and write the fresh data to disk now, so that the
    kernel does not do it while idling is measured. Raises PowerprofError."""
    try:
        with as_server(), Folder.open(directory) as folder:
            for name in products.of(build).once:
                with suppress(FileNotFoundError):
                    folder.remove(name)
            with folder.folder("data") as data:
                for _, _, names, here in os.fwalk(".", dir_fd=data.handle):
                    for name in names:
                        _write_back(name, here)
    except OSError as error:
        raise PowerprofError(f"cannot write {directory} ({reason_of(error)})", template.room_hint(error)) from error


def _write_back(name: str, folder: int) -> None:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return  # a socket, or gone already
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            os.fsync(handle)
    finally:
        os.close(handle)
