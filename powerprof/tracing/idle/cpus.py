# SPDX-License-Identifier: Apache-2.0
"""Each CPU's own window in the program: its edges, what was summed in it, and the period that is open at its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from powerprof.sources.clock import kernel_ns
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import CAUSE_STATES, CpuPhase, Flag, Shared
from powerprof.tracing.idle.layout import CPU_STATE, CPU_TOTAL, IDLE_EXIT
from powerprof.tracing.idle.shared import share

Array = npt.NDArray[Any]
_LOOKS = 4


class CpuWindows:
    """The windows of one program's CPUs. Nothing is counted on a CPU before `open`."""

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program
        self._last = np.zeros(program.slots("totals"), dtype=CPU_TOTAL)
        self._at_end: dict[int, Array] = {}

    def forget(self) -> None:
        """No window is open on any CPU."""
        self._last = np.zeros(len(self._last), dtype=CPU_TOTAL)
        self._at_end = {}
        for cpu, total in enumerate(self._last):
            self._program.put("totals", cpu, total.tobytes())

    def open(self, cpu: int, at_ns: int) -> None:
        """One CPU's window begins: to be called while the caller keeps that CPU awake."""
        total = np.zeros((), dtype=CPU_TOTAL)
        total["start_ns"] = at_ns
        self._program.put("totals", cpu, total.tobytes())

    def close(self, cpu: int, at_ns: int) -> None:
        """One CPU's window ends: to be called while the caller keeps that CPU awake, so that nothing is added to its
        sums meanwhile, and the period that is open stays what it is."""
        total = np.frombuffer(self._program.get("totals", cpu), dtype=CPU_TOTAL)[0].copy()
        if total["start_ns"]:
            total["end_ns"] = at_ns
            self._program.put("totals", cpu, total.tobytes())
            self._at_end[cpu] = np.frombuffer(self._program.get("cpus", cpu), dtype=CPU_STATE)

    def tell_polls(self, states: Iterable[int]) -> None:
        """Which idle states, by number, are polls: an interrupt does not end these."""
        share(self._program, Shared.POLLS, sum(1 << number for number in states))

    def states(self) -> Array:
        """Where each CPU is now, as layout.CPU_STATE."""
        return np.frombuffer(self._program.table_bytes("cpus"), dtype=CPU_STATE)

    def take(self, *, with_open: bool) -> tuple[Array, Array]:
        """The windows with their sums since `forget` or the last call (layout.CPU_TOTAL), and the periods that are
        still open (layout.IDLE_EXIT), which the sums have as well; none unless `with_open`."""
        now = np.frombuffer(self._program.table_bytes("totals"), dtype=CPU_TOTAL)
        totals = now.copy()
        for name in ("count", "idle_ns", "unplaced_ns"):
            totals[name] -= self._last[name]
        self._last = now
        still_open = self._still_open(now) if with_open else np.zeros(0, dtype=IDLE_EXIT)
        for period in still_open:
            total, state = totals[period["cpu"]], min(int(period["state"]), CAUSE_STATES - 1)
            total["count"][state] += 1
            total["idle_ns"][state] += int(period["exit_ns"]) - max(int(period["enter_ns"]), int(total["start_ns"]))
            total["last_tgid"] = period["next_tgid"]
        return totals, still_open

    def idle_until_now(self) -> tuple[Array, Array]:
        """The sums of all windows so far (layout.CPU_TOTAL) with the idle time of the period that is open on each CPU,
        and when that was read (CLOCK_MONOTONIC, by CPU).

        The kernel sums a period when its CPU idles again. Sums and state are of one moment where a look before and one
        after agree; a CPU that changes at each look is off by one of its periods, which are short.
        """
        found, at_ns = np.zeros(len(self._last), dtype=CPU_TOTAL), np.zeros(len(self._last), dtype=np.uint64)
        left = np.ones(len(found), dtype=bool)
        for _ in range(_LOOKS):
            before, now_ns = self.states(), kernel_ns()
            totals = np.frombuffer(self._program.table_bytes("totals"), dtype=CPU_TOTAL)
            after = self.states()
            found[left], at_ns[left] = _with_open(totals, before, now_ns)[left], now_ns
            same = before["phase"] == after["phase"]
            left &= ~(same & (before["period"]["enter_ns"] == after["period"]["enter_ns"]))
            if not left.any():
                break
        return found, at_ns

    def _still_open(self, totals: Array) -> Array:
        """CPUs that had left idle and ran at their windows' ends: the kernel sums none of these periods.

        A CPU that has no last edge went away: what it ran last is as it was then.
        """
        states = self.states().copy()
        for cpu, state in self._at_end.items():
            states[cpu] = state[0]
        left_ns = states["period"]["exit_ns"]
        inside = (totals["start_ns"] > 0) & (left_ns >= totals["start_ns"])
        inside &= (totals["end_ns"] == 0) | (left_ns <= totals["end_ns"])
        runs = np.isin(states["phase"], (CpuPhase.LEFT, CpuPhase.RUNNING))
        still_open: Array = states["period"][inside & runs].copy()
        still_open["flags"] |= np.uint32(Flag.OPEN)
        still_open["next_ns"] = 0
        return still_open


def _with_open(totals: Array, states: Array, now_ns: int) -> Array:
    """The sums with what the period that is open on each CPU idled until now."""
    whole = totals.copy()
    opened = (totals["start_ns"] > 0) & (states["phase"] != CpuPhase.UNKNOWN)
    for cpu in np.flatnonzero(opened).tolist():
        period = states[cpu]["period"]
        idles = states[cpu]["phase"] == CpuPhase.IDLE
        end_ns = now_ns if idles else int(period["exit_ns"])
        begin_ns = max(int(period["enter_ns"]), int(totals[cpu]["start_ns"]))
        whole[cpu]["idle_ns"][min(int(period["state"]), CAUSE_STATES - 1)] += max(0, end_ns - begin_ns)
    return whole
