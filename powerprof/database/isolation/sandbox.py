# SPDX-License-Identifier: Apache-2.0
"""Start the programs that work for a workload: servers, load clients, and their helpers. No other module starts them.

Such a program is never root, and has the files and the network that its work needs and no others.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from powerprof.system import programs
from powerprof.system.caller import HostUser, account_of, unprivileged
from powerprof.system.child import Confinement
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.programs import Finished

# Whom private servers run as.


def find_server_account() -> tuple[int, int] | None:
    """User and group of servers when powerprof is root: mysql where the host has it, else the caller, else nobody.

    None where powerprof is not root: then servers are as powerprof is. A server is never root: what a workload's
    statements may do to files, the server's account may.
    """
    owner = find_server_owner()
    return (owner.uid, owner.gid) if owner is not None else None


def find_server_owner() -> HostUser | None:
    """As `server_account`, with all that the host knows of it."""
    if os.geteuid() != 0:
        return None
    try:
        return account_of(pwd.getpwnam("mysql").pw_uid)
    except KeyError:
        return unprivileged()


def account_name(owner: tuple[int, int]) -> str:
    """The account's name, or its number."""
    known = account_of(owner[0])
    return str(known.name if known else owner[0])


# Names of accounts and hosts, the time zone, certificates, and where Debian and Fedora keep choices of programs.
_HOST = (
    *("alternatives", "ca-certificates", "crypto-policies", "gai.conf", "group", "host.conf", "hosts", "ld.so.cache"),
    *("ld.so.conf", "localtime", "nsswitch.conf", "passwd", "pki", "protocols", "resolv.conf", "services", "ssl"),
    "timezone",
)
_PROGRAM_FOLDERS, _BESIDE = ("bin", "sbin", "libexec"), ("lib", "lib64", "share")


@dataclass(frozen=True)
class Sandbox:
    """The account, the files and the network of one program.

    It may change `folder` alone, and read the system's programs and libraries, its own program's and `reads`.
    `account` is the user of this host who logs in to a given server; None is the account of private servers. `root`
    holds the `usr` of another release. It joins the network `namespaces`; without them it may connect to the TCP ports
    `connects` (None: to all of them) and listen on `binds`, and has no network if there are no ports.
    """

    folder: Path | None = None
    reads: tuple[Path, ...] = ()
    account: HostUser | None = None
    root: Path | None = None
    namespaces: tuple[int, ...] = ()
    connects: tuple[int, ...] | None = ()
    binds: tuple[int, ...] = ()


def choose_user(account: HostUser | None) -> tuple[int, int] | None:
    """Return (uid, gid) of programs that log in for `account`; None if powerprof is not root: they are then its own.

    Raises CapabilityError if there is no account but root.
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
) -> subprocess.Popen[bytes]:
    """Start a program and write its stdout and stderr to `output`. It starts in `place` and dies with powerprof.

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
) -> Finished:
    """Run a program to its end. Raises CapabilityError, and PowerprofError if it cannot be run or takes too long."""
    return programs.run(
        argv,
        timeout_s=timeout_s,
        stdin=stdin,
        env=env,
        cwd=place,
        check=False,
        user=choose_user(sandbox.account),
        confinement=_confinement(argv[0], sandbox, place),
    )


def describe_gap() -> str | None:
    """Return the limits of the sandbox on this host, as a sentence; None if it is complete."""
    if has_namespaces():
        return None
    return (
        "this host gives powerprof no namespaces: programs of workloads can connect to other unix sockets, send UDP, "
        "and, before Linux 6.7, use TCP"
    )


@cache
def has_namespaces() -> bool:
    """Return whether this host lets programs have private namespaces. It is tried once."""
    try:
        programs.run(["true"], user=choose_user(None), confinement=Confinement(no_network=True), check=False)
    except PowerprofError:
        return False
    return True


def _confinement(program: str | Path, sandbox: Sandbox, place: Path | None) -> Confinement:
    # A program of another release needs no file of this host, and needs its own file system.
    own = (*_host_files(), *_program_folders(Path(program))) if sandbox.root is None else ()
    # Links stay as they are named. A base directory / must not show all files.
    named = [Path(os.path.abspath(path)) for path in sandbox.reads]  # noqa: PTH100
    alone = has_namespaces()
    joined = bool(sandbox.namespaces)
    return Confinement(
        folder=sandbox.folder,
        reads=tuple(path for path in (*own, *named) if path != Path("/")),
        place=place,
        root=sandbox.root,
        view=alone or sandbox.root is not None,
        namespaces=sandbox.namespaces,
        no_network=alone and not joined and sandbox.connects == () and sandbox.binds == (),
        connects=None if joined else sandbox.connects,
        binds=None if joined else sandbox.binds,
    )


def _host_files() -> list[Path]:
    etc = Path("/etc")
    return [*(etc / name for name in _HOST), *etc.glob("java*")]


def _program_folders(program: Path) -> list[Path]:
    """Return the folder of a program that is named by its path, and the folders of its libraries and messages."""
    if not program.is_absolute():
        return []
    folder = program.parent
    return [folder, *(folder.with_name(name) for name in _BESIDE if folder.name in _PROGRAM_FOLDERS)]
