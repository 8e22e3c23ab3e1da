# SPDX-License-Identifier: Apache-2.0
"""The life of a target during a window: the window ends when its target ends, stops or becomes another program.

The kernel reports an end at once (pidfd, cgroup.events). A stop and an exec are seen by a look at /proc, because the
kernel reports them only to a parent or tracer.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

import msgspec

from powerprof.measure.window import WindowPart
from powerprof.model.records import Ended, EndOfTarget
from powerprof.system import descriptors, open_files, signals
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.files import try_text
from powerprof.system.paths import procfs
from powerprof.system.processes import label_of, name_of
from powerprof.system.reader_process import link_of
from powerprof.system.server_names import is_postgres_program
from powerprof.system.server_roles import read_roles
from powerprof.system.targets import Target, list_family
from powerprof.system.tasks import Stop, find_stop, process_folder

# Each look wakes a CPU. Verbs that sample or sum look as often as they do for processes that join the target.
LOOK_S, SHORT_LOOK_S = 1.0, 0.2
# The crash of one process ends this one, and so does a shutdown, shortly before the end of the first process.
_LASTING_ROLE = "checkpointer"
_SHUTDOWN_S = 2.0


class _Program(msgspec.Struct, frozen=True):
    """The program of a process: its usual name, its comm and the path of its file, if that may be read."""

    label: str
    comm: str | None
    file: str | None


class TargetEndedError(PowerprofError):
    """A target that ended, was stopped or changed before a window or during it."""

    def __init__(self, ended: Ended, when: str = "") -> None:
        super().__init__(f"{ended.why} {when}" if when else ended.message, hint_of(ended))
        self.ended = ended


def hint_of(ended: Ended) -> str | None:
    """Return the remedy for a target that ended a window."""
    again = "see its log; measure again when it is up" if ended.is_of_target else None
    return ended.resume_hint or again


def raise_ended(ended: Ended) -> NoReturn:
    """Raise the error of a window that ended early, if its part is of no use."""
    if ended.how == "interrupted":
        raise signals.interruption()
    raise TargetEndedError(ended)


class TargetLife(Closeable, WindowPart):
    """Watches the processes of a target while windows measure it. The whole system never ends.

    The first processes of a target count, because PostgreSQL's backends come and go. A control group ends with its last
    process.
    """

    def __init__(self, target: Target, look_s: float = LOOK_S) -> None:
        first = () if target.system or target.cgroup is not None else target.roots or target.pids
        self._target, self._look_s = target, look_s if first or target.cgroup is not None else math.inf
        self._programs = {pid: _read_program(pid) for pid in first}
        self._poll = select.epoll()
        self._descriptors: dict[int, int] = {}
        self._group = -1
        self._lasting = dict[int, int]()
        self._began_s: float | None = None
        self._seen: tuple[EndOfTarget, str, int] | None = None
        self._after_s: float | None = None
        try:
            self._watch_ends()
        except BaseException:
            self.close()
            raise

    def _watch_ends(self) -> None:
        open_files.allow(open_files.count_needed() + 2 * len(self._programs))
        for pid in self._programs:
            self._watch(pid)
        for root in self._target.roots:
            for pid in _find_lasting(root):
                self._watch(pid)
                self._lasting[pid] = root
        if self._target.cgroup is not None:
            with suppress(OSError):  # cgroup v1 has no such file
                self._group = os.open(self._target.cgroup / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
                self._poll.register(self._group, select.EPOLLPRI)

    def _watch(self, pid: int) -> None:
        """Let the window wake when a process ends. A pidfd never means another process with the same number."""
        with suppress(ProcessLookupError):
            self._descriptors[pid] = os.pidfd_open(pid)
            self._poll.register(self._descriptors[pid], select.EPOLLIN)

    def __exit__(self, *raised: object) -> None:
        """Close. The end of the target explains every failure except those of the command line and of this host."""
        try:
            error = raised[1]
            is_final = isinstance(error, UsageError | CapabilityError | TargetEndedError)
            if isinstance(error, PowerprofError) and not is_final:
                self.check()
        finally:
            self.close()

    def check(self) -> None:
        """Raise TargetEndedError if the target has ended, was stopped or changed."""
        self.read()
        if (ended := self.early_end) is not None:
            raise TargetEndedError(ended)

    def close(self) -> None:
        for descriptor in (*self._descriptors.values(), self._group):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptors, self._group = {}, -1
        self._poll.close()

    @property
    def wake_descriptor(self) -> int | None:
        return self._poll.fileno()

    @property
    def read_interval_s(self) -> float:
        return self._look_s

    @property
    def is_over(self) -> bool:
        return self._seen is not None

    @property
    def early_end(self) -> Ended | None:
        return None if self._seen is None else self._word_end(*self._seen)

    def prepare(self) -> None:
        """Raise PowerprofError if the target ended or stopped before the window."""
        self._seen = None
        self.read()
        if (end := self.early_end) is not None:
            raise TargetEndedError(end, "before the window began")

    def begin(self) -> None:
        self._began_s = time.monotonic()

    def read(self) -> None:
        """Look whether the target lives, runs, and is the same program."""
        if self._seen is None:
            self._seen = self._look()
            self._after_s = None if self._began_s is None else time.monotonic() - self._began_s

    def end(self) -> None:
        self.read()
        self._began_s = None

    def _look(self) -> tuple[EndOfTarget, str, int] | None:
        if self._target.cgroup is not None:
            return self._look_at_group()
        ready = {descriptor for descriptor, _ in self._poll.poll(0)}
        ended = {pid for pid, descriptor in self._descriptors.items() if descriptor in ready}
        for pid, program in self._programs.items():
            if pid in ended or pid not in self._descriptors:
                return "target_ended", "ended", pid
            if (stop := find_stop(pid)) is not None:
                return _name_stop(stop), f"was {stop.how}", pid
            # A thread may choose its comm, and a file that was moved has another path. Only an exec changes both.
            if _read_comm(pid) != program.comm and (now := _read_program(pid)).file != program.file:
                return "target_replaced", f"executed another program, {now.label}", pid
        if lost := ended & self._lasting.keys():
            return "target_restarted", "restarted all its processes", self._lasting[min(lost)]
        return None

    def _look_at_group(self) -> tuple[EndOfTarget, str, int] | None:
        if self._group >= 0:
            os.pread(self._group, 4096, 0)  # poll reports the changes since the last read
        pids = self._target.members()
        if not pids:
            return "target_ended", "has no processes any more", 0
        stops = [stop for stop in map(find_stop, pids) if stop is not None]
        if len(stops) == len(pids):
            return _name_stop(stops[0]), f"was {stops[0].how}", pids[0]
        return None

    def _word_end(self, how: EndOfTarget, what: str, pid: int) -> Ended:
        if pid in self._lasting.values() and how == "target_restarted" and self._ends_soon(pid):
            # A shutdown of PostgreSQL ends its helpers first.
            how, what = "target_ended", "ended"
        program = self._programs.get(pid)
        name = self._target.label if program is None else program.label
        shown = name if program is None or name == str(pid) else f"{name} ({pid})"
        return Ended(how, f"{shown} {what}", after_s=self._after_s, pid=pid or None)

    def _ends_soon(self, pid: int) -> bool:
        descriptor = self._descriptors.get(pid)
        return descriptor is None or bool(descriptors.readable([descriptor], _SHUTDOWN_S))


def _name_stop(stop: Stop) -> EndOfTarget:
    return "target_frozen" if stop.is_frozen else "target_stopped"


def _read_program(pid: int) -> _Program:
    file = link_of(process_folder(pid) / "exe")
    return _Program(label_of(pid), _read_comm(pid), None if file is None else file.removesuffix(" (deleted)"))


def _read_comm(pid: int) -> str | None:
    return try_text(procfs() / str(pid) / "comm")


def _find_lasting(root: int) -> Iterator[int]:
    """Yield the helper processes that live as long as their PostgreSQL server."""
    if is_postgres_program(name_of(root) or ""):
        yield from (pid for pid, role in read_roles(list_family(root)).items() if role == _LASTING_ROLE)
