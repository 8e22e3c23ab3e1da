# SPDX-License-Identifier: Apache-2.0
"""The target of a command: a server with its whole process family, a control group, or the whole host.

A server is one process, or a process with its descendants that run the same program (PostgreSQL, nginx). Every command
resolves its target here, so that a name, the number of a process and no target mean the same processes everywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from powerprof.system import paths
from powerprof.system.cgroups import groups_below, is_made_by_root, unit_of
from powerprof.system.errors import PowerprofError, SeveralServersError, UnknownNameError, UsageError
from powerprof.system.files import read_fields, try_text
from powerprof.system.foreign_text import printable, whole
from powerprof.system.next_steps import command_line
from powerprof.system.own_processes import is_own
from powerprof.system.paths import procfs
from powerprof.system.pid_namespaces import is_in_pid_namespace
from powerprof.system.processes import label_of, list_pids, name_of, owner_of, select_trusted
from powerprof.system.reader_process import link_of
from powerprof.system.server_names import is_postgres_program, is_server_program, is_starter, list_meant_programs
from powerprof.system.server_roles import read_titles
from powerprof.system.similar_names import find_similar
from powerprof.system.tasks import find_stop, has_ended, is_ended, list_threads, look_up, process_folder

_CGROUPS = Path("/sys/fs/cgroup")
# The folder of a private server (database.runtree), which its command line contains.
_PRIVATE_FOLDER = re.compile(r"/powerprof-[0-9a-f]{12}/")


class TargetChoice(Protocol):
    """The options that choose processes."""

    @property
    def pid(self) -> list[str] | None: ...
    @property
    def only(self) -> bool: ...
    @property
    def cgroup(self) -> str | None: ...
    @property
    def system(self) -> bool: ...


class ServerChoice(Protocol):
    """The options that choose an account of a server; one of this host is found without them."""

    @property
    def server(self) -> str | None: ...
    @property
    def socket(self) -> Path | None: ...
    @property
    def defaults_file(self) -> Path | None: ...


class TargetWords(msgspec.Struct, frozen=True):
    """A choice of processes by a command without all of these options."""

    pid: list[str] | None
    only: bool = False
    cgroup: str | None = None
    system: bool = False


class Target(msgspec.Struct, frozen=True):
    """The processes to attribute to.

    Attributes:
        pids: the processes; empty for the whole system.
        label: the name of the target in reports.
        cgroup: the folder whose `cgroup.procs` is read again during the window.
        roots: processes whose descendants of the same name belong to the target, also future ones.
        names: the names that the user typed.
        note: the reason for this choice, if the user did not name exactly these processes.
    """

    pids: tuple[int, ...]
    label: str
    system: bool = False
    cgroup: Path | None = None
    roots: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    note: str = ""

    @property
    def first(self) -> int:
        """The process that started the others."""
        return (self.roots or self.pids)[0]

    @property
    def find_members(self) -> Callable[[], list[int]] | None:
        """The function that lists the present processes; None if no other process may join."""
        return self.members if self.roots or self.cgroup is not None else None

    def members(self) -> list[int]:
        """Return the present processes of a target that other processes may join."""
        if self.cgroup is not None:
            return cgroup_pids(self.cgroup)
        return [pid for root in self.roots for pid in list_family(root)]


def _find_named(name: str) -> list[int]:
    """Return the processes with this name of a program or process."""
    aliases = list_meant_programs(name)
    pids = _find_called((name,)) if name not in aliases else []
    return pids or _find_called(aliases)


def _find_called(names: Sequence[str]) -> list[int]:
    comms = {full_name[:15] for full_name in names}
    return [pid for pid in list_pids() if not is_own(pid) and _is_called(pid, names, comms) and not has_ended(pid)]


def _is_called(pid: int, names: Sequence[str], comms: set[str]) -> bool:
    comm = try_text(procfs() / str(pid) / "comm")
    return comm is not None and (comm in comms or name_of(pid) in names)


def is_server(pid: int) -> bool:
    """Return whether a process is a running database server."""
    return is_server_program(name_of(pid)) and not has_ended(pid)


def is_private(pid: int) -> bool:
    """Return whether a server is a private one of powerprof: of this process or of another one."""
    return any(_PRIVATE_FOLDER.search(title) for title in read_titles([pid]).values())


def list_servers() -> list[int]:
    """Return the first process of each database server of this host, without powerprof's private servers."""
    pids = [pid for pid in list_pids() if is_server(pid)]
    return [root for root in find_roots(pids) if not is_private(root)]


