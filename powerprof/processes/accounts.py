# SPDX-License-Identifier: Apache-2.0
"""Which account runs a process, and whether an ordinary account can have put the process there.

Any account may run a program called mariadbd. A database server is trusted without being named if its process and its
program belong to root, to us, or to the account of the server's package. The account of a web server is not
trusted: an intruder there can start a server as well.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths
from powerprof.caller import account_of, is_system_account
from powerprof.files import read_fields
from powerprof.processes.reader_process import FileStatus, link_of, shared
from powerprof.untrusted import printable, whole

# Accounts that packages and container images of MariaDB, MySQL and PostgreSQL make.
_SERVER_ACCOUNTS = frozenset(("mysql", "mariadb", "postgres", "postgresql", "pgsql"))
_PASSWD_BYTES = 1 << 20
_MOST_NAME = 120


@dataclass(frozen=True)
class ProcessOwner:
    """The account and the program of a process, as they are shown; `distrust` is the reason not to trust it, if any."""

    account: str
    program: str
    distrust: str | None


def owner_of(pid: int, *, any_service: bool = False) -> ProcessOwner:
    """Return the account and program of a process. An unknown owner is not trusted.

    `any_service`: every system account is trusted, and not only those of database servers.
    """
    exe = paths.procfs() / str(pid) / "exe"
    program = (link_of(exe) or "unknown").removesuffix(" (deleted)")
    uids = uids_of(pid)
    trusted = {0, os.geteuid(), *_server_uids(pid)}
    if any_service:
        trusted |= {uid for uid in uids if is_system_account(uid)}
    return ProcessOwner(
        account_name(max(uids, default=None)),
        printable(program)[:_MOST_NAME],
        _distrust(uids, shared().status(exe), trusted, any_service),
    )


def _distrust(uids: set[int], program: FileStatus | None, trusted: set[int], any_service: bool) -> str | None:
    if not uids or not uids <= trusted:
        return f"runs as {account_name(max(uids, default=None))}"
    if program is None:
        return f"its program belongs to {account_name(None)}"
    if program.uid not in trusted and not (any_service and is_system_account(program.uid)):
        return f"its program belongs to {account_name(program.uid)}"
    if program.mode & stat.S_IWOTH:
        return "anybody may write to its program"
    if program.mode & stat.S_IWGRP and program.gid:
        return f"group {program.gid} may write to its program"
    return None


def is_servers_account(pid: int, uid: int) -> bool:
    """Return whether this account may own the files of a trusted server."""
    return uid in (0, os.geteuid()) or uid in _server_uids(pid)


def most_trusted(pids: list[int]) -> list[int]:
    """Return the most trusted of some processes: servers of their package's account, else services of a system
    account, else all."""
    for any_service in (False, True):
        if chosen := [pid for pid in pids if owner_of(pid, any_service=any_service).distrust is None]:
            return chosen
    return pids


def uids_of(pid: int) -> set[int]:
    """The accounts that a process acts as: real, effective, saved and of its file accesses."""
    # Of /proc/PID itself root is the owner if the program may not be read.
    words = read_fields(paths.procfs() / str(pid) / "status").get("Uid", "").split()
    return {uid for word in words if (uid := whole(word)) is not None}


def account_name(uid: int | None) -> str:
    """The name of an account, or its number."""
    if uid is None:
        return "an unknown account"
    known = account_of(uid)
    return printable(known.name)[:_MOST_NAME] if known is not None and known.name else str(uid)


def _server_uids(pid: int) -> set[int]:
    """The numbers of a server's accounts by the passwd file of the process's own root, if only root can write it."""
    place = paths.procfs() / str(pid) / "root"
    passwd = Path("/etc/passwd")
    opened = shared().open_in_root(pid, place, str(passwd))
    if isinstance(opened, str):
        return set()
    with opened:
        if opened.is_copy or opened.uid or opened.mode & 0o022:
            return set()
        data = os.pread(opened.fd, _PASSWD_BYTES, 0)
    fields = (line.split(b":", 3) for line in data.split(b"\n"))
    numbers = (
        whole(words[2]) for words in fields if len(words) == 4 and words[0].decode("latin-1") in _SERVER_ACCOUNTS
    )
    return {uid for uid in numbers if uid is not None}
