# SPDX-License-Identifier: Apache-2.0
"""Pure: idle exits summed by what caused them, as the kernel sums them (probes/bpf/causes.h), line by line.

What tracing makes are sums; this makes the same of single records: those that are still open at a window's end, and
those of captures that were saved before the kernel summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from powerprof.model.records import StateResidency, Window
from powerprof.stacks.interpreter import CHAIN_BYTES
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import (
    CAUSE_STATES,
    COMM_BYTES,
    IDLE_LIFE,
    INTERPRETER_FRAMES,
    FilledTable,
    Flag,
    RunKind,
    Shared,
    WakeEvidence,
    WakerContext,
)
from powerprof.tracing.bpf.types import Btf, build_struct_definitions
from powerprof.tracing.captures import Array, CpuEdge

# Records and sums of the BPF programs as numpy types: probes/bpf/idle_period.h, causes.h and looks.bpf.h in Python.

# What names a cause, in the order in which both a record and a key hold it.
_PLACES = ("timer_function", "work_function", "site_ip", "site_sp", "site_code")
_WAKER_PLACES = ("waker_timer_function", "waker_ip", "waker_sp", "waker_code")
_LAYOUT_WHO = ("evidence", "irq", "flags", "next_tid", "next_tgid", "waker_tid", "waker_tgid")
_WAKING = ("waker_context", "waker_irq", "woken_tid")


def _struct(words: tuple[str, ...], halves: tuple[str, ...], *others: tuple[str, str]) -> np.dtype[np.void]:
    """Of u64, then u32, then others."""
    return np.dtype([*((name, "<u8") for name in words), *((name, "<u4") for name in halves), *others])


IDLE_EXIT = _struct(
    ("enter_ns", "exit_ns", "next_ns", *_PLACES, "waking_ns", *_WAKER_PLACES),
    ("cpu", "state", *_LAYOUT_WHO, "waker_cpu", *_WAKING, "sequence"),
    ("next_comm", f"S{COMM_BYTES}"),
    ("waker_comm", f"S{COMM_BYTES}"),
)

# struct cause_key and struct cause_sum, one after the other: probes/bpf/causes.h.
CAUSE_KEY = _struct((*_PLACES, *_WAKER_PLACES), (*_LAYOUT_WHO, *_WAKING))
CAUSE_SUM = np.dtype(
    [(name, "<u8") for name in ("count", "running_ns", "idle_ns", "own_ns", "kernel_ns")]
    + [(name, "<u8") for name in ("last_ns", "period_ns", "fitting_ns")]
    + [(name, "<u4") for name in ("fitting_gaps", "fitting_periods", "gaps", "votes")]
    + [("states", "<u4", (CAUSE_STATES,)), ("next_comm", f"S{COMM_BYTES}"), ("waker_comm", f"S{COMM_BYTES}")]
)
CAUSE = np.dtype([*((name, CAUSE_KEY[name]) for name in CAUSE_KEY.names or ()), *CAUSE_SUM.descr])
# As saved captures have them that did not know how long threads ran.
CAUSE_BEFORE = np.dtype([field for field in CAUSE.descr if field[0] not in ("own_ns", "kernel_ns")])
# What grows: the rest of a sum tells of regularity and names.
SUMS = ("count", "running_ns", "idle_ns", "own_ns", "kernel_ns", "states")

# struct woken_key of sites.bpf.h, and its count.
WOKEN_KEY = np.dtype(
    [(name, "<u8") for name in ("ip", "sp", "code", "timer_function")]
    + [(name, "<u4") for name in ("tid", "pid", "context", "irq", "waker_pid", "waker_tid")]
)
WOKEN_COUNT = np.dtype([("count", "<u8")])

WOKEN = np.dtype([*WOKEN_KEY.descr, *WOKEN_COUNT.descr])

# Exits of one CPU in its window: struct cpu_total of causes.h.
_BY_STATE = [(name, "<u8", (CAUSE_STATES,)) for name in ("count", "idle_ns")]
CPU_TOTAL = np.dtype(
    [
        *(("start_ns", "<u8"), ("end_ns", "<u8"), *_BY_STATE, ("last_tgid", "<u8")),
        *(("unplaced_ns", "<u8", (2,)), ("gap", "V56")),
    ]
)

# How long a thread ran, and struct run_time of running.bpf.h, where `who` is its number and above it its process.
RUN_TIME = np.dtype([("tid", "<u4"), ("pid", "<u4"), ("ns", "<u8"), ("kind", "<u8")])
RUN_SLOT = np.dtype([("who", "<u8"), ("ns", "<u8"), ("kind", "<u8"), ("gap", "V40")])

# struct cpu_state begins with the period that is still open.
CPU_STATE = np.dtype(
    [("period", IDLE_EXIT)]
    + [(name, "<u4") for name in ("phase", "hardirq", "softirq", "softirq_by_irq")]
    + [(name, "<u4") for name in ("raised_by_irq", "vector")]
    + [(name, "<u8") for name in ("timer_active", "looks_window_ns")]
    + [(name, "<u4") for name in ("looks_count", "looks_loaded", "looks_skipped", "looks_brisk")]
    + [("reviewed_ns", "<u8"), ("idled_ns", "<u8"), ("threaded", "<u4"), ("in_tid", "<u4")]
    + [(name, "<u8") for name in ("in_ns", "own_ns", "kernel_ns")]
    + [("is_own", "<u4"), ("unmarked", "<u4"), ("down_ns", "<u8"), ("gap", "V128")]
)

# struct stack_record: registers, as many as the machine has, the frames of an interpreter and the stack's bytes follow.
STACK_HEADER = np.dtype(
    [(name, "<u8") for name in ("at_ns", "ip", "sp", "code")]
    + [(name, "<u4") for name in ("tid", "tgid", "kind", "bytes")]
)

# How many words of frames there are, and these.
FRAMES_BYTES = 8 * (1 + 2 * (INTERPRETER_FRAMES + 1))

# What a table got since it was emptied, or a ring buffer ever: struct filled of filled.bpf.h, one for each Filling.
FILL_LEVEL = np.dtype([(name, "<u8") for name in ("amount", "limit", "is_called")])

TABLES = (FilledTable.CAUSES, FilledTable.WOKEN)

SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")


AggregateArray = npt.NDArray[Any]
_FLAGS = Flag.TICK | Flag.NO_TASK | Flag.WAKER | Flag.TIMER_WHEEL | Flag.SITE | Flag.WAKER_SITE | Flag.RUNNABLE
_WHO = Flag.KERNEL | Flag.WAKER_KERNEL | IDLE_LIFE
_MASK = (1 << 32) - 1


def build_cause_keys(exits: AggregateArray) -> AggregateArray:
    """The cause of each record, as layout.CAUSE_KEY."""
    keys = np.zeros(len(exits), dtype=CAUSE_KEY)
    for name in ("timer_function", "work_function", "evidence", "irq", "next_tid", "next_tgid"):
        keys[name] = exits[name]
    flags = exits["flags"] & np.uint32(_FLAGS | _WHO)
    nothing = (exits["evidence"] == WakeEvidence.NONE) & (flags & Flag.NO_TASK != 0)
    keys["irq"] = np.where(nothing, exits["state"], exits["irq"])
    woken = flags & Flag.WAKER != 0
    keys["flags"] = flags | np.where(woken & (exits["waker_cpu"] != exits["cpu"]), np.uint32(Flag.REMOTE), 0)
    keys["woken_tid"] = np.where(exits["next_tid"] == 0, exits["woken_tid"], 0)
    has_site = flags & Flag.SITE != 0
    for name in ("site_ip", "site_sp", "site_code"):
        keys[name] = np.where(has_site, exits[name], 0)
    for name in ("waker_context", "waker_irq", "waker_timer_function"):
        keys[name] = np.where(woken, exits[name], 0)
    by_task = woken & (exits["waker_context"] == WakerContext.TASK)
    for name in ("waker_tid", "waker_tgid"):
        keys[name] = np.where(by_task, exits[name], 0)
    has_waker_site = by_task & (flags & Flag.WAKER_SITE != 0)
    for name in ("waker_ip", "waker_sp", "waker_code"):
        keys[name] = np.where(has_waker_site, exits[name], 0)
    return keys


def count_periods(gap: int, period: int) -> int:
    """How many periods an interval is: 1 to 3, or 0 where it is no multiple within a tenth of a period."""
    tenth = period // 10
    return next((number for number in (1, 2, 3) if number * period - tenth <= gap <= number * period + tenth), 0)


def _interval(entry: Any, at_ns: int) -> None:
    """One more interval: the candidate is the one that a majority votes for."""
    last = int(entry["last_ns"])
    if at_ns <= last:
        return
    gap = at_ns - last
    entry["last_ns"] = at_ns
    if not last:
        return
    entry["gaps"] += 1
    period = int(entry["period_ns"])
    number = count_periods(gap, period) if period else 0
    if number:
        entry["votes"] += 1
        entry["fitting_gaps"] += 1
        entry["fitting_periods"] += number
        entry["fitting_ns"] += gap
        entry["period_ns"] = int(entry["fitting_ns"]) // int(entry["fitting_periods"])
    elif entry["votes"]:
        entry["votes"] -= 1
    else:
        entry["period_ns"] = entry["fitting_ns"] = gap
        entry["votes"] = entry["fitting_gaps"] = entry["fitting_periods"] = 1


def aggregate_exits(exits: AggregateArray, base: AggregateArray | None = None) -> AggregateArray:
    """Records in the order in which their periods ended → layout.CAUSE, added to the entries of `base`."""
    known = np.zeros(0, dtype=CAUSE) if base is None else base
    keys = build_cause_keys(exits)
    # Of several entries of one cause (a double buffer was turned between them) the last.
    places = {key.tobytes(): place for place, key in enumerate(_keys_of(known))}
    where, size = [], len(known)
    for key in keys:
        place = places.setdefault(key.tobytes(), size)
        size = max(size, place + 1)
        where.append(place)
    entries = np.concatenate([known, np.zeros(size - len(known), dtype=CAUSE)])
    for number, place in enumerate(where):
        if place >= len(known) and not entries["count"][place]:
            entries[place] = _fresh(keys[number])
        entries["count"][place] += 1
        _name(entries[place], exits[number])
    running = np.where(exits["next_ns"] > exits["exit_ns"], exits["next_ns"] - exits["exit_ns"], 0)
    np.add.at(entries["running_ns"], where, running)
    np.add.at(entries["idle_ns"], where, exits["exit_ns"] - exits["enter_ns"])
    np.add.at(entries["states"], (where, np.minimum(exits["state"], CAUSE_STATES - 1)), 1)
    for place, at_ns in zip(where, exits["exit_ns"].tolist(), strict=True):
        _interval(entries[place], at_ns)
    return entries


def _keys_of(entries: AggregateArray) -> AggregateArray:
    keys = np.zeros(len(entries), dtype=CAUSE_KEY)
    for name in CAUSE_KEY.names or ():
        keys[name] = entries[name]
    return keys


def _fresh(key: Any) -> Any:
    entry = np.zeros((), dtype=CAUSE)
    for name in CAUSE_KEY.names or ():
        entry[name] = key[name]
    return entry


def _name(entry: Any, exit_: Any) -> None:
    """The latest name of its threads."""
    entry["next_comm"] = exit_["next_comm"]
    if int(exit_["flags"]) & Flag.WAKER and int(exit_["waker_context"]) == WakerContext.TASK:
        entry["waker_comm"] = exit_["waker_comm"]


def hash_periods(cpus: AggregateArray, sequences: AggregateArray) -> AggregateArray:
    """Which periods are sent as records: those whose hash is 0 under the mask. The choice of a longer mask is an even
    sample of a shorter one's."""
    hashed = (sequences.astype(np.uint64) ^ (cpus.astype(np.uint64) * 0x9E3779B1 & _MASK)) * 0x85EBCA6B & _MASK
    hashed ^= hashed >> np.uint64(13)
    hashed = hashed * 0xC2B2AE35 & _MASK
    hashed_twice: AggregateArray = hashed ^ hashed >> np.uint64(16)
    return hashed_twice


