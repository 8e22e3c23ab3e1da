# SPDX-License-Identifier: Apache-2.0
"""The processes of this host: selection by pid, name, control group or unit, owners, sockets, and roles."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from powerprof.system.caller import account_of, is_system_account
from powerprof.system.cgroups import groups_below, is_made_by_root, unit_of
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import printable, read_fields, try_text, whole
from powerprof.system.paths import procfs
from powerprof.system.reader_process import FileStatus, Unreadable, account_ids, link_of, shared
from powerprof.system.tasks import clean, has_ended, is_ended, look_up, process_folder

# Listening unix sockets and TCP ports. psutil reads only our own network namespace, and a server may be in a container.

_UNIX_LISTENING = "00010000"  # __SO_ACCEPTCON, include/uapi/linux/net.h
_TCP_LISTENING = "0A"  # TCP_LISTEN, include/net/tcp_states.h
_MAX_LISTENERS = 3
_MAX_PATH = 60


def _socket_inodes(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open; empty if they are not readable."""
    inodes = set()
    try:
        for entry in (process_folder(pid) / "fd").iterdir():
            if (target := link_of(entry) or "").startswith("socket:["):
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
_PASSWD_BYTES = 1 << 20
_MAX_ACCOUNT = 120


@dataclass(frozen=True)
class ProcessOwner:
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
    """Return the uids of server accounts in the passwd file of the process's root, if only root can write it."""
    root = process_folder(pid) / "root"
    passwd = Path("/etc/passwd")
    opened = shared().open_in_root(pid, root, str(passwd))
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


# Distributions renamed the program. Users type either name.
_ALIASES = {"mysqld": ("mysqld", "mariadbd"), "mariadbd": ("mariadbd", "mysqld")}
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Target:
    """The processes to attribute to.

    Attributes:
        pids: the processes; empty for the whole system.
        label: the name of the target in reports.
        cgroup: the folder whose `cgroup.procs` is read again during the window.
        roots: processes whose descendants of the same name belong to the target, also future ones.
        names: the names that the user typed.
    """

    pids: tuple[int, ...]
    label: str
    system: bool = False
    cgroup: Path | None = None
    roots: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def members(self) -> list[int]:
        """Return the present processes of a target that other processes may join."""
        if self.cgroup is not None:
            return cgroup_pids(self.cgroup)
        return [pid for root in self.roots for pid in _list_family(root)]


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


def _choose_label(pid: int) -> str:
    """Return the usual name of a process: its comm, or the program's name if the comm is its beginning.

    One file may be several programs: Debian's redis-server is a link to redis-check-rdb.
    """
    comm = clean(try_text(procfs() / str(pid) / "comm") or "")
    program = name_of(pid) or ""
    return (program if program.startswith(comm) else comm) or str(pid)


def _find_named(name: str) -> list[int]:
    aliases = _ALIASES.get(name, (name,))
    pids = []
    for pid in list_pids():
        if pid == os.getpid():
            continue
        comm = try_text(procfs() / str(pid) / "comm")
        is_match = comm is not None and (comm in {full_name[:15] for full_name in aliases} or name_of(pid) in aliases)
        if is_match and not has_ended(pid):
            pids.append(pid)
    return pids


def describe(pid: int) -> str:
    """Return number, program and listening sockets, which distinguish several servers of one name."""
    # The command line is in the memory of the process, which could block a reader.
    shown = clean(link_of(process_folder(pid) / "exe") or "")[:60]
    reached = describe_listeners(pid)
    return f"{pid} ({shown or name_of(pid) or 'gone'}{f'; {reached}' if reached else ''})"


def _read_status(pid: int) -> dict[str, str]:
    return read_fields(procfs() / str(pid) / "status")


def _list_family(root: int) -> list[int]:
    """Return a process and its descendants of the same name: a server with several processes (PostgreSQL, nginx)."""
    name, members, pending = name_of(root), [], [root]
    while pending:
        pid = pending.pop()
        if name_of(pid) != name:
            continue
        members.append(pid)
        for entry in (procfs() / str(pid) / "task").glob("*/children"):
            pending += [int(word) for word in (try_text(entry) or "").split()]
    return sorted(members)


