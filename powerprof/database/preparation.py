# SPDX-License-Identifier: Apache-2.0
"""Options of a private server, and the preparation of its directory, data and command line.

The empty data directory of a build is created once, kept in the cache, and cloned for each server.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from powerprof.database import products
from powerprof.database.base import Login
from powerprof.database.builds import ServerBuild
from powerprof.database.runtree import RunTree, choose_base
from powerprof.database.sandbox import find_server_account, find_server_owner
from powerprof.database.server_options import ServerOptions
from powerprof.database.templates import (
    check_entry,
    check_free,
    check_room_in,
    clone_folder,
    find_shelf,
    find_template,
    hint_about_room,
    is_out_of_reach,
    let_pass,
    make_folders,
    measure_folder,
)
from powerprof.system.acting import acting_as
from powerprof.system.errors import PowerprofError, reason_of
from powerprof.system.folders import Folder, set_owner, write_all

_ERROR_LOG = "error.log"
# MySQL's server_uuid. Two servers with the same one do not replicate; a server without the file creates one.
_SERVER_UUID_FILE = "auto.cnf"
# At its start a server creates a redo log of the default size (96 MiB) and a temporary tablespace (12 MiB).
_SERVER_BYTES = 128 << 20
# sockaddr_un.sun_path is 108 bytes with the final NUL (unix(7)).
_MAX_SOCKET_BYTES = 107


def check_room() -> None:
    """Raise PowerprofError if the temporary directory has no room for a private server, or its account cannot enter.

    Also if another account could change the directory, or the cached template of a server.
    """
    place = choose_base()
    find_shelf()
    owner = find_server_account()
    if owner is not None:
        check_entry(place, owner)
    check_free(place, place, _SERVER_BYTES)


def prepare_directory(build: ServerBuild, options: ServerOptions, tree: RunTree) -> Login:
    """Create the server's directory with data cloned from the template. Return powerprof's account.

    Raises PowerprofError.
    """
    product = products.product_of(build)
    directory = tree.path / options.name
    login = product.build_login(directory)
    path = login.socket
    if path is not None and len(os.fsencode(path)) > _MAX_SOCKET_BYTES:
        raise PowerprofError(f"{path} is too long for a socket", "set TMPDIR to a shorter path")
    owner = find_server_account()
    if owner is not None:
        let_pass(tree, owner)
    template = find_template(build, tree)
    check_room_in(tree.path, measure_folder(template) + _SERVER_BYTES)
    try:
        directory.mkdir(0o700)
        with Folder.open(directory) as folder:
            _write_files(folder, product.build_files(build, login), owner)
            clone_folder(template, directory / "data", owner)
            with Folder.open(directory / "data") as data, suppress(FileNotFoundError):
                data.remove(_SERVER_UUID_FILE)
            if build.basedir is not None and is_out_of_reach(build, owner):
                clone_folder(build.basedir / "share", directory / "base/share", owner)
            # This is the last step: until now no other account could enter, and from now on root does nothing in the
            # directory by its own rights.
            set_owner(folder.handle, owner)
    except OSError as error:
        raise PowerprofError(f"cannot prepare {directory} ({reason_of(error)})", hint_about_room(error)) from error
    return login


def _write_files(folder: Folder, files: Mapping[str, str], owner: tuple[int, int] | None) -> None:
    for name, text in {**files, _ERROR_LOG: ""}.items():
        handle = folder.create(name)
        try:
            write_all(handle, text.encode())
            set_owner(handle, owner)
        finally:
            os.close(handle)
    make_folders(folder, ("tmp", "base"), owner)


@contextmanager
def as_server() -> Iterator[None]:
    """Run the block with the rights of the server's account: the directory belongs to it."""
    owner = find_server_owner()
    if owner is None:
        yield
        return
    with acting_as(owner):
        yield


def open_error_log(directory: Path) -> int:
    """Open the server's error log for appending and reading. Raise PowerprofError."""
    try:
        with as_server(), Folder.open(directory) as folder:
            flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open(_ERROR_LOG, flags, dir_fd=folder.handle)
    except OSError as error:
        raise PowerprofError(
            f"cannot open {directory / _ERROR_LOG} ({reason_of(error)})",
            "set TMPDIR to a folder of root's on another disk",
        ) from error


def build_command(
    build: ServerBuild, options: ServerOptions, directory: Path, port: int | None
) -> tuple[Path, list[str]]:
    """Return the working directory and the command line. The words that make it private are last and take precedence.

    A fetched server is in a cache that only its owner may enter. It is started from its own directory, which needs no
    right to the path above, and keeps its name. `prepare_directory` has copied its messages.
    """
    if is_out_of_reach(build, find_server_account()):
        place, binary = build.binary.absolute().parent, f"./{build.binary.name}"
        basedir = directory / "base" if build.basedir is not None else None
    else:
        place, binary, basedir = Path("/"), str(build.binary.absolute()), build.basedir
    product = products.product_of(build)
    base = [f"--basedir={basedir}"] if basedir is not None else []
    words = product.build_command_line(build, options.settings, options.connections, directory)
    return place, [binary, *words, *base, *product.build_network_options(port, options.address)]


def finish_start(build: ServerBuild, directory: Path) -> None:
    """Remove the file with the password and write the fresh data to disk, once the server answers.

    Otherwise the kernel would write them while idling is measured. Raises PowerprofError.
    """
    try:
        with as_server(), Folder.open(directory) as folder:
            for name in products.product_of(build).TEMPORARY_FILES:
                with suppress(FileNotFoundError):
                    folder.remove(name)
            with folder.folder("data") as data:
                for _, _, names, handle in os.fwalk(".", dir_fd=data.handle):
                    for name in names:
                        _write_back(name, handle)
    except OSError as error:
        raise PowerprofError(f"cannot write {directory} ({reason_of(error)})", hint_about_room(error)) from error


def _write_back(name: str, folder: int) -> None:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return  # It is a socket, or it has been removed.
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            os.fsync(handle)
    finally:
        os.close(handle)
