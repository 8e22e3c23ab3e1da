# SPDX-License-Identifier: Apache-2.0
"""The records and sums of the idle-exit program as numpy types, and pure functions over them.

The layouts are those of probes/bpf/idle_period.h, causes.h, stacks.bpf.h, switch.bpf.h and reader_wakeup.bpf.h. The
kernel sums idle exits by cause (causes.h). `aggregate_exits` does the same for single records: periods that are open at
the end of a window, and captures that were saved before the kernel summed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from powerprof.model.records import StateResidency, Window
from powerprof.system.paths import procfs
from powerprof.system.tasks import ENDED, ENDED_IN_TARGET, OUTSIDE
from powerprof.tracing.bpf.shared_numbers import (
    CAUSE_STATES,
    COMM_BYTES,
    IDLE_LIFE,
    Flag,
    RunKind,
    WakeEvidence,
    WakerContext,
)
from powerprof.tracing.captures import Array, CpuEdge

# The fields that name a cause, in the order of both a record and a key.
_PLACES = ("timer_function", "work_function", "site_ip", "site_sp", "site_code")
_WAKER_PLACES = ("waker_timer_function", "waker_ip", "waker_sp", "waker_code")
_THREADS = ("evidence", "irq", "flags", "next_tid", "next_tgid", "waker_tid", "waker_tgid")
_WAKING = ("waker_context", "waker_irq", "woken_tid")


def _struct(words: tuple[str, ...], halves: tuple[str, ...], *others: tuple[str, str]) -> np.dtype[np.void]:
    """Return a type of u64 fields, then u32 fields, then others."""
    return np.dtype([*((name, "<u8") for name in words), *((name, "<u4") for name in halves), *others])


IDLE_EXIT = _struct(
    ("enter_ns", "exit_ns", "next_ns", *_PLACES, *_WAKER_PLACES),
    ("cpu", "state", *_THREADS, "waker_cpu", *_WAKING, "sequence"),
    ("next_comm", f"S{COMM_BYTES}"),
    ("waker_comm", f"S{COMM_BYTES}"),
)

# struct cause_key and struct cause_sum, one after the other: probes/bpf/causes.h.
CAUSE_KEY = _struct((*_PLACES, *_WAKER_PLACES), (*_THREADS, *_WAKING))
CAUSE_SUM = np.dtype(
    [(name, "<u8") for name in ("count", "running_ns", "idle_ns", "own_ns", "kernel_ns")]
    + [(name, "<u8") for name in ("last_ns", "period_ns", "fitting_ns")]
    + [(name, "<u4") for name in ("fitting_gaps", "fitting_periods", "gaps", "votes")]
    + [("states", "<u4", (CAUSE_STATES,)), ("next_comm", f"S{COMM_BYTES}"), ("waker_comm", f"S{COMM_BYTES}")]
)
CAUSE = np.dtype([*((name, CAUSE_KEY[name]) for name in CAUSE_KEY.names or ()), *CAUSE_SUM.descr])
# The fields that only grow. The others hold regularity and names.
SUMS = ("count", "running_ns", "idle_ns", "own_ns", "kernel_ns", "states")

# struct woken_key of sleep_sites.bpf.h, and its count.
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

# Running time of a thread, and struct run_time of switch.bpf.h: `who` is the tid and, above it, the pid. `exited` is
# the latest thread of the slot that exited, with its last name.
RUN_TIME = np.dtype([("tid", "<u4"), ("pid", "<u4"), ("ns", "<u8"), ("kind", "<u8")])
RUN_SLOT = np.dtype(
    [(name, "<u8") for name in ("who", "ns", "kind", "exited")]
    + [("exited_comm", f"S{COMM_BYTES}"), ("exited_life", "<u4"), ("gap", "V12")]
)

# struct cpu_state. It begins with the open period.
CPU_STATE = np.dtype(
    [("period", IDLE_EXIT)]
    + [(name, "<u4") for name in ("phase", "hardirq", "softirq", "softirq_by_irq")]
    + [(name, "<u4") for name in ("raised_by_irq", "vector")]
    + [(name, "<u8") for name in ("timer_active", "meter_start_ns")]
    + [(name, "<u4") for name in ("meter_captures", "was_loaded", "captures_skipped", "was_brisk")]
    + [("busy_checked_ns", "<u8"), ("idled_ns", "<u8"), ("threaded_irq", "<u4"), ("running_tid", "<u4")]
    + [(name, "<u8") for name in ("switch_in_ns", "own_ns", "kernel_ns")]
    + [("is_task_awake", "<u4"), ("first_not_busy", "<u4"), ("offline_ns", "<u8"), ("gap", "V128")]
)

# struct stack_record. The machine's registers and the stack follow.
STACK_HEADER = np.dtype(
    [(name, "<u8") for name in ("at_ns", "ip", "sp", "code")]
    + [(name, "<u4") for name in ("tid", "tgid", "kind", "bytes")]
    + [("space", "<u8")]
)

# Entries of a table since it was emptied, or bytes of a ring buffer since its start: struct fill_level of
# reader_wakeup.bpf.h, one per FilledTable.
FILL_LEVEL = np.dtype([(name, "<u8") for name in ("amount", "limit", "is_called")])

SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")


_FLAGS = Flag.TICK | Flag.NO_TASK | Flag.WAKER | Flag.TIMER_WHEEL | Flag.SITE | Flag.WAKER_SITE | Flag.RUNNABLE
_WHO = Flag.KERNEL | Flag.WAKER_KERNEL | IDLE_LIFE
_MASK = (1 << 32) - 1


def build_cause_keys(exits: Array) -> Array:
    """Return the cause (CAUSE_KEY) of each record (IDLE_EXIT)."""
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
    """Return the number of periods in an interval: 1 to 3, or 0 if it is not a multiple within a tenth of a period."""
    tenth = period // 10
    return next((number for number in (1, 2, 3) if number * period - tenth <= gap <= number * period + tenth), 0)


def _add_interval(entry: Any, at_ns: int) -> None:
    """Add an interval to a cause, in place. A majority vote of the intervals chooses the candidate period."""
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


def aggregate_exits(exits: Array, base: Array | None = None) -> Array:
    """Return the sums by cause (CAUSE) of `base` and of these records, which are in order of their ends."""
    known = np.zeros(0, dtype=CAUSE) if base is None else base
    keys = build_cause_keys(exits)
    # A cause has several entries if the double buffer was turned between them. The last one grows.
    places = {key.tobytes(): place for place, key in enumerate(_keys_of(known))}
    where, size = [], len(known)
    for key in keys:
        place = places.setdefault(key.tobytes(), size)
        size = max(size, place + 1)
        where.append(place)
    entries = np.concatenate([known, np.zeros(size - len(known), dtype=CAUSE)])
    for number, place in enumerate(where):
        if place >= len(known) and not entries["count"][place]:
            for name in CAUSE_KEY.names or ():
                entries[name][place] = keys[number][name]
        entries["count"][place] += 1
        _set_names(entries[place], exits[number])
    running = np.where(exits["next_ns"] > exits["exit_ns"], exits["next_ns"] - exits["exit_ns"], 0)
    np.add.at(entries["running_ns"], where, running)
    np.add.at(entries["idle_ns"], where, exits["exit_ns"] - exits["enter_ns"])
    np.add.at(entries["states"], (where, np.minimum(exits["state"], CAUSE_STATES - 1)), 1)
    for place, at_ns in zip(where, exits["exit_ns"].tolist(), strict=True):
        _add_interval(entries[place], at_ns)
    return entries


def _keys_of(entries: Array) -> Array:
    keys = np.zeros(len(entries), dtype=CAUSE_KEY)
    for name in CAUSE_KEY.names or ():
        keys[name] = entries[name]
    return keys


def _set_names(entry: Any, idle_exit: Any) -> None:
    """Store the latest names of the threads of a cause, in place."""
    entry["next_comm"] = idle_exit["next_comm"]
    if int(idle_exit["flags"]) & Flag.WAKER and int(idle_exit["waker_context"]) == WakerContext.TASK:
        entry["waker_comm"] = idle_exit["waker_comm"]


def set_last_names(causes: Array, exited: Array) -> None:
    """Set the names of exited threads to their last names, in place.

    A short-lived thread may name itself after its last waking. `exited`: slots (RUN_SLOT) of threads that exited.
    """
    if not len(exited):
        return
    exited = exited[np.argsort(exited["exited"])]
    lives = causes["flags"] & np.uint32(IDLE_LIFE)
    for role in ("next", "waker"):
        who = causes[f"{role}_tgid"].astype(np.uint64) << np.uint64(32) | causes[f"{role}_tid"]
        slots = exited[np.minimum(np.searchsorted(exited["exited"], who), len(exited) - 1)]
        same = slots["exited"] == who
        if role == "next":
            same &= slots["exited_life"] == lives
        causes[f"{role}_comm"][same] = slots["exited_comm"][same]


def hash_periods(cpus: Array, sequences: Array) -> Array:
    """Return a hash of each period. A period is sampled if its hash is 0 under the mask.

    The choice of a longer mask is an even sample of the choice of a shorter one.
    """
    hashed = (sequences.astype(np.uint64) ^ (cpus.astype(np.uint64) * 0x9E3779B1 & _MASK)) * 0x85EBCA6B & _MASK
    hashed ^= hashed >> np.uint64(13)
    hashed = hashed * 0xC2B2AE35 & _MASK
    hashed_twice: Array = hashed ^ hashed >> np.uint64(16)
    return hashed_twice


# Names that have groups of their own. Programs choose the names of their threads, so the number is limited.
_MOST_NAMES = 1000
_SITE, _WAKER_SITE = ("site_ip", "site_sp", "site_code"), ("waker_ip", "waker_sp", "waker_code")


def sum_causes(entries: Array) -> Array:
    """Return one entry (CAUSE) per key. Regularity comes from the entry with the most intervals."""
    return sum_by_key(entries, CAUSE_KEY.names or (), SUMS, "gaps")


def sum_wakings(entries: Array) -> Array:
    """Return one entry (WOKEN) per key."""
    return sum_by_key(entries, WOKEN_KEY.names or (), ("count",), "count")


def sum_by_key(entries: Array, names: Sequence[str], sums: Sequence[str], best: str) -> Array:
    """Return one entry per key (the fields `names`).

    The fields `sums` are added up. All other fields come from the entry with the largest field `best`.
    """
    if not len(entries):
        return entries
    keys = np.zeros(len(entries), dtype=[(name, entries.dtype[name]) for name in names])
    for name in names:
        keys[name] = entries[name]
    _, group = np.unique(keys.view(f"V{keys.dtype.itemsize}").ravel(), return_inverse=True)
    order = np.lexsort((entries[best], group))
    last = np.flatnonzero(np.diff(group[order], append=-1))
    whole: Array = entries[order[last]]
    for name in sums:
        total = np.zeros_like(whole[name])
        np.add.at(total, group, entries[name])
        whole[name] = total
    return whole


def _is_there(tid: int) -> bool:
    return os.path.exists(f"{procfs()}/{tid}")  # noqa: PTH110 - thousands at once, and a Path takes four times as long


class EndedThreads:
    """Groups of ended threads with the same name. Each group has a number from `ENDED` on.

    A short-lived thread is a cause of its own, by its number. A host on which a thousand threads start per second
    would make millions of causes in an hour. Their names and wakers are enough.
    """

    def __init__(self, is_there: Callable[[int], bool] = _is_there) -> None:
        self._is_there = is_there
        self._numbers: dict[tuple[bytes, int, int], int] = {}
        # Names of threads that ended recently: the rest of their records comes a moment later.
        self._recent_names: dict[int, bytes] = {}

    def fold(
        self,
        causes: Array,
        wakings: Array,
        kept: Collection[int] = (),
        target: Collection[int] = (),
        last_names: Mapping[int, bytes] | None = None,
    ) -> tuple[Array, Array]:
        """Return causes (CAUSE) and wakings (WOKEN) with ended threads grouped by name.

        `last_names`: names by thread id of threads that are in no cause.

        A living process keeps its number. So does a process of `kept`, together with the places where its threads
        slept, because its stacks are known. For other ended processes only the name stays, and whether the process was
        one of `target`.
        """
        seen: dict[int, bool] = {0: True}

        def is_there(tid: int) -> bool:
            if tid not in seen:
                seen[tid] = tid >= OUTSIDE or self._is_there(tid)
            return seen[tid]

        names = dict(last_names or {})
        for who in ("waker", "next"):
            names.update(zip(causes[f"{who}_tid"].tolist(), causes[f"{who}_comm"].tolist(), strict=True))
        before, self._recent_names = self._recent_names, {}

        def number(tid: int, tgid: int, own: bytes = b"") -> tuple[int, int]:
            """Return the numbers that represent a thread and its process."""
            if is_there(tid):
                return tid, tgid
            name = self._recent_names[tid] = own or names.get(tid) or before.get(tid, b"")
            stays = tgid if tgid in kept or is_there(tgid) else 0
            first = ENDED_IN_TARGET if tgid in target else ENDED
            if (name, stays, first) not in self._numbers and len(self._numbers) >= _MOST_NAMES:
                name = b""
            folded = self._numbers.setdefault((name, stays, first), first + len(self._numbers))
            return folded, stays or folded

        causes, wakings = causes.copy(), wakings.copy()
        _renumber(causes, "next_tid", "next_tgid", number, (_SITE, Flag.SITE))
        _renumber(causes, "waker_tid", "waker_tgid", number, (_WAKER_SITE, Flag.WAKER_SITE))
        causes["woken_tid"] = [number(tid, 0)[0] for tid in causes["woken_tid"].tolist()]
        _renumber(wakings, "tid", "pid", number)
        _renumber(wakings, "waker_tid", "waker_pid", number)
        return sum_causes(causes), sum_wakings(wakings)


def _renumber(
    entries: Array,
    thread: str,
    process: str,
    number: Callable[[int, int, bytes], tuple[int, int]],
    site: tuple[Sequence[str], int] | None = None,
) -> None:
    """Replace the numbers of threads and processes, in place.

    `site`: the fields of the thread's place and their flag, which are cleared if the process has ended.
    """
    if not len(entries):
        return
    comm = thread.replace("_tid", "_comm")
    names = entries[comm].tolist() if site is not None else [b""] * len(entries)
    trios = list(zip(entries[thread].tolist(), entries[process].tolist(), names, strict=True))
    folded = {trio: number(*trio) for trio in set(trios)}
    entries[thread] = [folded[trio][0] for trio in trios]
    entries[process] = [folded[trio][1] for trio in trios]
    if site is not None:
        if thread == "next_tid":
            # Threads of one name share a number whenever they started.
            entries["flags"][entries[thread] >= ENDED] &= ~np.uint32(IDLE_LIFE)
        gone = entries[process] >= ENDED
        for name in site[0]:
            entries[name][gone] = 0
        entries["flags"][gone] &= ~np.uint32(site[1])


class RunTimes(msgspec.Struct, frozen=True):
    """Running time in a window, in ns: of each living thread (RUN_TIME), and the sums of all other threads.

    `target_ns`: threads of the target that ended or found no slot. `others_ns`: such threads of other processes.
    """

    threads: Array
    others_ns: int = 0
    target_ns: int = 0


def subtract_run_times(last: Array, now: Array, unplaced_ns: Sequence[int]) -> RunTimes:
    """Return the running time between two readings of the threads' slots (RUN_SLOT).

    `unplaced_ns`: the growth of the sums of others and of the target in the same time.
    """
    same = now["who"] == last["who"]
    before = np.where(same, last["ns"], 0)
    ran = np.where(now["ns"] > before, now["ns"] - before, 0)
    chosen = (now["who"] != 0) & (ran > 0)
    threads = np.zeros(np.count_nonzero(chosen), dtype=RUN_TIME)
    threads["tid"], threads["pid"] = now["who"][chosen] & np.uint64(0xFFFFFFFF), now["who"][chosen] >> np.uint64(32)
    threads["ns"], threads["kind"] = ran[chosen], now["kind"][chosen]
    # A thread that ends adds all its running time to the sums. The part until the last reading was counted then.
    ended, is_target = (last["who"] != 0) & ~same, last["kind"] == RunKind.TARGET
    counted_ns = [int(last["ns"][ended & (is_target == of_target)].sum()) for of_target in (False, True)]
    others_ns, target_ns = (max(0, int(sum_ns) - ns) for sum_ns, ns in zip(unplaced_ns, counted_ns, strict=True))
    return RunTimes(threads, others_ns, target_ns)


# Arguments of the cpu_idle tracepoint without a driver: 0 from cpu_idle_poll() (idle=poll), 1 from default_idle_call()
# (kernel/sched/idle.c).
DRIVERLESS_STATES = ("poll", "idle")
_POLLING = frozenset({0})


def compute_traced_residency(
    totals: Array, edges: Mapping[int, CpuEdge], *, stat_idle_percent: float | None, own_pid: int, started_at: str
) -> Window:
    """Return the residency of a window from its CPUs' sums (CPU_TOTAL), if no cpuidle driver counts.

    No idle period is open at a CPU's edges. Periods that powerprof itself ended by moving to a CPU at the last edge
    (`own_pid` ran there) are in no rate. `started_at`: RFC 3339.
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


