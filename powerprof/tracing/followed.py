# SPDX-License-Identifier: Apache-2.0
"""The processes of a traced target, which is followed while processes join it, and their CPU time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from powerprof.measure.procfs import process_cpu_ns, reaped_cpu_ns

# A backend of a server lives longer as a rule. Each look reads the children of the target.
LOOK_S = 0.2
# Steps of the kernel's time of ended children.
_TICK_NS = 10_000_000


class FollowedProcesses:
    """The processes of a target: those at the start, and those that joined it since.

    The idle tracer reports each fork at once. Other tracers look every `LOOK_S` seconds, so they miss the beginning of
    a process. The time of processes that no look has seen is known from the kernel's sum of ended children.
    """

    def __init__(self, pids: Sequence[int], find_members: Callable[[], Sequence[int]] | None = None) -> None:
        """Follow `pids`, and the present members by `find_members` if other processes may join."""
        self.pids = list(pids)
        self.may_grow = find_members is not None
        self._find_members = find_members
        self._first_ns = dict[int, int | None]()
        self._last_ns = dict[int, int]()
        self._ended_ns = 0
        self.joined_count = 0

    def begin(self) -> None:
        """Begin a window."""
        self.joined_count = 0
        self.find_new()
        self.joined_count = 0
        self._first_ns = {pid: process_cpu_ns(pid) for pid in self.pids}
        self._last_ns = {pid: ns for pid, ns in self._first_ns.items() if ns is not None}
        self._ended_ns = self._read_ended_ns()

    def find_new(self) -> list[int]:
        """Add and return the processes that joined since the last call, and read the clocks of all."""
        known = set(self.pids)
        joined = [pid for pid in self._find_members() if pid not in known] if self._find_members is not None else []
        self.pids += joined
        self.joined_count += len(joined)
        if self.may_grow:
            self._last_ns |= {pid: ns for pid in self.pids if (ns := process_cpu_ns(pid)) is not None}
        return joined

    def end(self) -> None:
        """End the window."""
        if self.may_grow:
            self.find_new()
        else:
            self._last_ns = {pid: ns for pid in self.pids if (ns := process_cpu_ns(pid)) is not None}

    def cpu_ns(self) -> int | None:
        """Return the CPU time of these processes in the window.

        None without processes, if one ended and cannot be replaced, and if a first clock is unknown.
        """
        if not self.pids or (not self.may_grow and len(self._last_ns) < len(self.pids)):
            return None
        return sum(ns - (self._first_ns.get(pid) or 0) for pid, ns in self._last_ns.items())

    def unseen_ns(self) -> int:
        """Return the CPU time of children that ended between two looks, in ns; the kernel counts in 10 ms."""
        if not self.may_grow:
            return 0
        ended = {pid for pid in self._last_ns if process_cpu_ns(pid) is None}
        unseen_ns = self._read_ended_ns() - self._ended_ns - sum(self._last_ns[pid] for pid in ended)
        return unseen_ns if unseen_ns >= _TICK_NS else 0

    def notes(self) -> list[str]:
        """Return the processes that joined in the window, and the CPU time of those that no look has seen."""
        if not self.joined_count and not self.may_grow:
            return []
        notes, unseen_ns = list[str](), self.unseen_ns()
        if self.joined_count:
            count = f"{self.joined_count:,} process{'' if self.joined_count == 1 else 'es'}"
            notes.append(f"{count} joined the target in the window: up to {LOOK_S:g} s at their start are not covered")
        if unseen_ns:
            notes.append(
                f"processes that the target started and that ended within {LOOK_S:g} s used {unseen_ns / 1e9:.2f} s of "
                "CPU time, which is in no row"
            )
        return notes

    def _read_ended_ns(self) -> int:
        """Return the CPU time of ended children that the processes have waited for."""
        return sum(reaped_cpu_ns(pid) for pid in self.pids) if self.may_grow else 0
