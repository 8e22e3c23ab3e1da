# SPDX-License-Identifier: Apache-2.0
"""Options of a private server, and the preparation of its directory, data and command line.

The empty data directory of a build is created once, kept in the cache, and cloned for each server.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.database import builds, products, sandbox
from powerprof.database.base import Login
from powerprof.database.builds import ServerBuild
from powerprof.database.connections import check_clients
from powerprof.database.runtree import RunTree, choose_base, may_enter
from powerprof.database.sandbox import account_name, find_server_account, find_server_owner
from powerprof.database.settings import Setting
from powerprof.model.identities import Family
from powerprof.system import paths
from powerprof.system.caller import acting_as
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import reason_of
from powerprof.system.folder_copies import CopyRefused, CopyRules, copy_folder
from powerprof.system.folders import Folder, set_owner, write_all
from powerprof.system.next_steps import system_command

Port = int | Literal["ephemeral"] | None
ROOM_HINT = "make room, or set TMPDIR (servers) and XDG_CACHE_HOME (template) to a larger disk"
_ERROR_LOG = "error.log"
# MySQL's server_uuid. Two servers with the same one do not replicate; a server without the file creates one.
_SERVER_UUID_FILE = "auto.cnf"
_TEMPLATE_BYTES = 80 << 20
# At its start a server creates a redo log of the default size (96 MiB) and a temporary tablespace (12 MiB).
_SERVER_BYTES = 128 << 20
_MAX_DATA_FILES = 5000
# sockaddr_un.sun_path is 108 bytes with the final NUL (unix(7)).
_MAX_SOCKET_BYTES = 107


class ServerOptions(msgspec.Struct, frozen=True):
    """Options of a private server. The default has a unix socket, no TCP, and the settings that it was built with.

    Attributes:
        name: Name of its directory in the tree.
        port: TCP port on `address`; "ephemeral" chooses a free one, None disables TCP.
        connections: Number of clients that will be connected.
        settings: Settings as in my.cnf (see `mysql.format_settings`).
        environment: Variables added to those of powerprof.
        affinity: CPUs that it may use.
        family: Product. `binary` or `build` choose another program of it.
        namespace: Network namespace (see `runtree`); None uses the one of the run.
        partners: Whether it connects to other servers of its topology.
        timeout_s: Maximum time until it is ready.

    Raises UsageError for invalid values.
    """

    name: str = "server"
    port: Port = None
    connections: int = 16
    settings: Mapping[str, Setting] = msgspec.field(default_factory=dict)
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    affinity: tuple[int, ...] | None = None
    family: Family = "mysql"
    binary: Path | None = None
    build: ServerBuild | None = None
    namespace: int | None = None
    address: str = "127.0.0.1"
    partners: bool = False
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", self.name):
            raise UsageError(f"{self.name!r} cannot name a server", "lower-case letters, digits and -")
        check_clients(self.connections)
        products.product_of_family(self.family).format_settings(self.settings)
        if isinstance(self.port, int) and not 1 <= self.port <= 65535:
            raise UsageError(f"{self.port} is not a port", "1 to 65535")
        for name, value in self.environment.items():
            if not name or "=" in name or "\0" in name + value:
                raise UsageError(
                    f"{name!r} cannot be an environment variable", "a name without = and NUL, such as MALLOC_ARENA_MAX"
                )
        if self.affinity is not None:
            usable = os.sched_getaffinity(0)
            unusable = sorted(set(self.affinity) - usable)
            if unusable or not self.affinity:
                raise UsageError(
                    f"CPUs {','.join(map(str, unusable)) or '(none)'} cannot be used here",
                    f"usable: {','.join(map(str, sorted(usable)))}",
                )


def choose_port(port: Port, address: str = "127.0.0.1") -> int | None:
    """Return a free port on the address. Raise PowerprofError if `port` is taken or forbidden."""
    if port is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # The server sets it too. Without it a port counts as taken for a minute after its last connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, 0 if port == "ephemeral" else port))
        except PermissionError as error:
            raise PowerprofError(f"port {port} cannot be used ({reason_of(error)})", "use one above 1023") from error
        except OSError:
            raise port_taken_error(int(port), address) from None
        return int(probe.getsockname()[1])


def port_taken_error(port: int, address: str) -> PowerprofError:
    """Return the error for a port of another program."""
    return PowerprofError(f"port {port} on {address} is taken", f"choose another; who has it: ss -ltnp sport = :{port}")


# The directory of one server.


def check_room() -> None:
    """Raise PowerprofError if the temporary directory has no room for a private server, or its account cannot enter.

    Also if another account could change the directory, or the cached template of a server.
    """
    place = choose_base()
    _shelf()
    owner = find_server_account()
    if owner is not None:
        _check_entry(place, owner)
    _check_free(place, place, _SERVER_BYTES)


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
            if build.basedir is not None and _is_out_of_reach(build, owner):
                clone_folder(build.basedir / "share", directory / "base/share", owner)
            # This is the last step: until now no other account could enter, and from now on root does nothing in the
            # directory by its own rights.
            set_owner(folder.handle, owner)
    except OSError as error:
        raise PowerprofError(f"cannot prepare {directory} ({reason_of(error)})", _hint_about_room(error)) from error
    return login


def _write_files(folder: Folder, files: Mapping[str, str], owner: tuple[int, int] | None) -> None:
    for name, text in {**files, _ERROR_LOG: ""}.items():
        handle = folder.create(name)
        try:
            write_all(handle, text.encode())
            set_owner(handle, owner)
        finally:
            os.close(handle)
    _make_folders(folder, ("tmp", "base"), owner)


def _make_folders(folder: Folder, names: tuple[str, ...], owner: tuple[int, int] | None) -> None:
    for name in names:
        folder.make(name)
        with folder.folder(name) as inner:
            set_owner(inner.handle, owner)


def _check_entry(place: Path, owner: tuple[int, int]) -> None:
    blocked = may_enter(place, *owner)
    if blocked is not None:
        raise PowerprofError(
            f"the server's account {account_name(owner)} cannot access {blocked}",
            "set TMPDIR to a directory that it may enter, such as /tmp",
        )


def let_pass(tree: RunTree, owner: tuple[int, int]) -> None:
    """Let the server's account pass through the tree. It can write only in its own directory."""
    _check_entry(tree.path.parent, owner)
    with Folder.open(tree.path) as folder:
        set_owner(folder.handle, (0, owner[1]), 0o710)


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
    if _is_out_of_reach(build, find_server_account()):
        place, binary = build.binary.absolute().parent, f"./{build.binary.name}"
        basedir = directory / "base" if build.basedir is not None else None
    else:
        place, binary, basedir = Path("/"), str(build.binary.absolute()), build.basedir
    product = products.product_of(build)
    base = [f"--basedir={basedir}"] if basedir is not None else []
    words = product.build_command_line(build, options.settings, options.connections, directory)
    return place, [binary, *words, *base, *product.build_network_options(port, options.address)]


