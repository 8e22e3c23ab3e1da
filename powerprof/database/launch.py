"""What is done before a private server runs: its directory, its account, its command line."""

from __future__ import annotations

import os
import pwd
import secrets
from pathlib import Path

from powerprof.database import builds, limits, template
from powerprof.database.base import Login
from powerprof.database.builds import ServerBuild
from powerprof.database.options import ServerOptions
from powerprof.database.runtree import RunTree, may_enter
from powerprof.errors import PowerprofError
from powerprof.files import reason_of

INIT_SQL = "init.sql"
ERROR_LOG = "error.log"
SOCKET = "mysqld.sock"
_USER = "powerprof"
# A redo log of the default size (96 MiB) and a temporary tablespace (12 MiB) are made at the start.
_ROOM_BYTES = 128 << 20
# sockaddr_un.sun_path is 108 bytes with the final NUL (unix(7)).
_LONGEST_SOCKET = 107
_SPARE_CONNECTIONS = 24


def server_account() -> tuple[int, int] | None:
    """Whom the server runs as when powerprof is root: user and group mysql where the host has them."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("mysql")
    except KeyError:
        return None
    return entry.pw_uid, entry.pw_gid


def prepare(build: ServerBuild, options: ServerOptions, tree: RunTree) -> Login:
    """Make the server's directory with data cloned from the template, and powerprof's account.

    The account has a random password even though the socket is private: a loopback port is open to every user
    of the host. A password in SQL that is read from a private file shows on no command line.
    Raises PowerprofError.
    """
    directory = tree.path / options.name
    socket = directory / SOCKET
    if len(os.fsencode(socket)) > _LONGEST_SOCKET:
        raise PowerprofError(f"{socket} is too long for a socket", "set TMPDIR to a shorter path")
    source = template.template_for(build, tree)
    template.need_room(tree.path, template.size_of(source) + _ROOM_BYTES)
    owner = server_account()
    if owner is not None:
        _let_pass(tree, owner)
    login = Login(user=_USER, password=secrets.token_urlsafe(24), socket=socket)
    try:
        directory.mkdir(0o700)
        (directory / "tmp").mkdir(0o700)
        _write_private(directory / INIT_SQL, builds.account_sql(build, login.user, login.password))
        _write_private(directory / ERROR_LOG, "")
        template.clone(source, directory / "data", owner)
        if owner is not None:
            for path in (directory / INIT_SQL, directory / ERROR_LOG, directory / "tmp", directory):
                os.chown(path, *owner, follow_symlinks=False)
    except OSError as error:
        raise PowerprofError(f"cannot prepare {directory} ({reason_of(error)})", template.room_hint(error)) from error
    return login


def _let_pass(tree: RunTree, owner: tuple[int, int]) -> None:
    """The server's user may pass through the tree and write only in its own part of it."""
    blocked = may_enter(tree.path.parent, *owner)
    if blocked is not None:
        raise PowerprofError(
            f"the user mysql, as whom the server runs, may not enter {blocked}",
            "set TMPDIR to a directory that it may enter, such as /tmp",
        )
    os.chown(tree.path, 0, owner[1])
    tree.path.chmod(0o710)


def _write_private(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)


def command(build: ServerBuild, options: ServerOptions, directory: Path, port: int | None) -> tuple[Path, list[str]]:
    """Where to start the server, and its command line: as built, but for what makes it private and what was asked."""
    place, binary, basedir = _reach(build, directory)
    words = [
        binary,
        "--no-defaults",
        f"--datadir={directory}/data",
        f"--socket={directory}/{SOCKET}",
        f"--pid-file={directory}/mysqld.pid",
        f"--tmpdir={directory / 'tmp'}",
        "--skip-name-resolve",
        f"--init-file={directory}/{INIT_SQL}",
    ]
    if build.names_threads:
        # Elsewhere it would cost memory and name no thread.
        words.append("--performance-schema=ON")
    if basedir is not None:
        words.append(f"--basedir={basedir}")
    if server_account() is None and os.geteuid() == 0:
        words.append("--user=root")
    words += ["--skip-networking"] if port is None else [f"--port={port}", f"--bind-address={options.address}"]
    if options.connections > 100:
        words += [
            f"--max-connections={options.connections + _SPARE_CONNECTIONS}",
            f"--open-files-limit={options.connections + limits.SPARE_FILES}",
            # Thousands arrive at once and none may be turned away (listen(2), net.core.somaxconn).
            "--back-log=1024",
        ]
    return place, words + builds.setting_arguments(options.settings)


def _reach(build: ServerBuild, directory: Path) -> tuple[Path, str, Path | None]:
    """Working directory, program and base directory, such that the server's user gets at them.

    A fetched server lies in a cache that only its owner may enter. The program is then started from its own
    directory, for which that does not matter, and keeps its name and path; its messages are copied.
    """
    account = server_account()
    if account is None or may_enter(build.binary.parent, *account) is None:
        return Path("/"), str(build.binary), build.basedir
    if build.basedir is None:
        return build.binary.parent, f"./{build.binary.name}", None
    near = directory / "base"
    if not near.exists():
        near.mkdir(0o700)
        template.clone(build.basedir / "share", near / "share", account)
        os.chown(near, *account)
    return build.binary.parent, f"./{build.binary.name}", near


def write_back(directory: Path) -> None:
    """Write the fresh data to disk now, so that the kernel does not do it while idling is measured."""
    for path in directory.rglob("*"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            os.fsync(handle)
        except OSError as error:
            raise PowerprofError(f"cannot write {path} ({reason_of(error)})", template.room_hint(error)) from error
        finally:
            os.close(handle)