# The numbers that the idle-exit program and its reader tell each other while it runs.


def write_shared(program: LoadedProgram, which: Shared, value: int) -> None:
    """Tell the program."""
    program.put("shared", which, value.to_bytes(8, "little"))


def read_shared(program: LoadedProgram, which: Shared) -> int:
    """The value that the program or we wrote last."""
    return int.from_bytes(program.get("shared", which), "little")


# How long each thread of the host ran, as the program sums it at its switches (probes/bpf/running.bpf.h).

_FIELDS = {
    "task_struct_flags": ("task_struct", "flags"),
    "task_struct_se": ("task_struct", "se"),
    "sched_entity_sum_exec_runtime": ("sched_entity", "sum_exec_runtime"),
}


def run_time_definitions(btf: Btf) -> dict[str, int]:
    """What running.bpf.h is compiled with."""
    state = "__state" if btf.has_field("task_struct", "__state") else "state"  # renamed by 2f064a59a11f
    return {
        **build_struct_definitions(btf, _FIELDS),
        "OFFSET_task_struct_state": btf.field_offset("task_struct", state),
    }


@dataclass(frozen=True)
class RunTimes:
    """Running time in a window, in ns: of each thread that lives (layout.RUN_TIME), and the sums of all that ended or
    found no slot, by whether they are the target's."""

    threads: Array
    others_ns: int = 0
    target_ns: int = 0


