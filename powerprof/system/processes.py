# SPDX-License-Identifier: Apache-2.0
"""The processes of this host: names, language run-times, and owners with the reasons against trust in them.

Any account can run a program called mariadbd. A database server is trusted without being named if its process and its
program belong to root, to us, or to the account of the server's package. The account of a web server is not trusted,
because an intruder there can start a server too.
"""

from __future__ import annotations

import os
import re
import stat

import msgspec

from powerprof.system.caller import account_of, is_system_account
from powerprof.system.files import try_text
from powerprof.system.foreign_text import printable, whole
from powerprof.system.paths import procfs
from powerprof.system.reader_process import FileStatus, Unreadable, account_ids, link_of, shared
from powerprof.system.server_names import is_server_program
from powerprof.system.tasks import clean, process_folder

# Accounts that packages and container images of MariaDB, MySQL and PostgreSQL create.
_SERVER_ACCOUNTS = frozenset(("mysql", "mariadb", "postgres", "postgresql", "pgsql"))
_MAX_ACCOUNT = 120


class ProcessOwner(msgspec.Struct, frozen=True):
    """The account and the program of a process, as text. `distrust` is the reason against trust, if any."""

    account: str
    program: str
    distrust: str | None


def owner_of(pid: int, *, any_service: bool = False) -> ProcessOwner:
    """Return the account and program of a process. An unknown owner is not trusted.

    With `any_service`, every system account is trusted, not only the accounts of database servers.
    """
    exe = process_folder(pid) / "exe"
    program = (link_of(exe) or "unknown").removesuffix(" (deleted)")
    uids = uids_of(pid)
    trusted = {0, os.geteuid(), *_read_server_uids(pid)}
    if any_service:
        trusted |= {uid for uid in uids if is_system_account(uid)}
    return ProcessOwner(
        account_name(max(uids, default=None)),
        printable(program)[:_MAX_ACCOUNT],
        _find_distrust(uids, shared().status(exe), trusted, any_service),
    )


def _find_distrust(uids: set[int], program: FileStatus | None, trusted: set[int], any_service: bool) -> str | None:
    if not uids or not uids <= trusted:
        return f"runs as {account_name(max(uids, default=None))}"
    if program is None:
        return f"its program belongs to {account_name(None)}"
    if program.uid not in trusted and not (any_service and is_system_account(program.uid)):
        return f"its program belongs to {account_name(program.uid)}"
    if program.mode & stat.S_IWOTH:
        return "every user may write to its program"
    if program.mode & stat.S_IWGRP and program.gid:
        return f"group {program.gid} may write to its program"
    return None


def is_server_account(pid: int, uid: int) -> bool:
    """Return whether this account may own the files of a trusted server."""
    return uid in (0, os.geteuid()) or uid in _read_server_uids(pid)


def select_trusted(pids: list[int]) -> list[int]:
    """Return the most trusted processes.

    Servers of their package's account come first, then services of a system account, then all.
    """
    for any_service in (False, True):
        if chosen := [pid for pid in pids if owner_of(pid, any_service=any_service).distrust is None]:
            return chosen
    return pids


def uids_of(pid: int) -> set[int]:
    """Return the accounts that a process acts as, each once."""
    return set(account_ids(pid))


def account_name(uid: int | None) -> str:
    """Return the name of an account, or its number."""
    if uid is None:
        return "an unknown account"
    account = account_of(uid)
    return printable(account.name)[:_MAX_ACCOUNT] if account is not None and account.name else str(uid)


def _read_server_uids(pid: int) -> set[int]:
    """Return the uids of server accounts in the passwd file of the process's root, or of this host.

    Only a file that root made, in a root and through mounts that only root can have made, names accounts.
    """
    data = shared().passwd(pid)
    if data is None:
        data = shared().passwd(os.getpid()) or b""
    fields = (line.split(b":", 3) for line in data.split(b"\n"))
    numbers = (
        whole(words[2]) for words in fields if len(words) == 4 and words[0].decode("latin-1") in _SERVER_ACCOUNTS
    )
    return {uid for uid in numbers if uid is not None}


def list_pids() -> list[int]:
    """Return all process ids of this host."""
    return sorted(int(entry.name) for entry in procfs().iterdir() if entry.name.isdigit())


def name_of(pid: int) -> str | None:
    """Return the program's file name, else its comm; None if the process has ended."""
    comm = try_text(procfs() / str(pid) / "comm")
    if comm is None:
        return None
    program = (link_of(process_folder(pid) / "exe") or "").removesuffix(" (deleted)").rpartition("/")[2]
    return clean(program or comm)


def label_of(pid: int) -> str:
    """Return the usual name of a process: its comm, or the program's name if the comm is its beginning.

    One file may be several programs: Debian's redis-server is a link to redis-check-rdb. A database server has the name
    of its program: mysqld is a link to mariadbd. Only its program makes a process a server, whatever its comm is.
    """
    comm = clean(try_text(procfs() / str(pid) / "comm") or "")
    program = name_of(pid) or ""
    has_name_of_program = program.startswith(comm) or is_server_program(program) or is_server_program(comm)
    return (program if has_name_of_program else comm) or str(pid)


# Libraries and program names of run-times. Go has no library, but a note at the start of each program.
_LIBRARIES = {"libjvm.so": "Java", "libnode.so": "Node", "libcoreclr.so": ".NET"}
_PROGRAM_NAMES = {"java": "Java", "node": "Node", "nodejs": "Node", "dotnet": ".NET", "beam.smp": "Erlang"}
_GO_NOTE = re.compile(rb"\x04\0\0\0.{4}\x04\0\0\0Go\0\0", re.DOTALL)
_HEAD_BYTES = 1 << 16


def language_of(pid: int) -> str | None:
    """Return the language run-time whose own timers run on a few threads of a process; None if there is none.

    Timer slack of such a thread delays the timers of the whole application.
    """
    exe = process_folder(pid) / "exe"
    program = (link_of(exe) or "").rpartition("/")[2]
    if program in _PROGRAM_NAMES:
        return _PROGRAM_NAMES[program]
    try:
        maps, _ = shared().maps(pid)
    except Unreadable:
        return None
    for library, name in _LIBRARIES.items():
        if b"/" + library.encode() in maps:
            return name
    return "Go" if _GO_NOTE.search(shared().read(pid, exe, _HEAD_BYTES) or b"") else None
