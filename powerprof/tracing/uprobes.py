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
from typing import Any

from powerprof.errors import CapabilityError, PowerprofError
from powerprof.files import read_int
from powerprof.paths import sysfs

_SYS_PERF_EVENT_OPEN = 298  # x86-64, as the rest of what reads registers here
_SYS_BPF = 321
_BPF_LINK_CREATE = 28
_ATTACH_PERF_EVENT = 41
_ATTACH_UPROBE_MULTI = 48
_MULTI_RETURN = 1
_PERF_FLAG_FD_CLOEXEC = 8
_PERF_ATTR_BYTES = 128
_CLOSERS = 32
_NAMES = ("on_entry", "on_return", "on_exit")  # of functions.bpf.c


@dataclass(frozen=True)
class Site:
    """One function to probe: its offset in a file, and the number that the program is given for it.

    `exits`: offsets in the file of the instructions that leave it; None for a return probe, which changes the stack.
    """

    offset: int
    cookie: int
    exits: tuple[int, ...] | None = None


def _call(number: int, *arguments: Any) -> int:
    """A system call that returns a file descriptor. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _link(attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes.ljust(64, b"\0"), 64)
    return _call(_SYS_BPF, ctypes.c_int(_BPF_LINK_CREATE), buffer, ctypes.c_uint(64))


class UprobeProgram:
    """The entry, return and exit functions of a loaded BPF object, to be attached; closing detaches everything.

    `multi` False uses the uprobe PMU even where the kernel has uprobe_multi links. `names`: what the object calls its
    functions; empty for one that it lacks, of which no site may make use.
    """

    def __init__(self, bpf: Any, *, multi: bool = True, names: tuple[str, str, str] = _NAMES) -> None:
        """Raises PowerprofError where the kernel refuses the programs."""
        self._links: list[int] = []
        self._bpf = bpf
        self._names = names
        self.multi = False
        if multi:
            try:
                self._fds = self._load(_ATTACH_UPROBE_MULTI)
                self.multi = _takes_multi(self._fds[0])
            except Exception:  # bcc's only kind; a kernel that has no such attach type
                self.multi = False
            if not self.multi:
                for name in filter(None, names):
                    function = bpf.funcs.pop(name.encode(), None)
                    if function is not None:
                        os.close(function.fd)
        if not self.multi:
            try:
                self._fds = self._load(-1)
            except Exception as error:
                raise PowerprofError(f"the kernel refused the function probes ({error})") from error

    def _load(self, attach_type: int) -> tuple[int, ...]:
        load, kind = self._bpf.load_func, self._bpf.KPROBE
        return tuple(int(load(name, kind, attach_type=attach_type).fd) if name else -1 for name in self._names)

    def attach(self, file_fd: int, pid: int, sites: Sequence[Site]) -> list[tuple[Site, str]]:
        """Probe where `sites` of an open file are entered and left in one process.

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
        entry, leave, leaving = self._fds
        returns = [(site.offset, site.cookie) for site in sites if site.exits is None]
        exits = [(offset, site.cookie) for site in sites for offset in site.exits or ()]
        entries = [(site.offset, site.cookie) for site in sites]
        return [(leave, True, returns), (leaving, False, exits), (entry, False, entries)]

    def _attach_multi(self, path: Any, pid: int, sites: list[Site], refused: list[tuple[Site, str]]) -> None:
        """All sites in a link a program; where the kernel refuses them, halves, until the site is found it means."""
        opened: list[int] = []
        try:
            for fd, is_return, places in self._places(sites):
                if not places:
                    continue
                offsets = (ctypes.c_uint64 * len(places))(*(offset for offset, _ in places))
                cookies = (ctypes.c_uint64 * len(places))(*(cookie for _, cookie in places))
                flags = _MULTI_RETURN if is_return else 0
                opened.append(_multi_link(fd, path, offsets, cookies, len(places), flags, pid))
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
        buffer = ctypes.create_string_buffer(bytes(attributes), _PERF_ATTR_BYTES)
        event = _call(
            _SYS_PERF_EVENT_OPEN,
            buffer,
            ctypes.c_int(pid),
            ctypes.c_int(-1),
            ctypes.c_int(-1),
            ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
        )
        try:
            # The link keeps the event; bpf_get_attach_cookie knows only events that were attached by a link.
            return _link(struct.pack("=IIIIQ", program, event, _ATTACH_PERF_EVENT, 0, place[1]))
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


def _multi_link(program: int, path: Any, offsets: Any, cookies: Any, count: int, flags: int, pid: int) -> int:
    """A uprobe_multi link. Raises OSError."""
    return _link(
        struct.pack(
            "=IIIIQQQQIII",
            program,
            0,
            _ATTACH_UPROBE_MULTI,
            0,
            ctypes.addressof(path),
            ctypes.addressof(offsets),
            0,
            ctypes.addressof(cookies),
            count,
            flags,
            pid,
        )
    )


def _takes_multi(program: int) -> bool:
    """Whether the kernel has such links. It may load a program for them without (6.1 does not look at the type): a
    link to a folder is refused because that is no file, where links exist, and else as nonsense."""
    nothing = (ctypes.c_uint64 * 1)()
    try:
        os.close(_multi_link(program, ctypes.create_string_buffer(b"/"), nothing, nothing, 1, 0, 0))
    except OSError as error:
        return error.errno == errno.EBADF
    return True


def _raise_if_hopeless(error: OSError, pid: int) -> None:
    """Raises where no site could fare better."""
    if error.errno in (errno.EPERM, errno.EACCES):
        raise CapabilityError(
            "cannot attach uprobes: not permitted", "run as root, or with CAP_SYS_ADMIN, CAP_BPF and CAP_PERFMON"
        ) from error
    if error.errno == errno.ESRCH:
        raise PowerprofError(f"process {pid} is gone") from error
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise PowerprofError("too many open files for these probes", "ulimit -n 8192, or fewer functions") from error


def _reason(error: OSError) -> str:
    if error.errno in (errno.EOPNOTSUPP, 524):  # 524 is the kernel's internal ENOTSUPP
        return "its first instruction cannot be probed"
    if error.errno == errno.EINVAL:
        return "not the start of an instruction that can be probed"
    return (error.strerror or str(error)).lower()