def _read_status(pid: int) -> dict[str, str]:
    return read_fields(procfs() / str(pid) / "status")


def list_family(root: int) -> list[int]:
    """Return a process and its descendants of the same program: a server with several processes (PostgreSQL, nginx)."""
    program, members, pending = _find_program(root), [], [root]
    while pending:
        pid = pending.pop()
        if _find_program(pid) != program or is_own(pid):
            continue
        members.append(pid)
        pending += _list_children(pid)
    return sorted(members)


def _find_program(pid: int) -> str | None:
    """Return the path of the program, also of a renamed process; its comm if the path is not readable."""
    return link_of(process_folder(pid) / "exe") or try_text(procfs() / str(pid) / "comm")


def _find_first_process(pid: int) -> int:
    """Return the topmost ancestor with the same name; the process itself if its parent has another name."""
    program = _find_program(pid)
    while (parent := int(_read_status(pid).get("PPid") or 0)) and _find_program(parent) == program:
        pid = parent
    return pid


def find_roots(pids: Sequence[int]) -> list[int]:
    """Return the processes that no other one of `pids` started.

    Processes that end during the search are ignored: while one is reaped, the kernel names 0 as its parent.
    """
    parents = {pid: int(status["PPid"]) for pid in pids if not is_ended(status := _read_status(pid))}
    return [pid for pid, parent in parents.items() if parent not in parents]


def may_be_forged(word: str) -> bool:
    """Return whether only processes of people's accounts have this name.

    Then the service of this name has ended, or has not started.
    """
    pids = _find_named(word) if whole(word) is None else []
    return bool(pids) and all(owner_of(pid, any_service=True).distrust is not None for pid in pids)


def _find_root(word: str, only: bool) -> tuple[int, str]:
    """Return the first process of the server that a word selects, and the reason if the word is another process."""
    pid = whole(word)
    if pid is None:
        root, note = _find_root_by_name(word)
        return _find_server_of(root) if _is_starter(root) and not only else (root, note)
    if pid <= 0 or not (procfs() / word).is_dir():
        raise UsageError(f"--pid {word}: no process has this id", _list_hint())
    status = _read_status(pid)
    if has_ended(pid):
        raise UsageError(
            f"--pid {word}: the process has ended (a zombie that its parent has not reaped)", "ps -e lists them"
        )
    _refuse_kernel_thread(pid, word)
    pid = int(status.get("Tgid") or pid)
    return (pid, "") if only else _find_server_of(pid)


def _find_server_of(pid: int) -> tuple[int, str]:
    """Return the first process of the server of a backend or of a starting script, and the reason."""
    name = name_of(pid)
    root = _find_first_process(pid) if is_postgres_program(name) else pid
    started = [child for child in _list_children(pid) if is_server(child)] if _is_starter(pid) else []
    if len(started) == 1:
        root = started[0]
    if root == pid:
        return pid, ""
    what = f"process {pid} is part of" if not started else f"process {pid} started"
    return root, f"{what} the server {label_of(root)} ({root}); --only takes process {pid} alone"


def _is_starter(pid: int) -> bool:
    return is_starter(try_text(procfs() / str(pid) / "comm"))


def _list_children(pid: int) -> list[int]:
    folder = procfs() / str(pid) / "task"
    lines = [try_text(folder / str(tid) / "children") or "" for tid in list_threads(pid)]
    return [int(word) for line in lines for word in line.split()]


def _find_root_by_name(word: str) -> tuple[int, str]:
    if not word or word.startswith("-"):
        raise UsageError(f"--pid {word!r} is not a process id or name", "such as 1234 or mysqld")
    roots = find_roots(_find_named(word))
    public = [root for root in roots if not (is_server(root) and is_private(root))]
    if roots and not public:
        listed = ", ".join(map(str, roots[:8]))
        raise UsageError(
            f"--pid {word}: only private servers of powerprof have this name: {listed}", "choose one by its process id"
        )
    if not public:
        raise _explain_unknown_name(word)
    # Any account can run a process of that name. Services are preferred.
    trusted = select_trusted(public) if len(public) > 1 else public
    if len(trusted) > 1:
        # A child that ended after it was listed has no parent any more, and looks like a process of its own.
        trusted = [root for root in trusted if not has_ended(root)] or trusted
    if len(trusted) > 1:
        kind = "servers" if any(map(is_server, trusted)) else "processes"
        raise SeveralServersError(f"--pid {word}: {len(trusted)} {kind} are called {word}", trusted, word)
    root = trusted[0]
    _refuse_kernel_thread(root, word)
    left_out = [pid for pid in public if pid != root]
    note = f"--pid {word} selects the service {root}" if left_out else ""
    if left_out:
        note += f", not {left_out[0]}, which {owner_of(left_out[0]).distrust}"
    return root, note


