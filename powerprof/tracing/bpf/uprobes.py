# SPDX-License-Identifier: Apache-2.0
"""Attach BPF programs to functions of processes and to software events of perf, without tracefs.

One uprobe_multi link carries all functions of a file (Linux ≥ 6.6: attaching and detaching take milliseconds). On older
kernels, one event of the uprobe PMU is used per function and direction. Both name the file by a descriptor of
powerprof, so containers and deleted files work, and both pass the function's number to the program as a cookie.
Formats: perf_event_open(2), bpf(2) BPF_LINK_CREATE, include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from powerprof.measure.perf_events import set_program
from powerprof.system import open_files
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.tracing.bpf import detacher, syscalls
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.kernel_memory import KernelMemory
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.mapped_files import MappedFile, wait_until_free
from powerprof.tracing.bpf.uprobe_links import (
    EVERY_PROCESS,
    MULTI,
    MULTI_RETURN,
    Prelude,
    create_multi_link,
    has_multi,
    open_uprobe_event,
    read_event_type,
)

_NAMES = ("uprobe__entry", "uprobe__return", "uprobe__exit")


class Site(msgspec.Struct, frozen=True):
    """One function to probe: its offset in a file, and the number that the program gets for it.

    `exits`: file offsets of the instructions that leave it; None for a return probe, which changes the stack.
    `program`: the program that runs at the entry.
    """

    offset: int
    cookie: int
    exits: tuple[int, ...] | None = None
    program: str = _NAMES[0]


def choose_attach_type(*, multi: bool) -> int:
    """Return the attach type of uprobe functions: for links of many if the kernel has them, unless `multi` is False."""
    return MULTI if multi and has_multi() else 0


class Uprobes:
    """The entry, return and exit functions of a loaded object. Closing detaches everything.

    Before each change of a file's probes, the processes that map it are looked at (`mapped_files.py`).
    """

    def __init__(self, program: LoadedProgram, attach_type: int, btf: Btf) -> None:
        """Use the functions of `program`, which was loaded with `attach_type`. `btf`: the running kernel's types.

        Sites may only use functions that it has.
        """
        self._links: list[int] = []
        self._program, self._btf = program, btf
        self._fds = tuple(program.descriptor(name) if program.has(name) else -1 for name in _NAMES)
        self.multi = attach_type == MULTI
        self._memory: KernelMemory | None = None
        self._files: dict[int, MappedFile] = {}
        self._prelude = Prelude(multi=self.multi)
        # Whether the last `close` left the probes to another process.
        self.is_left = False

    @property
    def attached(self) -> bool:
        """Whether any place is probed."""
        return bool(self._links)

    def attach(
        self, file_fd: int, pid: int, sites: Sequence[Site], *, every_process: bool = False
    ) -> list[tuple[Site, str]]:
        """Probe the entries and exits of `sites` of an open file in a process, or in `every_process` that runs it.

        Returns the sites that the kernel refused, with the reason. Raises CapabilityError if no uprobe can be attached
        for want of privileges or kernel support, UnfitFileError if a process could stop the host meanwhile.
        """
        refused: list[tuple[Site, str]] = []
        if not sites:
            return refused
        if self._memory is None:
            self._memory = KernelMemory(self._btf)
        file = MappedFile.find(self._memory, file_fd)
        self._files.setdefault(file.address, file)
        path = ctypes.create_string_buffer(f"/proc/self/fd/{file_fd}".encode())
        if not self.multi:  # one event and its link per place
            count = sum(len(places) for _, _, places in self._group_places(list(sites)))
            open_files.allow(open_files.count_needed() + len(self._links) + 2 * count)
        attach = self._attach_multi if self.multi else self._attach_each
        attach(
            _Order(path, EVERY_PROCESS if every_process else pid, lambda: file.require_fit([pid], self._prelude.run)),
            list(sites),
            refused,
        )
        return refused

    def _group_places(self, sites: list[Site]) -> list[tuple[int, bool, list[tuple[int, int]]]]:
        """Return (program, is a return probe, [(offset, cookie)]). Entries are last: each call must be seen to end."""
        _, leave, leaving = self._fds
        returns = [(site.offset, site.cookie) for site in sites if site.exits is None]
        exits = [(offset, site.cookie) for site in sites for offset in site.exits or ()]
        entries: dict[str, list[tuple[int, int]]] = {}
        for site in sites:
            entries.setdefault(site.program, []).append((site.offset, site.cookie))
        own = [(self._program.descriptor(name), False, places) for name, places in entries.items()]
        return [(leave, True, returns), (leaving, False, exits), *own]

    def _attach_multi(self, order: _Order, sites: list[Site], refused: list[tuple[Site, str]]) -> None:
        """Attach all sites by one link per program. If the kernel refuses them, try halves to find the refused site."""
        before = len(self._links)
        try:
            for fd, is_return, places in self._group_places(sites):
                if not places:
                    continue
                order.check()
                flags = MULTI_RETURN if is_return else 0
                self._links.append(create_multi_link(fd, order.path, places, flags, order.pid))
                self._prelude.note_change()
        except OSError as error:
            self._remove_from(before)
            _raise_if_hopeless(error, order.pid)
            if len(sites) == 1:
                refused.append((sites[0], _explain_refusal(error)))
                return
            middle = len(sites) // 2
            self._attach_multi(order, sites[:middle], refused)
            self._attach_multi(order, sites[middle:], refused)

    def _attach_each(self, order: _Order, sites: list[Site], refused: list[tuple[Site, str]]) -> None:
        read_event_type()
        for site in sites:
            before = len(self._links)
            try:
                for fd, is_return, places in self._group_places([site]):
                    for place in places:
                        order.check()
                        self._links.append(self._attach_one(order, place, fd, is_return))
                        self._prelude.note_change()
            except OSError as error:
                self._remove_from(before)
                _raise_if_hopeless(error, order.pid)
                refused.append((site, _explain_refusal(error)))

    @staticmethod
    def _attach_one(order: _Order, place: tuple[int, int], program: int, is_return: bool) -> int:
        event = open_uprobe_event(order.path, place[0], order.pid, is_return=is_return)
        try:
            attached = _attach_event(event, program, place[1])
        except OSError:
            os.close(event)
            raise
        if attached != event:
            os.close(event)
        return attached

    def close(self) -> None:
        """Detach all. If a process that maps a file keeps its memory map locked, leave that to a helper process."""
        self.is_left = False
        self._remove_from(0)
        self._files.clear()
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    def _remove_from(self, first: int) -> None:
        """Close the links from this place on, and the preludes."""
        files, preludes = list(self._files.values()), self._prelude.take()
        while len(self._links) > first:
            links = self._links[first : first + detacher.CLOSERS]
            if not detacher.close_all([*links, *preludes], lambda: wait_until_free(files, self._prelude.run)):
                detacher.leave(self._links[first:], list(self._files), multi=self.multi)
                self.is_left = True
                del self._links[first:]
                break
            del self._links[first : first + detacher.CLOSERS]
            preludes = []
        detacher.close_all([*preludes, *self._prelude.take()])


def _attach_event(event: int, program: int, cookie: int) -> int:
    """Run a program at an event. Return the descriptor that keeps it attached: of a link, or of the event itself.

    Raises OSError.
    """
    try:
        # The link keeps the event; bpf_get_attach_cookie knows only events that were attached by a link.
        return syscalls.create_link(program, event, syscalls.ATTACH_PERF_EVENT, struct.pack("=Q", cookie))
    except OSError as error:
        # Before Linux 5.15 there are neither links to events of perf nor cookies.
        if error.errno != errno.EINVAL or cookie:
            raise
    set_program(event, program)
    return event


class _Order(NamedTuple):
    """What to probe: the path of a file and the process, or EVERY_PROCESS. `check` raises UnfitFileError."""

    path: Any
    pid: int
    check: Callable[[], None]


def _raise_if_hopeless(error: OSError, pid: int) -> None:
    """Raise an error that applies to every site."""
    if error.errno in (errno.EPERM, errno.EACCES):
        raise CapabilityError(
            "cannot attach uprobes: not permitted", "run as root, or with CAP_SYS_ADMIN, CAP_BPF and CAP_PERFMON"
        ) from error
    if error.errno == errno.ESRCH:
        raise PowerprofError(f"process {pid} is gone", "ps -e lists them") from error
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise PowerprofError(
            "too many open files for these probes", f"choose fewer functions, or {open_files.describe_remedy()}"
        ) from error


def _explain_refusal(error: OSError) -> str:
    if error.errno in (errno.EOPNOTSUPP, 524):  # 524 is the kernel's internal ENOTSUPP
        return "its first instruction cannot be probed"
    if error.errno == errno.EINVAL:
        return "not the start of an instruction that can be probed"
    return (error.strerror or str(error)).lower()
