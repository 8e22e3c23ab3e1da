# SPDX-License-Identifier: Apache-2.0
"""The processes of this host: selection by pid, name, control group or unit, owners, sockets, and roles."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from powerprof.system.caller import account_of, is_system_account
from powerprof.system.files import printable, try_text, whole
from powerprof.system.paths import procfs
from powerprof.system.reader_process import FileStatus, Unreadable, account_ids, link_of, shared
from powerprof.system.tasks import clean, process_folder

# Listening unix sockets and TCP ports. psutil reads only our own network namespace, and a server may be in a container.

_UNIX_LISTENING = "00010000"  # __SO_ACCEPTCON, include/uapi/linux/net.h
_TCP_LISTENING = "0A"  # TCP_LISTEN, include/net/tcp_states.h
_MAX_LISTENERS = 3
# The first descriptors of a process. Listening sockets are opened early.
_MAX_OPEN_FILES = 20_000
_MAX_PATH = 60


def _socket_inodes(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open; empty if they are not readable."""
    inodes = set()
    try:
        with os.scandir(process_folder(pid) / "fd") as entries:
            for entry in islice(entries, _MAX_OPEN_FILES):
                if (target := link_of(entry.path) or "").startswith("socket:["):
                    inodes.add(target[8:-1])
    except OSError:
        return set()
    return inodes


def list_unix_sockets(pid: int) -> list[str]:
    """Return the paths of the unix sockets on which a process listens, in its own file system."""
    inodes = _socket_inodes(pid)
    sockets = []
    for line in (try_text(process_folder(pid) / "net/unix") or "").split("\n")[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[3] == _UNIX_LISTENING and words[6] in inodes and words[7].startswith("/"):
            sockets.append(words[7])
    return sockets


def list_tcp_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    inodes = _socket_inodes(pid)
    ports = set()
    for table in ("net/tcp", "net/tcp6"):
        for line in (try_text(process_folder(pid) / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _TCP_LISTENING and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


def describe_listeners(pid: int) -> str:
    """Return `port 3306, /run/mysqld/mysqld.sock`; empty if it does not listen or is not readable."""
    ports = [f"port {port}" for port in list_tcp_ports(pid)[:_MAX_LISTENERS]]
    sockets = [clean(str(Path(path)))[-_MAX_PATH:] for path in list_unix_sockets(pid)[:_MAX_LISTENERS]]
    return ", ".join([*ports, *sockets])


# The account of a process, and whether an ordinary account can have started the process.
#
# Any account can run a program called mariadbd. A database server is trusted without being named if its process and its
# program belong to root, to us, or to the account of the server's package. The account of a web server is not trusted,
# because an intruder there can start a server too.

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
    of its program: mysqld is a link to mariadbd.
    """
    comm = clean(try_text(procfs() / str(pid) / "comm") or "")
    program = name_of(pid) or ""
    return (program if program.startswith(comm) or is_server_name(program) else comm) or str(pid)


# Programs of database servers.

POSTGRES_PROGRAM = "postgres"
# mysqldump, mysqld_safe, mariadbd-safe and mysqld_exporter are not servers.
_SERVER_NAME = re.compile(r"(mysqld|mariadbd)(-(?!safe).*)?")


def is_server_name(program: str | None) -> bool:
    """Return whether a program name belongs to a MariaDB or MySQL server."""
    return _SERVER_NAME.fullmatch(program or "") is not None


# Roles of server processes. PostgreSQL's processes write theirs over their command lines.

_LIMIT_BYTES = 4096
_MAX_NAME = 128
# "postgres: 15/main: checkpointer", "postgres: app shop 10.0.0.7(5541) SELECT". The cluster's name is optional and
# distinguishes several servers (cluster_name, which Debian sets to VERSION/NAME).
_TITLE = re.compile(r"^postgres: (?:[^ :]+: )?(.*)$")
# A client's host has its port or is [local]. Extensions choose titles of any words: "pglogical apply 16384:2342".
_CLIENT = re.compile(r"^(\S+) (\S+) (?:\[local\]|(\S+?)\(\d+\))(?: .*)?$")
_BACKEND = "backend of "
_HELPERS = re.compile(
    r"^(logger|startup|checkpointer|background writer|walwriter|autovacuum|archiver|stats collector|logical replication"
    r"|walreceiver|walsender|parallel worker|io worker|slotsync worker|walsummarizer|bgworker|postmaster)"
)


def server_names(pids: Iterable[int]) -> dict[int, str]:
    """Return the role by process id: `checkpointer`, `backend of shop`. Processes without a title are left out."""
    return {pid: name for pid, title in read_titles(pids).items() if (name := parse_part(title))}


def read_titles(pids: Iterable[int]) -> dict[int, str]:
    """Return the titles of processes by id. Unreadable ones are left out."""
    titles = {pid: _read_command_line(pid) for pid in pids}
    return {pid: title for pid, title in titles.items() if title}


def parse_client(title: str) -> tuple[str, str | None] | None:
    """Return the account and host of a client's process from its title.

    None if it is not a client's process. The host is None for local connections.
    """
    match = _TITLE.match(" ".join(title.split()))
    client = None if match is None or _HELPERS.match(match[1]) else _CLIENT.match(match[1])
    if client is None:
        return None
    host = client[3]
    return printable(client[1])[:_MAX_NAME], printable(host)[:_MAX_NAME] if host else None


def parse_database(name: str) -> str | None:
    """Return the database in a name of a client's process from `server_names`; None for other names."""
    return name.removeprefix(_BACKEND) if name.startswith(_BACKEND) else None


def parse_part(title: str) -> str | None:
    """Return the role in a title; for a client's process the database, without account and statement."""
    match = _TITLE.match(" ".join(title.split()))
    if not match:
        return None
    part = match[1]
    helper = _HELPERS.match(part)
    client = None if helper else _CLIENT.match(part)
    name = f"{_BACKEND}{client[2]}" if client else re.sub(r" (for PID|waiting|recovering|streaming) .*$", "", part)
    return printable(name)[:_MAX_NAME] or None


def _read_command_line(pid: int) -> str | None:
    """Return the command line as text; None if the process blocks its reader.

    The text is in the memory of the process.
    """
    line = shared().proc_file(pid, "cmdline", _LIMIT_BYTES)
    return None if line is None else line.replace(b"\0", b" ").decode("utf-8", "replace")


# Language run-times, whose own timers run on a few of their threads.

# Libraries and program names of run-times. Go has no library, but a note at the start of each program.
_LIBRARIES = {"libjvm.so": "Java", "libnode.so": "Node", "libcoreclr.so": ".NET"}
_PROGRAM_NAMES = {"java": "Java", "node": "Node", "nodejs": "Node", "dotnet": ".NET", "beam.smp": "Erlang"}
_GO_NOTE = re.compile(rb"\x04\0\0\0.{4}\x04\0\0\0Go\0\0", re.DOTALL)
_HEAD_BYTES = 1 << 16


def language_of(pid: int) -> str | None:
    """Return the language run-time whose timers run on the threads of a process; None if there is none."""
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