def word_for(pid: int) -> str:
    """Return the name by which `--pid` selects a process also after its restart, or its id if there is no such name."""
    name = label_of(pid)
    try:
        selected, _ = _find_root_by_name(name)
    except SeveralServersError:
        return str(pid)
    except UsageError:
        return name  # a private server, or one that has just ended
    return name if selected == pid else str(pid)


def _explain_unknown_name(word: str) -> UsageError:
    """Return the error for a name without a process. The name may be a thread's."""
    for pid in list_pids():
        for tid in list_threads(pid):
            if tid != pid and (try_text(procfs() / str(pid) / "task" / str(tid) / "comm") or "") == word[:15]:
                return UsageError(
                    f"--pid {word}: no process is called {word}; it is a thread of {label_of(pid)} ({pid})",
                    f"choose the process: --pid {pid}",
                )
    visible = "visible " if _hides_processes() else ""
    names = {try_text(procfs() / str(pid) / "comm") or "": pid for pid in list_pids() if not is_own(pid)}
    # A name that another account chose is not proposed to root.
    trusted = [
        name
        for name in find_similar(word, names)
        if os.geteuid() or owner_of(names[name], any_service=True).distrust is None
    ]
    return UnknownNameError(f"--pid {word}: no {visible}process is called {word}", word, trusted, _list_hint())


def _list_hint() -> str:
    """Return the hint about the list of processes. With hidepid, other accounts' processes are missing in it."""
    if _hides_processes():
        return "/proc hides the processes of other accounts (hidepid): run as root"
    return "ps -e lists them; --pid takes ids and names"


def _hides_processes() -> bool:
    for line in (try_text(procfs() / "self/mounts") or "").splitlines() if os.geteuid() else ():
        words = line.split()
        if len(words) > 3 and words[1] == str(procfs()) and re.search(r"hidepid=(?!0|off)", words[3]):
            return True
    return False


def _refuse_kernel_thread(pid: int, word: str) -> None:
    if look_up(pid).is_kernel:
        raise UsageError(
            f"--pid {word}: {pid} ({name_of(pid)}) is a kernel thread without functions of a program",
            f"to see the work of kernel threads: {command_line('attribute --system')}",
        )


def _find_only_server() -> tuple[int, str]:
    """Return the only server of this host, and the reason. Raise UsageError for none and for several.

    A server of another person's account is listed, but it is never taken without its name.
    """
    roots = list_servers()
    if not roots:
        private = ", apart from powerprof's private servers" if any(map(is_server, list_pids())) else ""
        raise UsageError(
            f"no target was named, and no MariaDB, MySQL or PostgreSQL server was found on this host{private}",
            _list_hint() if _hides_processes() else "add --pid ID|NAME for another program",
        )
    trusted = [root for root in roots if os.geteuid() or owner_of(root, any_service=True).distrust is None]
    if len(trusted) != 1:
        kind = "server runs" if len(roots) == 1 else "servers run"
        raise SeveralServersError(f"no target was named, and {len(roots)} {kind} on this host", trusted or roots)
    note = f"{label_of(trusted[0])} ({trusted[0]}) is the only server of this host"
    return trusted[0], note if len(roots) == 1 else f"{note} under a service account"


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
        names = {Path(path).name for root in roots for path, _ in groups_below(root) if is_made_by_root(path)}
        hint = "name a path below /sys/fs/cgroup, or a systemd unit"
        raise UnknownNameError(f"--cgroup {name}: no such cgroup or unit", name, sorted(names), hint)
    return folders[matches[0]]


def _label_group(folder: Path) -> str:
    """Return the name of a control group, with its user or unit if others than root can make it."""
    name, unit = printable(folder.name), unit_of(str(folder), {})
    return name if is_made_by_root(str(folder)) else unit if unit.endswith(name) else f"{unit} ({name})"


def cgroup_pids(folder: Path) -> list[int]:
    """Return the processes of a control group and those below it; none if it was removed."""
    pids: set[int] = set()
    for path, _ in groups_below(folder):
        text = try_text(Path(f"{folder}{path}") / "cgroup.procs") or ""
        pids.update(int(line) for line in text.split() if line.isdigit())
    return sorted(pids - {0})


