# SPDX-License-Identifier: Apache-2.0
"""The requests of the verbs about a target, and the steps that these verbs share.

If `settle` is set, the process does nothing else after the window, so it may give up its root privileges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import TypeVar

import msgspec

from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.model.records import Ended, Note, Notes
from powerprof.model.text import Say
from powerprof.system.errors import CapabilityError, PowerprofError, UnknownNameError, UsageError
from powerprof.system.processes import label_of, name_of
from powerprof.system.server_names import is_mysql_program, is_postgres_program
from powerprof.system.server_roles import read_roles
from powerprof.system.targets import ServerChoice, Target, TargetChoice, is_server, resolve_server, resolve_target
from powerprof.system.tasks import list_threads, look_up

Record = TypeVar("Record", bound=msgspec.Struct)
# Returns the server's names of its threads by thread id.
ReadThreadNames = Callable[[], Mapping[int, str]]
DTRACE_NOTE = "DTrace starts, counts for {:g} s, and ends in order: both take some seconds more"
_PAGE_KIB = 4
# A server has max_connections processes; any account can start many processes of that name.
_MOST_ROLES = 2000


class AttributeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `attribute`. Raises UsageError if the stack buffer is not a power of two.

    `every_period`: save every idle period, up to a limit, instead of a sample. `max_cost`: the bound of the cost as a
    share of the target's CPU time (`tracing.budget`); None: trace everything.
    """

    duration_s: float
    stack_buffer_kib: int = 16384
    every_period: bool = False
    max_cost: float | None = None
    energy: EnergyRequest = DEFAULT_REQUEST
    settle: bool = False

    def __post_init__(self) -> None:
        if self.stack_buffer_kib < _PAGE_KIB or self.stack_buffer_kib.bit_count() != 1:
            raise UsageError(f"--stack-buffer {self.stack_buffer_kib} is not a power of two", "for example 8192")

    @property
    def stack_pages(self) -> int:
        """The stack buffer in pages."""
        return self.stack_buffer_kib // _PAGE_KIB


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `profile`: the event and its frequency."""

    duration_s: float
    event: str = "cpu-clock"
    frequency_hz: int = 99
    max_cost: float | None = None
    settle: bool = False


class FunctionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `functions`: a glob or module:glob, and the greatest number of functions."""

    duration_s: float
    pattern: str
    limit: int = 200
    backend: str = "auto"
    unwinding_risk: bool = False
    max_cost: float | None = None
    settle: bool = False


class OffCpuRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `offcpu`."""

    duration_s: float
    backend: str = "auto"
    max_cost: float | None = None
    settle: bool = False


class SyscallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `syscalls`."""

    duration_s: float
    max_cost: float | None = None
    settle: bool = False


def choose_target(chosen: TargetChoice, server: ServerChoice, say: Say) -> Target:
    """Return the chosen processes; without a choice those of the server with this address.

    Raises UsageError, and PowerprofError if that server is not a process of this host.
    """
    is_named = chosen.pid or chosen.cgroup or chosen.system
    if is_named or all(option is None for option in (server.server, server.socket, server.defaults_file)):
        return resolve_target(chosen, say)
    from powerprof.database.given import given_server

    with given_server(server.server, server.socket, server.defaults_file) as given:
        if given.pid is None:
            raise PowerprofError(
                f"{given.login.text} is not a process of this host that can be found",
                "run powerprof on the server's own host, as root",
            )
        return resolve_server(str(given.pid), chosen.only, say)


def thread_name_reader(server: ServerChoice, target: Target) -> ReadThreadNames:
    """Return a function that reads the server's thread names; it returns none if no server answers.

    Raises UsageError if the chosen server cannot be used.
    """
    if any(option is not None for option in (server.server, server.socket, server.defaults_file)):
        from powerprof.database.given import given_server

        return given_server(server.server, server.socket, server.defaults_file).thread_names

    def read_local_names() -> Mapping[int, str]:
        names: dict[int, str] = {}
        for pid in filter(is_server, target.pids):
            from powerprof.database.local_login import read_local_thread_names

            names.update(read_local_thread_names(pid))
        return names

    return read_local_names


def read_names_after(read_names: ReadThreadNames, ended: Ended | None) -> Mapping[int, str]:
    """Return the server's thread names after a window. A server that ended or stopped in it would not answer."""
    return {} if ended is not None and ended.is_of_target else read_names()


def complete_thread_names(pids: Collection[int], names: dict[int, str]) -> tuple[dict[int, str], Notes]:
    """Return thread names with those of MariaDB or MySQL servers that report none, and a note about their source."""
    completed, named, without = dict(names), 0, 0
    for pid in pids:
        if is_mysql_program(label_of(pid)) and names.keys().isdisjoint(tids := list_threads(pid)):
            from powerprof.stacks.thread_starts import name_threads

            found = name_threads(pid)
            completed |= found
            named, without = named + len(found), without + len(set(tids) - found.keys() - {pid})
    return completed, [Note("threads_by_start", {"named": named, "unnamed": without})] if named + without else []


def name_postgres_processes(pids: Iterable[int], names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of threads with the roles of those processes of PostgreSQL that have no name yet.

    A target of the whole host or a control group has no server whose threads are read, and other processes can wake it.
    """
    servers = (pid for pid in sorted({*pids} - names.keys() - {0}) if is_postgres_program(name_of(pid)))
    return {**read_roles(islice(servers, _MOST_ROLES)), **names}


def read_own_names(tids: Iterable[int], server_names: Mapping[int, str]) -> dict[int, str]:
    """Return the server's names of threads, else their own by /proc; ended threads have none."""
    names = {tid: server_names.get(tid) or look_up(tid).comm for tid in sorted(tids) if tid}
    return {tid: name for tid, name in names.items() if name != f"thread {tid}"}


def check_backend(name: str) -> None:
    """Raise UsageError for an unknown backend."""
    if name not in ("auto", "bpf", "dtrace"):
        raise UnknownNameError(f"--backend {name} is not a choice", name, ("auto", "bpf", "dtrace"))


def has_dtrace() -> bool:
    """Return whether DTrace is installed."""
    from powerprof.tracing.dtrace import find_dtrace

    try:
        find_dtrace()
    except CapabilityError:
        return False
    return True


def only_pid(target: Target) -> int:
    """Return the one process of the target. Raises UsageError for several, which DTrace cannot probe."""
    if len(target.pids) != 1:
        raise UsageError("DTrace probes one process at a time", "choose it with --pid ID")
    return target.pids[0]


def label_record(record: Record, target: Target, started_at: str) -> Record:
    """Return the record with the target's label, the start and the host."""
    from powerprof.host.describe import host_record

    labelled: Record = msgspec.structs.replace(record, label=target.label, started_at=started_at, host=host_record())
    return labelled
