# SPDX-License-Identifier: Apache-2.0
"""Read the tables and ring buffers of the idle-exit program, without waking the CPUs that it measures.

The kernel sums every idle exit of the window by its cause; the sums are read once, at the end. Single periods come
through a ring buffer, as an even sample. The kernel wakes powerprof only if a buffer or a table is a quarter full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from powerprof.measure.clock import kernel_ns
from powerprof.system.tasks import ENDED
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.maps import DoubleBufferedTable
from powerprof.tracing.bpf.shared_numbers import CAUSE_HALF, CAUSE_STATES, CpuPhase, FilledTable, Flag, Shared
from powerprof.tracing.captures import Array
from powerprof.tracing.idle_data import (
    CAUSE,
    CAUSE_KEY,
    CAUSE_SUM,
    CPU_STATE,
    CPU_TOTAL,
    FILL_LEVEL,
    IDLE_EXIT,
    RUN_SLOT,
    SUMS,
    WOKEN,
    WOKEN_COUNT,
    WOKEN_KEY,
    EndedThreads,
    RunTimes,
    hash_periods,
    set_last_names,
    subtract_run_times,
    sum_causes,
    sum_wakings,
)
from powerprof.tracing.idle_program import write_shared
from powerprof.tracing.idle_stacks import TargetMembers

_MAX_TRIES = 4


class CpuWindows:
    """Each CPU's own window in the program: its edges, its sums, and the period that is open at its end.

    Nothing is counted on a CPU before `open`.
    """

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program
        self._last = self._now = np.zeros(program.slots("totals"), dtype=CPU_TOTAL)
        self._states_at_end: dict[int, Array] = {}

    def reset(self) -> None:
        """Close the window of every CPU and drop its sums."""
        self._last = self._now = np.zeros(len(self._last), dtype=CPU_TOTAL)
        self._states_at_end = {}
        for cpu, total in enumerate(self._last):
            self._program.put("totals", cpu, total.tobytes())

    def open(self, cpu: int, at_ns: int) -> None:
        """Begin the window of one CPU. The caller keeps that CPU awake meanwhile."""
        total = np.zeros((), dtype=CPU_TOTAL)
        total["start_ns"] = at_ns
        self._program.put("totals", cpu, total.tobytes())

    def close(self, cpu: int, at_ns: int) -> None:
        """End the window of one CPU. The caller keeps that CPU awake, so its sums and its open period do not change."""
        total = np.frombuffer(self._program.get("totals", cpu), dtype=CPU_TOTAL)[0].copy()
        if total["start_ns"]:
            total["end_ns"] = at_ns
            self._program.put("totals", cpu, total.tobytes())
            self._states_at_end[cpu] = np.frombuffer(self._program.get("cpus", cpu), dtype=CPU_STATE)

    def set_polling_states(self, states: Iterable[int]) -> None:
        """Tell the program which idle states, by number, are polls. An interrupt does not end a poll."""
        write_shared(self._program, Shared.POLLS, sum(1 << number for number in states))

    def states(self) -> Array:
        """Return the present state of each CPU (CPU_STATE)."""
        return np.frombuffer(self._program.table_bytes("cpus"), dtype=CPU_STATE)

    def read_totals(self) -> None:
        """Read the sums of all CPUs, for `take`."""
        self._now = np.frombuffer(self._program.table_bytes("totals"), dtype=CPU_TOTAL)

    def take(self, *, with_open: bool) -> tuple[Array, Array]:
        """Return the sums of `read_totals` since the last call (CPU_TOTAL), and the periods still open (IDLE_EXIT).

        The sums contain the open periods too. Without `with_open` no open period is returned or summed.
        """
        now = self._now
        totals = now.copy()
        for name in ("count", "idle_ns", "unplaced_ns"):
            totals[name] -= self._last[name]
        self._last = now
        open_periods = self._find_open_periods(now) if with_open else np.zeros(0, dtype=IDLE_EXIT)
        for period in open_periods:
            total, state = totals[period["cpu"]], min(int(period["state"]), CAUSE_STATES - 1)
            total["count"][state] += 1
            total["idle_ns"][state] += int(period["exit_ns"]) - max(int(period["enter_ns"]), int(total["start_ns"]))
            total["last_tgid"] = period["next_tgid"]
        return totals, open_periods

    def read_idle_until_now(self) -> tuple[Array, Array]:
        """Return the sums of all windows so far with the open periods (CPU_TOTAL), and the time of reading by CPU.

        The times are CLOCK_MONOTONIC in ns. The kernel sums a period when its CPU idles again. Sums and states belong
        to one moment if the states before and after reading the sums agree. A CPU that changes at each try is wrong by
        one of its periods, which are short.
        """
        sums, at_ns = np.zeros(len(self._last), dtype=CPU_TOTAL), np.zeros(len(self._last), dtype=np.uint64)
        unsettled = np.ones(len(sums), dtype=bool)
        for _ in range(_MAX_TRIES):
            before, now_ns = self.states(), kernel_ns()
            totals = np.frombuffer(self._program.table_bytes("totals"), dtype=CPU_TOTAL)
            after = self.states()
            sums[unsettled], at_ns[unsettled] = _add_open_idle(totals, before, now_ns)[unsettled], now_ns
            same = before["phase"] == after["phase"]
            unsettled &= ~(same & (before["period"]["enter_ns"] == after["period"]["enter_ns"]))
            if not unsettled.any():
                break
        return sums, at_ns

    def _find_open_periods(self, totals: Array) -> Array:
        """Return the periods of CPUs that had left idle and were running at the end of their windows.

        The kernel sums none of these. A CPU that went offline has no last edge; its last state counts.
        """
        states = self.states().copy()
        for cpu, state in self._states_at_end.items():
            states[cpu] = state[0]
        left_ns = states["period"]["exit_ns"]
        inside = (totals["start_ns"] > 0) & (left_ns >= totals["start_ns"])
        inside &= (totals["end_ns"] == 0) | (left_ns <= totals["end_ns"])
        runs = np.isin(states["phase"], (CpuPhase.LEFT, CpuPhase.RUNNING))
        periods: Array = states["period"][inside & runs].copy()
        periods["flags"] |= np.uint32(Flag.OPEN)
        periods["next_ns"] = 0
        return periods


def _add_open_idle(totals: Array, states: Array, now_ns: int) -> Array:
    """Return the sums with the idle time until now of the period that is open on each CPU."""
    whole = totals.copy()
    opened = (totals["start_ns"] > 0) & (states["phase"] != CpuPhase.UNKNOWN)
    for cpu in np.flatnonzero(opened).tolist():
        period = states[cpu]["period"]
        idles = states[cpu]["phase"] == CpuPhase.IDLE
        end_ns = now_ns if idles else int(period["exit_ns"])
        begin_ns = max(int(period["enter_ns"]), int(totals[cpu]["start_ns"]))
        whole[cpu]["idle_ns"][min(int(period["state"]), CAUSE_STATES - 1)] += max(0, end_ns - begin_ns)
    return whole


_TABLES = (FilledTable.CAUSES, FilledTable.WOKEN)
_NO_LIMIT = 1 << 62


class FillLimits:
    """Fill levels of a program's tables and ring buffers at which the kernel wakes the reader (reader_wakeup.bpf.h)."""

    def __init__(self, program: LoadedProgram, count_living: Callable[[], Mapping[FilledTable, int]]) -> None:
        """Set the first limits.

        `count_living`: the tables and buffers that the program has. For tables, the number of entries read so far
        whose threads still live; other entries do not come again, so the table may fill further.
        """
        self._program, self._count_living = program, count_living
        self.reset()

    def reset(self) -> None:
        """Set the limits of empty tables."""
        self._set_limits(np.zeros(len(FilledTable), dtype=FILL_LEVEL))

    def drain(self, gather: Callable[[], object]) -> None:
        """Empty full tables by `gather` and let the kernel wake us again. Ring buffers are emptied before."""
        levels = self._read()
        tables = levels[list(_TABLES)]
        if np.any(tables["amount"] >= tables["limit"]):
            # First: new entries go into the other half from now on.
            self._set_limits(np.zeros_like(levels))
            gather()
            self._set_limits(self._read())
        elif np.any(levels["is_called"]):
            self._set_limits(levels)

    def _read(self) -> Array:
        return np.frombuffer(self._program.table_bytes("fill_levels"), dtype=FILL_LEVEL)

    def _set_limits(self, levels: Array) -> None:
        living = self._count_living()
        for table in FilledTable:
            level = levels[table].copy()
            level["limit"], level["is_called"] = self._limit(table, int(level["amount"]), living), 0
            self._program.put("fill_levels", table, level.tobytes())

    def _limit(self, table: FilledTable, amount: int, living: Mapping[FilledTable, int]) -> int:
        if table not in living:
            return _NO_LIMIT
        slots = self._program.slots(table.name.lower())
        if table not in _TABLES:
            return amount + slots // 4
        # Entries of living threads come again; the rest may fill a quarter of the table.
        return min(slots // 4 + living[table], slots * 3 // 4)


# Records that a window keeps besides its sums: 11 MB. With more periods it keeps one in two, four, ...
SAMPLE_LIMIT = 50_000
# 80 MB: the periods of 20 s at 20,000 idle exits per second.
EVERY_PERIOD_LIMIT = 400_000
_MASK_FOR_NONE = 0xFFFFFFFF
# A monitor's ring buffer has room for 16 periods, and a quarter of it wakes the reader: after 2,000 idle exits.
_MASK_FOR_STORMS = 0x1FF


class PeriodSample:
    """An even sample of single idle periods, received through a ring buffer."""

    def __init__(self, program: LoadedProgram, *, wanted: bool = True, keeps_all: bool = False) -> None:
        """Register the ring buffer. If `wanted` is False the kernel sends no period.

        If `keeps_all` is set, the first EVERY_PERIOD_LIMIT periods are kept instead of a sample, and the later ones
        are lost.
        """
        self._program, self._first_mask = program, 0 if wanted else _MASK_FOR_NONE
        self._keeps_all, self.dropped_count = keeps_all, 0
        self._records = bytearray()
        self._set_mask(self._first_mask)
        program.ring("exits", self._records.extend)

    def select_few(self) -> None:
        """Receive one period in some hundred, so that storms fill the ring buffer and wake the reader."""
        self._first_mask = _MASK_FOR_STORMS
        self._set_mask(self._first_mask)

    def reset_rate(self) -> None:
        """Let the kernel send every period again."""
        self._set_mask(self._first_mask)

    def clear(self) -> None:
        """Drop the received periods."""
        self._records.clear()
        self.dropped_count = 0

    def limit(self) -> None:
        """Halve the present and future sample until it is within SAMPLE_LIMIT, or drop the newest periods."""
        if self._keeps_all:
            most = EVERY_PERIOD_LIMIT * IDLE_EXIT.itemsize
            self.dropped_count += max(0, len(self._records) - most) // IDLE_EXIT.itemsize
            del self._records[most:]
            return
        while len(self._records) > SAMPLE_LIMIT * IDLE_EXIT.itemsize:
            self._set_mask(self._mask << 1 | 1)
            self._records[:] = self._select(np.frombuffer(self._records, dtype=IDLE_EXIT)).tobytes()

    def take(self, open_periods: Array) -> tuple[Array, int]:
        """Return the periods since the last call by time, open ones last, and N if each is one of N periods."""
        sample = self._select(np.concatenate([np.frombuffer(self._records, dtype=IDLE_EXIT), open_periods]))
        self._records.clear()
        is_open = sample["flags"] & np.uint32(Flag.OPEN) != 0
        return sample[np.lexsort((sample["exit_ns"], is_open))], self._mask + 1

    def _set_mask(self, mask: int) -> None:
        self._mask = mask
        write_shared(self._program, Shared.SAMPLE_MASK, mask)

    def _select(self, exits: Array) -> Array:
        return select_sample(exits, self._mask)


def select_sample(exits: Array, mask: int) -> Array:
    """Return the even sample of single periods (IDLE_EXIT) that this mask selects."""
    chosen: Array = exits[hash_periods(exits["cpu"], exits["sequence"]) & np.uint64(mask) == 0]
    return chosen


# Causes that are kept ungrouped: 1 MB of a saved run.
MOST_CAUSES = 4096
_FUNCTIONS = ("timer_function", "work_function", "waker_timer_function")


class IdleSums:
    """The program's sums: idle exits by cause and, if stacks are copied, wakings by the place of the sleeper.

    The sums are kept here, so they may exceed the program's tables.
    """

    def __init__(self, program: LoadedProgram, members: TargetMembers | None = None) -> None:
        """Read `program`. `members`: the target's processes, if wakings are counted by sleeper."""
        self._program, self._members = program, members
        self._causes = DoubleBufferedTable(
            program,
            "causes",
            (CAUSE_KEY, CAUSE_SUM),
            ("flags", CAUSE_HALF),
            sums=SUMS,
            turn=lambda half: write_shared(program, Shared.CAUSE_HALF, half * CAUSE_HALF),
        )
        self._woken: DoubleBufferedTable | None = None
        if members is not None:
            self._woken = DoubleBufferedTable(
                program,
                "woken",
                (WOKEN_KEY, WOKEN_COUNT),
                ("context", CAUSE_HALF),
                sums=("count",),
                turn=lambda half: write_shared(program, Shared.WOKEN_HALF, half * CAUSE_HALF),
            )
        self._ended = EndedThreads()
        self.drop_kept()

    def drop_kept(self) -> None:
        """Drop the sums that were read and are kept here."""
        self._kept, self._wakings = np.zeros(0, dtype=CAUSE), np.zeros(0, dtype=WOKEN)
        self._had_many = False
        self.exited = np.zeros(0, dtype=RUN_SLOT)

    def clear(self) -> None:
        """Empty the kernel's tables and drop the sums that are kept here."""
        self._causes.clear()
        if self._woken is not None:
            self._woken.clear()
        self.drop_kept()

    def count_living(self) -> dict[FilledTable, int]:
        """Return the program's tables and buffers with the number of kept entries whose threads live."""
        living = {FilledTable.CAUSES: int(np.sum(self._kept["next_tid"] < ENDED)), FilledTable.EXITS: 0}
        if self._woken is not None:
            woken = (self._wakings["tid"] < ENDED) & (self._wakings["waker_tid"] < ENDED)
            living |= {FilledTable.WOKEN: int(np.sum(woken)), FilledTable.STACKS: 0}
        return living

    def gather(self, *, emptied: bool = True, after_read: Callable[[], object] = lambda: None) -> None:
        """Add the contents of the kernel's tables to the kept sums.

        `emptied`: empty the tables in any case. `after_read` is called directly after the causes were read.
        """
        if self._woken is not None and self._members is not None and self._members.counts_wakings:
            self._wakings = np.concatenate([self._wakings, self._woken.since(emptied=emptied)])
        self._kept = np.concatenate([self._kept, self._causes.since(emptied=emptied, after_read=after_read)])
        slots = np.frombuffer(self._program.table_bytes("run_times"), dtype=RUN_SLOT)
        self.exited = slots[slots["exited"] != 0]
        set_last_names(self._kept, self.exited)
        self._group_ended_threads()

    def take_causes(self, after_read: Callable[[], object]) -> Array:
        """Return the idle exits by cause (CAUSE) since `clear` or the last call. `after_read`: see `gather`."""
        self.gather(emptied=False, after_read=after_read)
        causes, self._kept, self._had_many = self._kept, self._kept[:0], False
        return causes

    def take_wakings(self) -> Array:
        """Return the wakings (WOKEN) since `clear` or the last call, up to the last `take_causes`."""
        wakings, self._wakings = self._wakings, self._wakings[:0]
        return wakings

    def last_names(self) -> dict[tuple[int, int], bytes]:
        """Return the last name of each thread that exited, by process and thread id."""
        who = [(number >> 32, number & 0xFFFFFFFF) for number in self.exited["exited"].tolist()]
        return dict(zip(who, self.exited["exited_comm"].tolist(), strict=True))

    def clear_causes(self) -> None:
        """Empty the kernel's table of causes, which have been taken, so that regularity begins anew."""
        self._causes.clear()

    def functions_in(self, causes: Array, wakings: Array | None = None) -> set[int]:
        """Return the addresses of kernel functions in these causes and wakings, by default the kept wakings."""
        woken = self._wakings if wakings is None else wakings
        columns = [*(causes[name] for name in _FUNCTIONS), woken["timer_function"]]
        # `np.unique` imports 10 ms of numpy on its first call.
        return set().union(*(column.tolist() for column in columns)) - {0}

    def _group_ended_threads(self) -> None:
        """Group ended threads by name if there are more than MOST_CAUSES causes or wakings.

        Both tables are grouped at once, because an exit and its waking belong to one thread. Threads that end later in
        the window join the same groups.
        """
        self._kept, self._wakings = sum_causes(self._kept), sum_wakings(self._wakings)
        self._had_many = self._had_many or max(len(self._kept), len(self._wakings)) > MOST_CAUSES
        if not self._had_many:
            return
        members, last_names = self._members, {tid: comm for (_, tid), comm in self.last_names().items()}
        if members is None:
            self._kept, self._wakings = self._ended.fold(self._kept, self._wakings, last_names=last_names)
            return
        named_pids = frozenset(members.target.pids)
        self._kept, self._wakings = self._ended.fold(self._kept, self._wakings, named_pids, members.images, last_names)
        pids = np.concatenate([self._kept["next_tgid"], self._kept["waker_tgid"], self._wakings["pid"]])
        members.drop_ended_joined(set(pids.tolist()))


class RunTimeReader:
    """Reads the running time of threads. Each call returns the time since the call before."""

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program
        self._last = np.zeros(program.slots("run_times"), dtype=RUN_SLOT)

    def clear(self) -> None:
        """Reset all sums. No CPU's window may be open, so that the kernel adds nothing meanwhile."""
        empty = bytes(RUN_SLOT.itemsize)
        slots = self._read()
        for slot in np.flatnonzero(slots["who"] | slots["exited"]).tolist():
            self._program.put("run_times", slot, empty)
        self._last = np.zeros_like(self._last)

    def since(self, totals: Array) -> RunTimes:
        """Return the running time since the last call. `totals`: growth of the CPUs' sums (CPU_TOTAL), read before."""
        last, self._last = self._last, self._read()
        return subtract_run_times(last, self._last, totals["unplaced_ns"].sum(axis=0).tolist())

    def _read(self) -> Array:
        return np.frombuffer(self._program.table_bytes("run_times"), dtype=RUN_SLOT)