class RunTimeReader:
    """Reads one program's sums again and again; each call returns what came since the one before."""

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program
        self._last = np.zeros(program.slots("run_times"), dtype=RUN_SLOT)

    def clear(self) -> None:
        """Forget everything: while no CPU's window is open, so that nothing is added meanwhile."""
        empty = bytes(RUN_SLOT.itemsize)
        for slot in np.flatnonzero(self._read()["who"]).tolist():
            self._program.put("run_times", slot, empty)
        self._last = np.zeros_like(self._last)

    def since(self, totals: Array) -> RunTimes:
        """What came since the last call. `totals`: what the CPUs' sums (layout.CPU_TOTAL) grew by, read before."""
        last, self._last = self._last, self._read()
        return subtract_run_times(last, self._last, totals["unplaced_ns"].sum(axis=0).tolist())

    def _read(self) -> Array:
        return np.frombuffer(self._program.table_bytes("run_times"), dtype=RUN_SLOT)


def subtract_run_times(last: Array, now: Array, unplaced_ns: Sequence[int]) -> RunTimes:
    """Pure: what threads ran between two looks at their slots (layout.RUN_SLOT), and what was added to the sums of
    others and the target's meanwhile."""
    same = now["who"] == last["who"]
    before = np.where(same, last["ns"], 0)
    ran = np.where(now["ns"] > before, now["ns"] - before, 0)
    chosen = (now["who"] != 0) & (ran > 0)
    threads = np.zeros(np.count_nonzero(chosen), dtype=RUN_TIME)
    threads["tid"], threads["pid"] = now["who"][chosen] & np.uint64(0xFFFFFFFF), now["who"][chosen] >> np.uint64(32)
    threads["ns"], threads["kind"] = ran[chosen], now["kind"][chosen]
    # A thread that ended took all that it ever ran to the sums: what it had run at the last look was counted then.
    ended, is_target = (last["who"] != 0) & ~same, last["kind"] == RunKind.TARGET
    counted_ns = [int(last["ns"][ended & (is_target == of_target)].sum()) for of_target in (False, True)]
    others_ns, target_ns = (max(0, int(sum_ns) - ns) for sum_ns, ns in zip(unplaced_ns, counted_ns, strict=True))
    return RunTimes(threads, others_ns, target_ns)


