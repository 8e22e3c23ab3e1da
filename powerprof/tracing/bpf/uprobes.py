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
import mmap
import os
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from powerprof.measure.cpuidle import online_cpus
from powerprof.measure.perf_events import TYPE_SOFTWARE, open_event, open_sampler, set_program
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import read_int, reason_of
from powerprof.system.paths import sysfs
from powerprof.tracing.bpf import syscalls
from powerprof.tracing.bpf.features import not_permitted_error
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.syscalls import encode_instruction

_MULTI = syscalls.ATTACH_UPROBE_MULTI
_MULTI_RETURN = 1
_PERF_ATTR_BYTES = 128
_CLOSERS = 32
_NAMES = ("uprobe__entry", "uprobe__return", "uprobe__exit")
EVERY_PROCESS = -1
_RETURN_0 = encode_instruction(0xB7) + encode_instruction(0x95)


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


def choose_attach_type(*, multi: bool) -> int:
    """How uprobe functions are to be loaded: for links of many where the kernel has them, unless `multi` is False."""
    return _MULTI if multi and _has_multi() else 0


class Uprobes:
    """The entry, return and exit functions of a loaded object, to be attached; closing detaches everything."""

    def __init__(self, program: LoadedProgram, choose_attach_type: int) -> None:
        """`attach_type`: with which the object was loaded. Of a function that it lacks no site may make use."""
        self._links: list[int] = []
        self._program = program
        self._fds = tuple(program.descriptor(name) if program.has(name) else -1 for name in _NAMES)
        self.multi = choose_attach_type == _MULTI

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
            return syscalls.create_link(program, event, syscalls.ATTACH_PERF_EVENT, struct.pack("=Q", place[1]))
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
    return syscalls.create_link(program, 0, _MULTI, attributes)


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


# What one probed call costs on this host, measured in place by the very program that is going to probe.
#
# A probe whose instruction the kernel emulates costs one trap; any other instruction, `ret` too, is copied and stepped
# over, which costs a second one (measured in a guest: 1 µs and 20 to 45 µs). Both kinds are measured on two tiny
# functions of our own in a memory file, called by a thread of ours.

_CALLS, _ROUNDS = 40, 50
# push rbx; pop rbx; ret · mov eax, edi; ret
_EMULATED, _STEPPED = bytes.fromhex("535bc3"), bytes.fromhex("89f8c3")
_STEPPED_AT = 64
_RET_AT = 2


class ProbeCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one probed call costs: `inside_ns` of it falls into the call's own time, the rest into its caller's."""

    call_ns: float
    inside_ns: float


def measure_cost(
    probes: Uprobes, cookies: tuple[int, int], self_cpu: Callable[[int], tuple[int, int]], *, by_exits: bool
) -> tuple[ProbeCost, ProbeCost] | None:
    """The cost of a probe on an emulated and on a stepped instruction.

    `by_exits`: with a probe on the `ret` instead of a return probe. `cookies` are the calibration's numbers,
    `self_cpu(cookie)` gives (calls, self CPU time in ns) counted for one. None where the calls of a thread other than
    the first were not counted. Raises PowerprofError where the memory file cannot be probed.
    """
    file = os.memfd_create("powerprof-calibration", os.MFD_CLOEXEC)
    try:
        os.write(file, _EMULATED.ljust(_STEPPED_AT, b"\xcc") + _STEPPED.ljust(mmap.PAGESIZE - _STEPPED_AT, b"\xcc"))
        base = _map(file)
        functions = [ctypes.CFUNCTYPE(None)(base + at) for at in (0, _STEPPED_AT)]
        plain = [_timed(function) for function in functions]
        sites = [
            Site(at, cookie, (at + _RET_AT,) if by_exits else None)
            for at, cookie in zip((0, _STEPPED_AT), cookies, strict=True)
        ]
        try:
            refused = probes.attach(file, os.getpid(), sites)
            if refused:
                raise PowerprofError(
                    f"cannot measure what a probe costs ({refused[0][1]})", "powerprof profile samples instead"
                )
            probed = [_timed(function) for function in functions]
        finally:
            probes.close()
        _unmap(base)
    finally:
        os.close(file)
    costs = []
    for cookie, before, after in zip(cookies, plain, probed, strict=True):
        calls, cpu_ns = self_cpu(cookie)
        if calls < _CALLS * _ROUNDS:
            return None
        cost = max(min(after) - min(before), 0.0)
        # What was counted is of all rounds: in the fastest it was less by as much as the round was.
        inside = cpu_ns / calls * min(after) / statistics.fmean(after)
        costs.append(ProbeCost(call_ns=cost, inside_ns=min(inside, cost)))
    return costs[0], costs[1]


def measure_entry_cost_ns(probes: Uprobes) -> float:
    """What a probe on an emulated first instruction costs, and the program that it starts. Raises PowerprofError."""
    file = os.memfd_create("powerprof-calibration", os.MFD_CLOEXEC)
    try:
        os.write(file, _EMULATED.ljust(mmap.PAGESIZE, b"\xcc"))
        base = _map(file)
        function = ctypes.CFUNCTYPE(None)(base)
        plain = _timed(function)
        try:
            refused = probes.attach(file, os.getpid(), [Site(0, 0, ())])
            if refused:
                raise PowerprofError(
                    f"cannot measure what a probe costs ({refused[0][1]})", "powerprof profile samples instead"
                )
            probed = _timed(function)
        finally:
            probes.close()
        _unmap(base)
    finally:
        os.close(file)
    return max(min(probed) - min(plain), 0.0)


def _timed(call: Callable[[], None]) -> list[float]:
    """CPU nanoseconds per call of each round, in a thread of its own. The fastest is the least disturbed by others.

    A round takes 2 ms at most, so that also on a busy host some pass without a tick, a switch or a stolen moment.
    """
    rounds: list[float] = []

    def run() -> None:
        for _ in range(_ROUNDS):
            started = time.thread_time_ns()
            for _ in range(_CALLS):
                call()
            rounds.append((time.thread_time_ns() - started) / _CALLS)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return rounds


def _map(file: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    # Private: the kernel puts no breakpoints into shared mappings.
    base = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
    if base is None or base == ctypes.c_void_p(-1).value:
        raise PowerprofError(
            f"cannot measure what a probe costs ({os.strerror(ctypes.get_errno()).lower()})",
            "powerprof profile samples instead",
        )
    return int(base)


def _unmap(base: int) -> None:
    libc = ctypes.CDLL(None)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.munmap(base, mmap.PAGESIZE)


# Runs a loaded BPF program at a software event of perf, on every CPU that is online.

# PERF_COUNT_SW_… of include/uapi/linux/perf_event.h.
CPU_CLOCK, MINOR_FAULTS, MAJOR_FAULTS = 0, 5, 6


class Sampler(Closeable):
    """Open events, which a program sees while the context is open; `descriptors` are their counters."""

    def __init__(self, program: int) -> None:
        self._program = program
        self.descriptors: list[int] = []

    def open(self, event: int, *, period: int = 0, frequency_hz: int = 0) -> None:
        """One more event. Raises CapabilityError, PowerprofError where the kernel refuses it."""
        for cpu in online_cpus():
            try:
                opened = open_sampler(TYPE_SOFTWARE, event, cpu, period=period, frequency_hz=frequency_hz)
                self.descriptors.append(opened)
                set_program(opened, self._program)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    continue  # the CPU went offline
                self.close()
                if error.errno in (errno.EPERM, errno.EACCES):
                    raise not_permitted_error() from error
                raise PowerprofError(
                    f"cannot sample on CPU {cpu} ({reason_of(error)})",
                    "end other profilers, and allow more open files (ulimit -n)",
                ) from error

    def close(self) -> None:
        """Sample no more."""
        while self.descriptors:
            os.close(self.descriptors.pop())