def check_only(pid: object, only: bool) -> None:
    """Raise UsageError for --only without --pid."""
    if only and not pid:
        raise UsageError("--only needs --pid", "add --pid ID|NAME")


def resolve_target(
    chosen: TargetChoice, say: Callable[[str], None], *, default_system: bool = False, may_be_stopped: bool = False
) -> Target:
    """Return the chosen processes of this host, and say which if the user did not name them.

    Without a choice it is the only server of this host; with `default_system` the whole host if no server runs.
    Raises UsageError, SeveralServersError, and PowerprofError for a recorded host, and for a target that a signal or a
    debugger has stopped: its figures would be those of an idle one. `may_be_stopped` permits it.
    """
    if not paths.is_this_host():
        raise PowerprofError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    words = tuple(chosen.pid or ())
    system = chosen.system or (default_system and not words and chosen.cgroup is None and not list_servers())
    try:
        target = resolve(words, cgroup=chosen.cgroup, system=system, only=chosen.only)
    except SeveralServersError as error:
        error.hint = f"{error.hint}, or all processes by --system" if default_system else error.hint
        raise
    stops = [] if may_be_stopped else [stop for stop in map(find_stop, target.pids) if stop is not None]
    if stops and len(stops) == len(target.pids):
        raise PowerprofError(f"{target.label} ({target.first}) was {stops[0].how}", f"{stops[0].remedy} resumes it")
    if target.note:
        say(target.note)
    return target


def resolve_server(pid: str | None, only: bool, say: Callable[[str], None], *, may_be_stopped: bool = False) -> Target:
    """Return the one server of --pid, or the only server of this host. Raises as `resolve_target`."""
    words = TargetWords(None if pid is None else [pid], only)
    target = resolve_target(words, say, may_be_stopped=may_be_stopped)
    if len(target.roots or target.pids) != 1:
        raise UsageError(f"--pid {pid}: one server at a time", "choose one process id or name")
    return target


def resolve(words: Sequence[str], *, cgroup: str | None = None, system: bool = False, only: bool = False) -> Target:
    """Return the target of a command line: pids or names, a control group or unit, or the whole system.

    A process includes its descendants of the same program, except with `only`. Without any of these it is the only
    server of this host. Raise UsageError for unknown names, and SeveralServersError for ambiguous ones.
    """
    if sum((bool(words), cgroup is not None, system)) > 1:
        raise UsageError("--pid, --cgroup and --system exclude each other", "use one of them")
    check_only(words, only)
    if system:
        return Target((), "this pid namespace" if is_in_pid_namespace() else "this system", system=True)
    if cgroup is not None:
        folder = _find_cgroup(cgroup)
        pids = cgroup_pids(folder)
        if not pids:
            raise PowerprofError(
                f"--cgroup {cgroup}: {folder} has no processes", "systemctl status shows if the unit is running"
            )
        return Target(tuple(pids), _label_group(folder), cgroup=folder)
    parts = [part.strip() for word in words for part in word.split(",")]
    if len(parts) > 1 and "" in parts:
        raise UsageError(f"--pid {','.join(words)} has an empty value", "such as 1234,mysqld")
    selected = [_find_root(part, only) for part in parts] if parts else [_find_only_server()]
    roots = tuple(dict.fromkeys(root for root, _ in selected))
    if any(map(is_own, roots)):
        raise UsageError("powerprof cannot trace itself", "every report states the cost of powerprof")
    label = ", ".join(dict.fromkeys(map(label_of, roots)))
    note = "; ".join(note for _, note in selected if note)
    names = tuple(part for part in parts if whole(part) is None)
    if only:
        return Target(roots, label, names=names, note=note)
    return Target(_list_families(roots), label, roots=roots, names=names, note=note)


def _list_families(roots: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(pid for root in roots for pid in (list_family(root) or [root])))


def refresh_target(target: Target) -> Target:
    """Return the target with the present processes of its names if one has ended, such as a restarted server.

    Return the same object if nothing has changed, or if no process or too many processes have a name now.
    """
    if not target.names or not any(map(has_ended, target.roots or target.pids)):
        return target
    roots = [root for root in target.roots or target.pids if not has_ended(root)]
    for name in target.names:
        try:
            roots.append(_find_root_by_name(name)[0])
        except UsageError:
            # The ended process stays, so that the next call searches for this name again.
            roots += target.roots or target.pids
    unique = tuple(dict.fromkeys(roots))
    if set(unique) == set(target.roots or target.pids):
        return target
    if not target.roots:
        return replace(target, pids=unique)
    return replace(target, pids=_list_families(unique), roots=unique)