def _is_out_of_reach(build: ServerBuild, account: tuple[int, int] | None) -> bool:
    return (
        account is not None and build.root is None and may_enter(build.binary.absolute().parent, *account) is not None
    )


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
        raise PowerprofError(f"cannot write {directory} ({reason_of(error)})", _hint_about_room(error)) from error


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


# The template: the empty data directory of a build.


def find_template(build: ServerBuild, tree: RunTree) -> Path:
    """Return the empty data directory of this build. Create it if the cache has none. Raise PowerprofError."""
    if build.template is not None:
        return build.template
    shelf = _shelf()
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


def _shelf() -> Path | None:
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
        _make_folders(folder, ("data", "tmp"), owner)
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
    _check_free(directory, directory.parent, needed_bytes)


def _check_free(directory: Path, shown: Path, needed_bytes: int) -> None:
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if free < needed_bytes:
        raise PowerprofError(
            f"not enough room for a server in {shown} ({free >> 20} MiB free, {-(-needed_bytes >> 20)} MiB needed)",
            ROOM_HINT,
        )


def _hint_about_room(error: OSError) -> str | None:
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
            f"cannot copy the server's data to {target} ({reason_of(error)})", _hint_about_room(error)
        ) from error
    except CopyRefused as unfit:
        raise PowerprofError(f"{source} {unfit}", system_command("rm -r {}", source)) from None