def resolve_family(pid: int) -> Target:
    """Return the whole server of one of its processes: its first process and all descendants of the same name."""
    root = find_first_process(pid)
    return Target(tuple(_list_family(root)), _choose_label(root), roots=(root,))


def find_first_process(pid: int) -> int:
    """Return the topmost ancestor with the same name; the process itself if its parent has another name."""
    name = name_of(pid)
    while (parent := int(_read_status(pid).get("PPid") or 0)) and name_of(parent) == name:
        pid = parent
    return pid


def _find_root(pids: Sequence[int]) -> int | None:
    """Return the process that started all the others, directly or indirectly; None if there is none.

    Processes that end during the search are ignored: while one is reaped, the kernel names 0 as its parent.
    """
    parents = {pid: int(status["PPid"]) for pid in pids if not is_ended(status := _read_status(pid))}
    roots = [pid for pid, parent in parents.items() if parent not in parents]
    return roots[0] if len(roots) == 1 else None


def may_be_forged(word: str) -> bool:
    """Return whether only processes of people's accounts have this name.

    Then the service of this name has ended, or has not started.
    """
    pids = _find_named(word) if whole(word) is None else []
    return bool(pids) and all(owner_of(pid, any_service=True).distrust is not None for pid in pids)


def _find_processes(word: str) -> tuple[list[int], list[int]]:
    """Return the processes that a word selects and, for a name, the process that started the others."""
    pid = whole(word)
    if pid is not None:
        if pid <= 0 or not (procfs() / word).is_dir():
            raise UsageError(f"--pid {word}: no process has this id", "ps -e lists them")
        status = _read_status(pid)
        if has_ended(pid):
            raise UsageError(
                f"--pid {word}: the process has ended (a zombie that its parent has not reaped)", "ps -e lists them"
            )
        _refuse_kernel_thread(pid, word)
        return [int(status.get("Tgid") or pid)], []
    if not word or word.startswith("-"):
        raise UsageError(f"--pid {word!r} is not a process id or name", "such as 1234 or mysqld")
    pids = _find_named(word)
    if not pids:
        raise UsageError(f"--pid {word}: no process is called {word}", "ps -e lists them; --pid takes ids and names")
    root = _find_root(pids)
    if len(pids) > 1 and root is None:
        # Any account can run a process of that name. Services are preferred.
        pids = select_trusted(pids)
        root = _find_root(pids)
    if len(pids) > 1 and root is None:
        listed = "; ".join(describe(pid) for pid in pids[:8])
        raise UsageError(
            f"--pid {word}: {len(pids)} processes are called {word}: {listed}", "choose with --pid ID[,ID…]"
        )
    _refuse_kernel_thread(pids[0], word)
    return pids, [] if root is None else [root]


def _refuse_kernel_thread(pid: int, word: str) -> None:
    if look_up(pid).is_kernel:
        raise UsageError(
            f"--pid {word}: {pid} ({name_of(pid)}) is a kernel thread without functions of a program",
            "powerprof idle names the work of kernel threads",
        )


def _list_hierarchies() -> list[Path]:
    """Return the folders of the hierarchies of control groups: the unified one, then systemd's, then the others."""
    if (_CGROUPS / "cgroup.procs").is_file():
        return [_CGROUPS]
    first = [_CGROUPS / "unified", _CGROUPS / "systemd"]
    others = sorted(set(_CGROUPS.iterdir()) - set(first)) if _CGROUPS.is_dir() else []
    return [folder for folder in [*first, *others] if (folder / "cgroup.procs").is_file()]


