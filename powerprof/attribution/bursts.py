# SPDX-License-Identifier: Apache-2.0
"""Read the bursts of CPUs from a capture, and the stretches in which all CPUs idled; pure.

A CPU runs in bursts: from an idle exit until it idles again. All CPUs idle together between the bursts of all. If
periods of a CPU are lost, its state is unknown from the last known idle entry to the next known one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from powerprof.attribution.capture import Capture
from powerprof.attribution.causes import CauseGroups
from powerprof.measure.idle_counters import StateInfo, is_polling
from powerprof.tracing.bpf.shared_numbers import Flag
from powerprof.tracing.captures import Array, CpuEdge

# `record` is the number of the exit that began the burst, or one of these. OPEN: no burst ended the stretch.
RAN, LOST, OPEN = -1, -2, -3
BURST = np.dtype([("cpu", "<i8"), ("start", "<i8"), ("end", "<i8"), ("record", "<i8")])


class Periods(msgspec.Struct, frozen=True):
    """Single idle periods in order of their exits, with their causes (CAUSE), groups and wrong choices."""

    exits: Array
    causes: Array
    ended_by: Array
    groups: CauseGroups
    above: Array
    below: Array


class Stretches(msgspec.Struct, frozen=True):
    """Stretches in which all CPUs idled: starts and lengths in ns, and the record of the burst that ended each."""

    starts: Array
    lengths: Array
    records: Array

    @property
    def total_ns(self) -> int:
        """The time of all stretches."""
        return int(self.lengths.sum())

    def lengths_holding(self, *shares: float) -> list[float]:
        """Return the lengths in ns from which stretches hold these shares of the time; 0 without stretches."""
        ordered = np.append(np.sort(self.lengths)[::-1], 0)
        places = np.searchsorted(np.cumsum(ordered), self.total_ns * np.array(shares))
        lengths: list[float] = ordered[places].astype(float).tolist()
        return lengths


class View(msgspec.Struct, frozen=True):
    """CPUs in the window that all CPUs share, the idle states for questions, and the periods in a polling state."""

    name: str
    cpus: Sequence[int]
    window: tuple[int, int]
    states: Sequence[StateInfo]
    polls: Array

    def find_stretches(self, *spans: Array) -> Stretches:
        """Return the stretches of these CPUs between the spans (BURST)."""
        bursts = np.concatenate(spans)
        bursts = bursts[np.isin(bursts["cpu"], self.cpus)]
        bursts = bursts[np.lexsort((bursts["record"] < 0, bursts["start"]))]
        first, last = self.window
        starts = np.maximum.accumulate(np.append(first, np.minimum(bursts["end"], last)))
        lengths = np.append(np.clip(bursts["start"], first, last), last) - starts
        is_stretch = lengths > 0
        return Stretches(starts[is_stretch], lengths[is_stretch], np.append(bursts["record"], OPEN)[is_stretch])


def read_bursts(capture: Capture, exits: Array) -> tuple[Array, tuple[int, int], int]:
    """Return the bursts of all CPUs (BURST), the window that all CPUs share, and the number of lost periods.

    `exits` are the periods inside the CPUs' windows, by exit.
    """
    edges = capture.cpu_edges()
    first = max((edge.start_ns for edge in edges.values()), default=0)
    last = max(first, min((edge.end_ns for edge in edges.values()), default=0))
    unresolved = {cpu.cpu for cpu in capture.idle_cpus if not cpu.resolved}
    parts, lost_count = [np.zeros(0, dtype=BURST)], 0
    for cpu, edge in edges.items():
        rows = np.flatnonzero(exits["cpu"] == cpu)
        bursts, lost = _read_cpu_bursts(exits[rows], rows, edge, cpu in unresolved)
        lost_count += lost
        bursts["start"] = np.clip(bursts["start"], first, last)
        bursts["end"] = np.clip(bursts["end"], bursts["start"], last)
        parts.append(bursts[(bursts["start"] < last) & (bursts["end"] > first)])
    return np.concatenate(parts), (first, last), lost_count


def _read_cpu_bursts(exits: Array, rows: Array, edge: CpuEdge, unresolved: bool) -> tuple[Array, int]:
    """Return the bursts of one CPU and the number of its lost periods; `rows` are the numbers of its exits."""
    traced = edge.traced_count
    if not len(exits):
        # A CPU that ran at both edges and left idle at no time ran all along.
        state = LOST if unresolved or traced else RAN
        return np.array([(edge.cpu, edge.start_ns, edge.end_ns, state)], dtype=BURST), traced or 0
    enter, exit_ns = exits["enter_ns"].astype(np.int64), exits["exit_ns"].astype(np.int64)
    is_open = exits["flags"] & np.uint32(Flag.OPEN) != 0
    until = np.where(is_open, edge.end_ns, exits["next_ns"].astype(np.int64))
    bursts = np.zeros(len(exits), dtype=BURST)
    bursts["cpu"], bursts["start"], bursts["end"], bursts["record"] = edge.cpu, exit_ns, until, rows
    missing = np.append((exits["sequence"][1:] - exits["sequence"][:-1] - np.uint32(1)).astype(np.int64), 0)
    inside = int(missing.sum())
    lost = inside if traced is None else max(inside, traced - len(exits))
    is_lost = missing > 0
    is_lost[-1] = not is_open[-1]
    gaps = np.zeros(int(is_lost.sum()), dtype=BURST)
    gaps["cpu"], gaps["record"], gaps["start"] = edge.cpu, LOST, until[is_lost]
    gaps["end"] = np.maximum(until, np.append(enter[1:], edge.end_ns))[is_lost]
    before = LOST if traced is not None and traced - len(exits) > inside else RAN
    head = np.array([(edge.cpu, edge.start_ns, max(edge.start_ns, int(enter[0])), before)], dtype=BURST)
    return np.concatenate([head, bursts, gaps]), lost


def read_by_burst(bursts: Array, of_exit: Array, other: Any) -> Array:
    """Return the value of each burst's exit; `other` for bursts without a known exit."""
    values: Array = np.append(of_exit, np.asarray([other], dtype=of_exit.dtype))[np.maximum(bursts["record"], -1)]
    return values


def leave_out(bursts: Array, is_removed: Array) -> Array:
    """Return the bursts except those of the removed exits: the idle periods around them become one."""
    kept: Array = bursts[~read_by_burst(bursts, is_removed, False)]
    return kept


def list_polls(capture: Capture, exits: Array) -> Array:
    """Return the periods in a polling state as spans (BURST)."""
    is_poll = np.zeros(len(exits), dtype=bool)
    for cpu, states in capture.states.items():
        numbers = [number for number, name in enumerate(states) if is_polling(name, "")]
        is_poll |= (exits["cpu"] == cpu) & np.isin(exits["state"], numbers)
    spans = np.zeros(int(is_poll.sum()), dtype=BURST)
    spans["record"], spans["cpu"] = RAN, exits["cpu"][is_poll]
    spans["start"], spans["end"] = exits["enter_ns"][is_poll], exits["exit_ns"][is_poll]
    return spans
