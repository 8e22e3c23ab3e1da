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


@dataclass(frozen=True)
class Site:
    """One place to probe: an offset in a file, and the number that the program is given for it."""

    offset: int
    cookie: int


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
    """The entry and return functions of a loaded BPF object, ready to be attached; closing detaches everything.

    `multi` False uses the uprobe PMU even where the kernel has uprobe_multi links.
    """

    def __init__(self, bpf: Any, entry: str = "on_entry", leave: str = "on_return", *, multi: bool = True) -> None:
        """Raises PowerprofError where the kernel refuses the programs."""
        self._links: list[int] = []
        self._bpf = bpf
        self._names = (entry, leave)
        self.multi = False
        if multi:
            try:
                self._fds = self._load(_ATTACH_UPROBE_MULTI)
                self.multi = True
            except Exception:  # bcc's only kind; a kernel that has no such attach type
                for name in self._names:
                    function = bpf.funcs.pop(name.encode(), None)
                    if function is not None:
                        os.close(function.fd)
        if not self.multi:
            try:
                self._fds = self._load(-1)
            except Exception as error:
                raise PowerprofError(f"the kernel refused the function probes ({error})") from error

    def _load(self, attach_type: int) -> tuple[int, int]:
        entry, leave = (
            int(self._bpf.load_func(name, self._bpf.KPROBE, attach_type=attach_type).fd) for name in self._names
        )
        return entry, leave

    def attach(self, file_fd: int, pid: int, sites: Sequence[Site]) -> list[tuple[Site, str]]:
        """Probe entries and returns of `sites` of an open file in one process.

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

    def _attach_multi(self, path: Any, pid: int, sites: list[Site], refused: list[tuple[Site, str]]) -> None:
        """All sites in two links; where the kernel refuses them, halves, until the site is found that it means."""
        offsets = (ctypes.c_uint64 * len(sites))(*(site.offset for site in sites))
        cookies = (ctypes.c_uint64 * len(sites))(*(site.cookie for site in sites))
        opened: list[int] = []
        try:
            for fd, flags in ((self._fds[1], _MULTI_RETURN), (self._fds[0], 0)):
                # Returns first: a call whose entry is seen must not be left without its return.
                opened.append(
                    _link(
                        struct.pack(
                            "=IIIIQQQQIII",
                            fd,
                            0,
                            _ATTACH_UPROBE_MULTI,
                            0,
                            ctypes.addressof(path),
                            ctypes.addressof(offsets),
                            0,
                            ctypes.addressof(cookies),
                            len(sites),
                            flags,
                            pid,
                        )
                    )
                )
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
                for fd, is_return in ((self._fds[1], 1), (self._fds[0], 0)):
                    opened.append(self._attach_one(kind, path, pid, site, fd, is_return))
            except OSError as error:
                for link in opened:
                    os.close(link)
                _raise_if_hopeless(error, pid)
                refused.append((site, _reason(error)))
                continue
            self._links += opened

    @staticmethod
    def _attach_one(kind: int, path: Any, pid: int, site: Site, program: int, is_return: int) -> int:
        # type, size, config at 0; config1 (the path) and config2 (the offset) at 56 and 64.
        attributes = bytearray(_PERF_ATTR_BYTES)
        struct.pack_into("=IIQ", attributes, 0, kind, _PERF_ATTR_BYTES, is_return)
        struct.pack_into("=QQ", attributes, 56, ctypes.addressof(path), site.offset)
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
            return _link(struct.pack("=IIIIQ", program, event, _ATTACH_PERF_EVENT, 0, site.cookie))
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