# Pure: residency from traced idle periods, where no cpuidle driver counts them.

# What the idle loop says to the cpu_idle tracepoint without a driver: 0 from cpu_idle_poll() (idle=poll), 1 from
# default_idle_call() (kernel/sched/idle.c).
DRIVERLESS_STATES = ("poll", "idle")
_POLLING = frozenset({0})


def compute_traced_residency(
    totals: Array, edges: Mapping[int, CpuEdge], *, stat_idle_percent: float | None, own_pid: int, started_at: str
) -> Window:
    """The idle time of a window from its CPUs' sums (layout.CPU_TOTAL). No idle period is open at a CPU's edges: those
    that our own coming onto a CPU ended at the last edge (`own_pid` ran there) are in no rate.
    """
    mine = totals[sorted(edges)]
    wall_ns = sum(edge.end_ns - edge.start_ns for edge in edges.values())
    window_s = wall_ns / len(edges) / 1e9 if edges else None
    forced = int(np.count_nonzero(mine["last_tgid"] == own_pid))
    exits = int(mine["count"].sum())
    states = _states(mine, wall_ns, window_s) if window_s else []
    idle = sum(state.residency_percent or 0.0 for state in states) if exits else stat_idle_percent
    notes = ["no cpuidle driver: idle states are unknown, idle time and wake-ups are traced"]
    if exits and stat_idle_percent is not None:
        notes.append(f"/proc/stat reports {stat_idle_percent:.2f} % idle, the trace {idle:.2f} %")
    return Window(
        started_at=started_at,
        window_s=window_s,
        cpus=len(edges),
        c0_percent=None if idle is None else max(0.0, 100.0 - idle),
        idle_percent=idle,
        wakeups_hz=(exits - forced) / window_s if window_s else None,
        states=states,
        residual_percent=None if idle is None else max(0.0, idle - 100.0),
        edge_exits_count=forced,
        residency_source="trace",
        notes=notes,
    )