class SavedSite(msgspec.Struct, frozen=True, array_like=True):
    """The place where a thread slept or woke another.

    `kind` is a StackKind. `stack` is empty if only registers are known. `space` is that of the process's
    image; 0 if it is unknown.
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
    space: int = 0


def decode_site(data: bytes, register_bytes: int) -> SavedSite:
    """Decode a record of the ring buffer of stacks. `register_bytes`: the size of the machine's registers."""
    header = np.frombuffer(data, dtype=STACK_HEADER, count=1)[0]
    stack_at = STACK_HEADER.itemsize + register_bytes
    stack = data[stack_at : stack_at + int(header["bytes"])]
    return SavedSite(
        int(header["at_ns"]),
        int(header["tgid"]),
        int(header["tid"]),
        int(header["kind"]),
        int(header["ip"]),
        int(header["sp"]),
        int(header["code"]),
        data[STACK_HEADER.itemsize : stack_at],
        stack,
        int(header["space"]),
    )


class SiteWakings(msgspec.Struct, frozen=True, array_like=True):
    """The number of wakings of one thread at one site by one waker. The fields are those of struct woken_key."""

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
    """The stack of a blocked thread from `sp` up. Its registers are not known yet."""

    pid: int
    tid: int
    ip: int
    sp: int
    stack: bytes
