# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of a probed call in place, by the program that is going to probe.

A probe on an instruction that the kernel emulates costs one trap. Any other instruction, `ret` too, is copied and
stepped over, which costs a second one (in a guest: 1 µs and 20 to 45 µs). Both kinds are measured on two tiny functions
in a memory file, called by a thread of powerprof.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable

import msgspec

from powerprof.system.errors import PowerprofError
from powerprof.system.next_steps import command_line
from powerprof.tracing.bpf.uprobes import Site, Uprobes

_CALLS, _ROUNDS = 40, 50
# push rbx; pop rbx; ret · mov eax, edi; ret
_EMULATED, _STEPPED = bytes.fromhex("535bc3"), bytes.fromhex("89f8c3")
_STEPPED_AT = 64
_RET_AT = 2


class ProbeCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one probed call. `inside_ns` of it falls into the call's own time, the rest into its caller's."""

    call_ns: float
    inside_ns: float


def measure_cost(
    probes: Uprobes, cookies: tuple[int, int], self_cpu: Callable[[int], tuple[int, int]], *, by_exits: bool
) -> tuple[ProbeCost, ProbeCost] | None:
    """Return the costs of a probe on an emulated and on a stepped instruction.

    `by_exits`: with a probe on the `ret` instead of a return probe. `cookies`: the numbers of the calibration.
    `self_cpu(cookie)` returns its (calls, self CPU time in ns). The result is None if the calls of a thread other than
    the first were not counted. Raises PowerprofError if the memory file cannot be probed.
    """
    file = os.memfd_create("powerprof-calibration", os.MFD_CLOEXEC)
    try:
        os.write(file, _EMULATED.ljust(_STEPPED_AT, b"\xcc") + _STEPPED.ljust(mmap.PAGESIZE - _STEPPED_AT, b"\xcc"))
        base = _map_code(file)
        functions = [ctypes.CFUNCTYPE(None)(base + at) for at in (0, _STEPPED_AT)]
        plain = [_time_rounds(function) for function in functions]
        sites = [
            Site(at, cookie, (at + _RET_AT,) if by_exits else None)
            for at, cookie in zip((0, _STEPPED_AT), cookies, strict=True)
        ]
        try:
            refused = probes.attach(file, os.getpid(), sites)
            if refused:
                raise PowerprofError(
                    f"cannot measure what a probe costs ({refused[0][1]})",
                    f"use samples: {command_line('profile', same_target=True)}",
                )
            probed = [_time_rounds(function) for function in functions]
        finally:
            probes.close()
        _unmap_code(base)
    finally:
        os.close(file)
    costs = []
    for cookie, before, after in zip(cookies, plain, probed, strict=True):
        calls, cpu_ns = self_cpu(cookie)
        if calls < _CALLS * _ROUNDS:
            return None
        cost = max(min(after) - min(before), 0.0)
        # The counts are of all rounds. The fastest round had less, in proportion to its length.
        inside = cpu_ns / calls * min(after) / statistics.fmean(after)
        costs.append(ProbeCost(call_ns=cost, inside_ns=min(inside, cost)))
    return costs[0], costs[1]


def measure_entry_cost_ns(probes: Uprobes) -> float:
    """Return the cost in ns of a probe on an emulated first instruction, with its program. Raises PowerprofError."""
    file = os.memfd_create("powerprof-calibration", os.MFD_CLOEXEC)
    try:
        os.write(file, _EMULATED.ljust(mmap.PAGESIZE, b"\xcc"))
        base = _map_code(file)
        function = ctypes.CFUNCTYPE(None)(base)
        plain = _time_rounds(function)
        try:
            refused = probes.attach(file, os.getpid(), [Site(0, 0, ())])
            if refused:
                raise PowerprofError(
                    f"cannot measure what a probe costs ({refused[0][1]})",
                    f"use samples: {command_line('profile', same_target=True)}",
                )
            probed = _time_rounds(function)
        finally:
            probes.close()
        _unmap_code(base)
    finally:
        os.close(file)
    return max(min(probed) - min(plain), 0.0)


def _time_rounds(call: Callable[[], None]) -> list[float]:
    """Return the CPU time per call in ns of each round, in a separate thread. The fastest is the least disturbed.

    A round takes at most 2 ms, so some rounds pass without a tick, a switch or stolen time on a busy host too.
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


def _map_code(file: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    # Private, because the kernel puts no breakpoints into shared mappings.
    base = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
    if base is None or base == ctypes.c_void_p(-1).value:
        raise PowerprofError(
            f"cannot measure what a probe costs ({os.strerror(ctypes.get_errno()).lower()})",
            f"use samples: {command_line('profile', same_target=True)}",
        )
    return int(base)


def _unmap_code(base: int) -> None:
    libc = ctypes.CDLL(None)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.munmap(base, mmap.PAGESIZE)
