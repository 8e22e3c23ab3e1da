# SPDX-License-Identifier: Apache-2.0
"""The only starter of programs that work for a workload: servers, load clients and their helpers.

Such a program is never root. It has only the files and the network that its work needs.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import msgspec

from powerprof.system import programs
from powerprof.system.caller import HostUser, account_of, unprivileged
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.programs import Finished
from powerprof.system.sandbox import Confinement

# Names of accounts and hosts, the time zone, certificates, and the program choices of Debian and Fedora.
_HOST = (
    *("alternatives", "ca-certificates", "crypto-policies", "gai.conf", "group", "host.conf", "hosts", "ld.so.cache"),
    *("ld.so.conf", "localtime", "nsswitch.conf", "passwd", "pki", "protocols", "resolv.conf", "services", "ssl"),
    "timezone",
)
_PROGRAM_FOLDERS, _BESIDE = ("bin", "sbin", "libexec"), ("lib", "lib64", "share")


def find_server_account() -> tuple[int, int] | None:
    """Return user and group id of servers if powerprof is root: mysql if the host has it, else the caller, else nobody.

    Without root servers run as powerprof's own account, and the result is None. A server is never root: statements of a
    workload may do to files whatever the server's account may.
    """
    owner = find_server_owner()
    return (owner.uid, owner.gid) if owner is not None else None


def find_server_owner() -> HostUser | None:
    """Return the account of `find_server_account` with everything that the host knows about it."""
    if os.geteuid() != 0:
        return None
    try:
        return account_of(pwd.getpwnam("mysql").pw_uid)
    except KeyError:
        return unprivileged()


def account_name(owner: tuple[int, int]) -> str:
    """Return the account's name, or its number if it has no name."""
    known = account_of(owner[0])
    return str(known.name if known else owner[0])


class Sandbox(msgspec.Struct, frozen=True):
    """The account, files and network of one program.

    Attributes:
        folder: The only folder that it may change.
        reads: Files that it may read besides the system's programs and libraries and its own program.
        account: User of this host who logs in to a given server; None for the account of private servers.
        root: Folder with the `usr` of another release.
        namespaces: Network namespaces that it joins.
        connects: TCP ports that it may connect to without namespaces; None for all.
        binds: TCP ports that it may listen on without namespaces. Without any port it has no network.
    """

    folder: Path | None = None
    reads: tuple[Path, ...] = ()
    account: HostUser | None = None
    root: Path | None = None
    namespaces: tuple[int, ...] = ()
    connects: tuple[int, ...] | None = ()
    binds: tuple[int, ...] = ()


def choose_user(account: HostUser | None) -> tuple[int, int] | None:
    """Return user and group id for programs that log in for `account`; None if powerprof is not root.

    Raises CapabilityError if root is the only account.
    """
    if os.geteuid() != 0:
        return None
    owner = account or find_server_owner()
    if owner is None or owner.uid == 0:
        raise CapabilityError("no account but root could run load clients and servers", "adduser --system mysql")
    return owner.uid, owner.gid


def start(
    argv: Sequence[str | Path],
    sandbox: Sandbox,
    *,
    output: int | IO[Any],
    stdin: int = subprocess.DEVNULL,
    env: Mapping[str, str],
    place: Path | None = None,
    affinity: Sequence[int] | None = None,
    mark: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in `place` that writes stdout and stderr to `output` and dies with powerprof.

    `mark` is that of its run tree, which ends the processes that it leaves.
    Raises CapabilityError, and PowerprofError if it cannot be started.
    """
    return programs.start(
        argv,
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=stdin,
        env=env,
        cwd=place,
        affinity=affinity,
        mark=mark,
        user=choose_user(sandbox.account),
        confinement=_confinement(argv[0], sandbox, place),
    )


def run(
    argv: Sequence[str | Path],
    sandbox: Sandbox,
    *,
    timeout_s: float,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    place: Path | None = None,
    mark: int | None = None,
) -> Finished:
    """Run a program of a run tree to its end.

    Raise CapabilityError, and PowerprofError if it cannot run or takes too long.
    """
    return programs.run(
        argv,
        timeout_s=timeout_s,
        stdin=stdin,
        env=env,
        cwd=place,
        check=False,
        mark=mark,
        user=choose_user(sandbox.account),
        confinement=_confinement(argv[0], sandbox, place),
    )


def describe_gap() -> str | None:
    """Return the gaps of the sandbox on this host in one sentence; None if it is complete."""
    if has_namespaces():
        return None
    return (
        "this host gives powerprof no namespaces: programs of workloads can connect to other unix sockets, send UDP, "
        "and, before Linux 6.7, use TCP"
    )


@cache
def has_namespaces() -> bool:
    """Return whether programs can have private namespaces on this host. The result of one try is cached."""
    try:
        programs.run(["true"], user=choose_user(None), confinement=Confinement(no_network=True), check=False)
    except PowerprofError:
        return False
    return True


def _confinement(program: str | Path, sandbox: Sandbox, place: Path | None) -> Confinement:
    # A program of another release uses its own file system and no file of this host.
    host_files: tuple[Path, ...] = ()
    if sandbox.root is None:
        etc = Path("/etc")
        host_files = (*(etc / name for name in _HOST), *etc.glob("java*"), *_program_folders(Path(program)))
    # Links are kept as named. A base directory / must not expose all files.
    named = [Path(os.path.abspath(path)) for path in sandbox.reads]  # noqa: PTH100
    can_isolate = has_namespaces()
    is_joined = bool(sandbox.namespaces)
    return Confinement(
        folder=sandbox.folder,
        reads=tuple(path for path in (*host_files, *named) if path != Path("/")),
        place=place,
        root=sandbox.root,
        view=can_isolate or sandbox.root is not None,
        namespaces=sandbox.namespaces,
        no_network=can_isolate and not is_joined and sandbox.connects == () and sandbox.binds == (),
        connects=None if is_joined else sandbox.connects,
        binds=None if is_joined else sandbox.binds,
    )


def _program_folders(program: Path) -> list[Path]:
    """Return the folder of a program with an absolute path, and the folders of its libraries and messages."""
    if not program.is_absolute():
        return []
    folder = program.parent
    return [folder, *(folder.with_name(name) for name in _BESIDE if folder.name in _PROGRAM_FOLDERS)]
