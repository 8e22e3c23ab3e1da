# SPDX-License-Identifier: Apache-2.0
"""Attaches BPF programs to functions of processes, without tracefs.

One uprobe_multi link carries all functions of a file (Linux ≥ 6.6: attaching and detaching take milliseconds); where
the kernel lacks it, one event of the uprobe PMU per function and direction. Both name the file by a descriptor of
ours, so that containers and deleted files work, and both hand the program a cookie, the function's number.
Formats: perf_event_open(2), bpf(2) BPF_LINK_CREATE, include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from powerprof.errors import CapabilityError, PowerprofError
from powerprof.files import read_int
from powerprof.paths import sysfs
from powerprof.sources.perf_event import open_event
from powerprof.tracing.bpf import syscalls
from powerprof.tracing.bpf.instructions import instruction
from powerprof.tracing.bpf.loaded import LoadedProgram

_MULTI = syscalls.ATTACH_UPROBE_MULTI
_MULTI_RETURN = 1
_PERF_ATTR_BYTES = 128
_CLOSERS = 32
_NAMES = ("uprobe__entry", "uprobe__return", "uprobe__exit")
EVERY_PROCESS = -1
_RETURN_0 = instruction(0xB7) + instruction(0x95)


@dataclass(frozen=True)
class Site:
    """One function to probe: its offset in a file, and the number that the program is given for it.

    `exits`: offsets in the file of the instructions that leave it; None for a return probe, which changes the stack.
    `program`: another one than that of all entries, which is to run there.
    """

    offset: int
    cookie: int
    exits: tuple[int, ...] | None = None
    program: str = _NAMES[0]


@lru_cache(maxsize=1)
def _has_multi() -> bool:
    """Whether the kernel has uprobe_multi links.

    It may load a program for them without (6.1 does not look at the type): a link to a folder is refused because that
    is no file, where links exist, and else as nonsense.
    """
    try:
        program = syscalls.load_program("trial", syscalls.PROGRAM_KPROBE, _RETURN_0, attach_type=_MULTI)
    except OSError:
        return False
    try:
        os.close(_multi_link(program, ctypes.create_string_buffer(b"/"), [(0, 0)], 0, 0))
    except OSError as error:
        return error.errno == errno.EBADF
    finally:
        os.close(program)
    return True


def attach_type(*, multi: bool) -> int:
    """How uprobe functions are to be loaded: for links of many where the kernel has them, unless `multi` is False."""
    return _MULTI if multi and _has_multi() else 0


class Uprobes:
    """The entry, return and exit functions of a loaded object, to be attached; closing detaches everything."""

    def __init__(self, program: LoadedProgram, attach_type: int) -> None:
        """`attach_type`: with which the object was loaded. Of a function that it lacks no site may make use."""
        self._links: list[int] = []
        self._program = program
        self._fds = tuple(program.descriptor(name) if program.has(name) else -1 for name in _NAMES)
        self.multi = attach_type == _MULTI

    @property
    def attached(self) -> bool:
        """Whether any place is probed."""
        return bool(self._links)

    def attach(self, file_fd: int, pid: int, sites: Sequence[Site]) -> list[tuple[Site, str]]:
        """Probe where `sites` of an open file are entered and left, in one process or in EVERY_PROCESS that runs it.

        Returns the sites that the kernel refused, with the reason. Raises CapabilityError where no uprobe can be
        attached at all for want of privileges or of kernel support.
        """
        refused: list[tuple[Site, str]] = []
        if not sites:
            return refused
        path = ctypes.create_string_buffer(f"/proc/self/fd/{file_fd}".encode())
        attach = self._attach_multi if self.multi else self._attach_each
        attach(path, pid, list(sites), refused)
        return refused

    def _places(self, sites: list[Site]) -> list[tuple[int, bool, list[tuple[int, int]]]]:
        """(program, is a return probe, [(offset, cookie)]), entries last: none may be seen without what ends it."""
        _, leave, leaving = self._fds
        returns = [(site.offset, site.cookie) for site in sites if site.exits is None]
        exits = [(offset, site.cookie) for site in sites for offset in site.exits or ()]
        entries: dict[str, list[tuple[int, int]]] = {}
        for site in sites:
            entries.setdefault(site.program, []).append((site.offset, site.cookie))
        own = [(self._program.descriptor(name), False, places) for name, places in entries.items()]
        return [(leave, True, returns), (leaving, False, exits), *own]

    def _attach_multi(self, path: Any, pid: int, sites: list[Site], refused: list[tuple[Site, str]]) -> None:
        """All sites in a link a program; where the kernel refuses them, halves, until the site is found it means."""
        opened: list[int] = []
        try:
            for fd, is_return, places in self._places(sites):
                if not places:
                    continue
                opened.append(_multi_link(fd, path, places, _MULTI_RETURN if is_return else 0, pid))
        except OSError as error:
            for link in opened:
                os.close(link)
            _raise_if_hopeless(error, pid)
            if len(sites) == 1:
                refused.append((sites[0], _reason(error)))
                return
            middle = len(sites) // 2
            self._attach_multi(path, pid, sites[:middle], refused)
            self._attach_multi(path, pid, sites[middle:], refused)
            return
        self._links += opened

    def _attach_each(self, path: Any, pid: int, sites: list[Site], refused: list[tuple[Site, str]]) -> None:
        try:
            kind = read_int(sysfs() / "bus/event_source/devices/uprobe/type")
        except PowerprofError as error:
            raise CapabilityError("this kernel has no uprobes", "a kernel with CONFIG_UPROBE_EVENTS=y") from error
        for site in sites:
            opened: list[int] = []
            try:
                for fd, is_return, places in self._places([site]):
                    for place in places:
                        opened.append(self._attach_one(kind, path, pid, place, fd, is_return))
            except OSError as error:
                for link in opened:
                    os.close(link)
                _raise_if_hopeless(error, pid)
                refused.append((site, _reason(error)))
                continue
            self._links += opened

    @staticmethod
    def _attach_one(kind: int, path: Any, pid: int, place: tuple[int, int], program: int, is_return: bool) -> int:
        # type, size, config at 0; config1 (the path) and config2 (the offset) at 56 and 64.
        attributes = bytearray(_PERF_ATTR_BYTES)
        struct.pack_into("=IIQ", attributes, 0, kind, _PERF_ATTR_BYTES, int(is_return))
        struct.pack_into("=QQ", attributes, 56, ctypes.addressof(path), place[0])
        event = open_event(bytes(attributes), pid=pid, cpu=0 if pid == EVERY_PROCESS else -1)
        try:
            # The link keeps the event; bpf_get_attach_cookie knows only events that were attached by a link.
            return syscalls.link(program, event, syscalls.ATTACH_PERF_EVENT, struct.pack("=Q", place[1]))
        finally:
            os.close(event)

    def close(self) -> None:
        """Detach all. Closing waits for RCU (40 to 160 ms each), so many are closed side by side."""
        links, self._links = self._links, []
        if len(links) > 2:
            with ThreadPoolExecutor(_CLOSERS) as pool:
                list(pool.map(os.close, links))
        else:
            for link in links:
                os.close(link)


def _multi_link(program: int, path: Any, places: list[tuple[int, int]], flags: int, pid: int) -> int:
    """A uprobe_multi link to [(offset, cookie)] of a file. Raises OSError."""
    offsets = (ctypes.c_uint64 * len(places))(*(offset for offset, _ in places))
    cookies = (ctypes.c_uint64 * len(places))(*(cookie for _, cookie in places))
    addresses = (ctypes.addressof(target) for target in (path, offsets))
    whose = 0 if pid == EVERY_PROCESS else pid
    attributes = struct.pack("=4Q3I", *addresses, 0, ctypes.addressof(cookies), len(places), flags, whose)
    return syscalls.link(program, 0, _MULTI, attributes)


def _raise_if_hopeless(error: OSError, pid: int) -> None:
    """Raises where no site could fare better."""
    if error.errno in (errno.EPERM, errno.EACCES):
        raise CapabilityError(
            "cannot attach uprobes: not permitted", "run as root, or with CAP_SYS_ADMIN, CAP_BPF and CAP_PERFMON"
        ) from error
    if error.errno == errno.ESRCH:
        raise PowerprofError(f"process {pid} is gone", "ps -e lists them") from error
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise PowerprofError("too many open files for these probes", "ulimit -n 8192, or fewer functions") from error


def _reason(error: OSError) -> str:
    if error.errno in (errno.EOPNOTSUPP, 524):  # 524 is the kernel's internal ENOTSUPP
        return "its first instruction cannot be probed"
    if error.errno == errno.EINVAL:
        return "not the start of an instruction that can be probed"
    return (error.strerror or str(error)).lower()