def _find_cgroup(name: str) -> Path:
    """Return the folder of a control group by its path, or by the name of its unit. Raises UsageError.

    Any user can give a unit the name of a system service: groups that only root can make are preferred.
    """
    roots = _list_hierarchies()
    direct = [Path(name)] if name.startswith("/") else []
    for candidate in [*direct, *(root / name.lstrip("/") for root in roots)]:
        if (candidate / "cgroup.procs").is_file():
            return candidate
    folders: dict[str, Path] = {}
    for root in roots:
        for path, _ in groups_below(root):
            folder = Path(f"{root}{path}")
            # If a group is in several hierarchies, perhaps only one has its processes.
            if folder.name in (name, f"{name}.service") and (path not in folders or not cgroup_pids(folders[path])):
                folders[path] = folder
    matches = [path for path in folders if is_made_by_root(path)] or list(folders)
    if len(matches) > 1:
        listed = ", ".join(printable(path) for path in matches[:8])
        raise UsageError(
            f"--cgroup {name}: {len(matches)} control groups are called {name}: {listed}",
            f"choose one by its path: --cgroup {printable(matches[0])}",
        )
    if not matches:
        raise UsageError(
            f"--cgroup {name}: no such cgroup or unit", "name a path below /sys/fs/cgroup, or a systemd unit"
        )
    return folders[matches[0]]


def _label_group(folder: Path) -> str:
    """Return the name of a control group, with its user or unit if others than root can make it."""
    name, unit = printable(folder.name), unit_of(str(folder), {})
    return name if is_made_by_root(str(folder)) else unit if unit.startswith(name) else f"{name} ({unit})"


def cgroup_pids(folder: Path) -> list[int]:
    """Return the processes of a control group and those below it; none if it was removed."""
    pids: set[int] = set()
    for path, _ in groups_below(folder):
        text = try_text(Path(f"{folder}{path}") / "cgroup.procs") or ""
        pids.update(int(line) for line in text.split() if line.isdigit())
    return sorted(pids - {0})


def resolve(words: Sequence[str], *, cgroup: str | None = None, system: bool = False) -> Target:
    """Return the target of a command line: pids or names, a control group or unit, or the whole system.

    Raise UsageError unless exactly one kind is given, and for unknown or ambiguous names.
    """
    kinds = sum((bool(words), cgroup is not None, system))
    if kinds != 1:
        raise UsageError(
            "no target was named" if kinds == 0 else "--pid, --cgroup and --system exclude each other",
            "add --pid ID|NAME[,…], --cgroup PATH|UNIT or --system",
        )
    if system:
        return Target((), "this system", system=True)
    if cgroup is not None:
        folder = _find_cgroup(cgroup)
        pids = cgroup_pids(folder)
        if not pids:
            raise PowerprofError(
                f"--cgroup {cgroup}: {folder} has no processes", "systemctl status shows if the unit is running"
            )
        return Target(tuple(pids), _label_group(folder), cgroup=folder)
    parts = [part.strip() for word in words for part in word.split(",")]
    selected = [_find_processes(part) for part in parts]
    unique = tuple(dict.fromkeys(pid for pids, _ in selected for pid in pids))
    roots = tuple(root for _, roots in selected for root in roots)
    if os.getpid() in unique:
        raise UsageError("powerprof cannot trace itself", "every report states the cost of powerprof")
    names = tuple(part for part in parts if whole(part) is None)
    return Target(unique, ", ".join(dict.fromkeys(map(_choose_label, unique))), roots=roots, names=names)


def refresh_target(target: Target) -> Target:
    """Return the target with the present processes of its names if one has ended, such as a restarted server.

    Return the same object if nothing has changed, or if no process or too many processes have a name now.
    """
    if not target.names or not any(map(has_ended, target.roots or target.pids)):
        return target
    pids_of_names, roots = list[int](), list[int]()
    kept = [pid for pid in target.pids if not has_ended(pid)]
    for name in target.names:
        try:
            pids, root = _find_processes(name)
            pids_of_names, roots = pids_of_names + pids, roots + root
        except UsageError:
            # The ended process stays, so that the next call searches for this name again.
            kept = list(target.pids)
    unique = tuple(dict.fromkeys([*kept, *pids_of_names]))
    if unique == target.pids:
        return target
    # The ended process of a name without a new process stays, as above.
    roots += [root for root in target.roots if root in unique and root not in roots]
    return replace(target, pids=unique, roots=tuple(roots))


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
    line = shared().read(pid, process_folder(pid) / "cmdline", _LIMIT_BYTES)
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