def _states(totals: Array, wall_ns: int, window_s: float) -> list[StateResidency]:
    states = []
    for number in np.flatnonzero(totals["count"].sum(axis=0)).tolist():
        entries, idle_ns = int(totals["count"][:, number].sum()), int(totals["idle_ns"][:, number].sum())
        percent, polling = 100.0 * idle_ns / wall_ns, number in _POLLING
        states.append(
            StateResidency(
                name=DRIVERLESS_STATES[number] if number < len(DRIVERLESS_STATES) else f"state {number}",
                residency_percent=0.0 if polling else percent,
                average_residency_ms=idle_ns / entries / 1e6,
                entries_hz=entries / window_s,
                time_us=idle_ns / 1e3,
                entries_count=entries,
                polling=polling,
                polling_percent=percent if polling else None,
            )
        )
    return states


# What was seen of threads where they sleep: the records that a trace fills and a capture keeps.


class SavedSite(msgspec.Struct, frozen=True, array_like=True):
    """Where a thread slept or woke another; `kind`: a StackKind. `stack` is empty if only registers are known.

    `chain` are the frames of its interpreter, as interpreter.bpf.h has them.
    """

    at_ns: int
    pid: int
    tid: int
    kind: int
    ip: int
    sp: int
    code: int
    registers: bytes
    stack: bytes
    chain: bytes = b""


def decode_site(data: bytes, register_bytes: int) -> SavedSite:
    """A record of the ring buffer of stacks: the header, so many bytes of registers, and the stack."""
    header = np.frombuffer(data, dtype=STACK_HEADER, count=1)[0]
    frames_at = STACK_HEADER.itemsize + register_bytes
    stack_at = frames_at + FRAMES_BYTES
    words = int.from_bytes(data[frames_at : frames_at + 8], "little")
    stack = data[stack_at : stack_at + int(header["bytes"])]
    return SavedSite(
        int(header["at_ns"]),
        int(header["tgid"]),
        int(header["tid"]),
        int(header["kind"]),
        int(header["ip"]),
        int(header["sp"]),
        int(header["code"]),
        data[STACK_HEADER.itemsize : frames_at],
        stack,
        data[frames_at + 8 : frames_at + 8 + min(8 * words, CHAIN_BYTES)],
    )


class SiteWakings(msgspec.Struct, frozen=True, array_like=True):
    """How often sleeps of one thread at one site were ended by one thing; the fields are those of struct woken_key."""

    tid: int
    pid: int
    ip: int
    sp: int
    code: int
    context: int
    timer_function: int
    irq: int
    waker_tid: int
    waker_pid: int
    count: int


class SleepingStack(msgspec.Struct, frozen=True, array_like=True):
    """Stack bytes of a blocked thread from `sp` up; its registers are not known yet."""

    pid: int
    tid: int
    ip: int
    sp: int
    stack: bytes
    chain: bytes = b""
