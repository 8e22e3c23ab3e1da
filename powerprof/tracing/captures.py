# SPDX-License-Identifier: Apache-2.0
"""A window's edges on one CPU, and what else counted idle periods: the form in which traces and judges pass them on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from powerprof.stacks.image import ProcessImage
from powerprof.statements.text import Family
from powerprof.tracing.bpf.shared_numbers import WAITS
from powerprof.tracing.bpf.uprobes import ProbeCost

Array = npt.NDArray[Any]
Counter = Literal["cpuidle", "perf"]
_STILL = 2


class CpuEdge(msgspec.Struct, frozen=True, array_like=True):
    """One CPU's window: CLOCK_MONOTONIC at both edges, and how many idle exits the kernel counted in it.

    `usage_delta_count` is Δusage of cpuidle, None where it has no counters; `event_count` perf's count of the cpu_idle
    tracepoint there, None where that is not to be had either; `traced_count` what the trace saw.
    """

    cpu: int
    start_ns: int
    end_ns: int
    usage_delta_count: int | None
    event_count: int | None = None
    traced_count: int | None = None


def count_reference_exits(edges: Mapping[int, CpuEdge]) -> tuple[Counter, int] | None:
    """What the kernel itself counted over all CPUs' windows, and by which counter; None where nothing did.

    Where cpuidle counts, a CPU that it did not count on (`unchecked`) stands with what was traced there: the others are
    checked all the same. An event counter that stood still on a CPU that was traced leaving idle again and again does
    not count there.
    """
    usage = [edge.usage_delta_count for edge in edges.values()]
    events = [edge.event_count for edge in edges.values()]
    if any(count is not None for count in usage):
        traced = sum(edges[cpu].traced_count or 0 for cpu in find_unchecked_cpus(edges))
        return "cpuidle", traced + sum(count for count in usage if count is not None)
    still = any(edge.event_count == 0 and (edge.traced_count or 0) > _STILL for edge in edges.values())
    if events and None not in events and not still:
        return "perf", sum(count for count in events if count is not None)
    return None


def find_unchecked_cpus(edges: Mapping[int, CpuEdge]) -> list[int]:
    """CPUs that cpuidle did not count on all through, where it did on others: they came, went or were reset."""
    without = [cpu for cpu, edge in edges.items() if edge.usage_delta_count is None]
    return without if len(without) < len(edges) else []


def select_in_window(exits: Array, edges: Mapping[int, CpuEdge]) -> Array:
    """The exits that fall into their own CPU's window."""
    size = max(edges, default=0) + 2
    start = np.full(size, np.iinfo(np.uint64).max, dtype=np.uint64)
    end = np.zeros(size, dtype=np.uint64)
    for cpu, edge in edges.items():
        start[cpu], end[cpu] = edge.start_ns, edge.end_ns
    # The last place stands for CPUs without a window.
    cpus = np.minimum(exits["cpu"], size - 1)
    inside: Array = exits[(exits["exit_ns"] >= start[cpus]) & (exits["exit_ns"] <= end[cpus])]
    return inside


# What a window of counted functions is, by uprobes or by DTrace: can be saved and judged elsewhere.


class FunctionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """One function's sums over the window. Times are as measured, the probes' own time within.

    `wall_ns`, `cpu_ns`: from entry to return of outermost calls; `self_…`: without probed functions that it called.
    `abandoned`: calls left without a return (longjmp, exception, or more than 64 return probes deep), None where not
    counted; `unfinished`: still open at the window's end; `children`: direct calls of probed functions. `stepped`: its
    probe costs a second trap.
    """

    name: str
    module: str
    vaddr: int
    calls: int
    returns: int
    abandoned: int | None
    unfinished: int
    wall_ns: int | None
    cpu_ns: int | None
    self_wall_ns: int | None
    self_cpu_ns: int | None
    children: int
    stepped_children: int
    stepped: bool


class FunctionTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A window of function counts as it was collected; `attribution.functions` makes the report of it.

    The costs are None where the backend does not measure them (DTrace). `tool_cpu_s`: powerprof's own CPU time in the
    window, and DTrace's from its start to its end.
    """

    pattern: str
    pids: list[int]
    window_s: float
    functions: list[FunctionCounts]
    hits_count: int
    cost: ProbeCost | None
    stepped_cost: ProbeCost | None
    process_cpu_s: float | None
    unmatched_count: int
    too_deep_count: int
    lost_count: int
    refused: list[tuple[str, str]]
    notes: list[str]
    method: str
    tool_cpu_s: float
    interrupted: bool = False


# What a window of sleeps and wakings is, between its collection and its analysis.


class ThreadSums(msgspec.Struct, frozen=True, kw_only=True):
    """One thread's sleeps by the kernel's state (name → count, ns), its waits once woken and when it was preempted."""

    pid: int
    tid: int
    comm: str
    states: dict[str, tuple[int, int]]
    sleep_max_ns: int
    waits_count: int
    wait_ns: int
    wait_max_ns: int
    preempted_count: int
    preempted_ns: int


class WakingSum(msgspec.Struct, frozen=True, kw_only=True):
    """How often a thread's sleep was ended by another one; `waker_tid` 0 is an interrupt."""

    tid: int
    waker_pid: int
    waker_tid: int
    waker_comm: str
    count: int


class OffCpuTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What was summed in a window. `lost_count`: threads and wakers for which there was no room.

    `unseen_count`: switches to threads for which the kernel did not call the program; how long these had waited for a
    CPU is in no sum.
    """

    pids: list[int]
    window_s: float
    threads: list[ThreadSums]
    wakings: list[WakingSum]
    lost_count: int
    unseen_count: int
    notes: list[str]
    tool_cpu_s: float
    bpf_s: float | None
    interrupted: bool


# What a window of CPU samples or page faults is, between its collection and its analysis: can be saved and moved.

Event = Literal["cpu-clock", "page-faults"]


class UserStack(msgspec.Struct, frozen=True):
    """One user call path as it was copied. `image` is an index into `OnCpuCapture.images`, None where unknown."""

    hash: int
    pid: int
    tid: int
    image: int | None
    registers: bytes
    stack: bytes


class SampleRow(msgspec.Struct, frozen=True):
    """How often one thread was met on a user and a kernel path; a hash of 0 is no path. `what`: the identity of the
    statement that it executed, where that is traced; 0 for none."""

    user: int
    kernel: int
    pid: int
    tid: int
    count: int
    what: int = 0


class OnCpuCapture(msgspec.Struct, frozen=True, kw_only=True):
    """What was collected in a window; can be saved and analysed elsewhere (`attribution.oncpu`).

    `period_ms` is the CPU time that one sample stands for (None for page faults, whose counts are exact).
    `busy_count` are events with a CPU not idle, of any process; `target_count` those of the targets. `kernel` maps a
    hash to addresses, innermost first, `kernel_names` an address to (function, module, start). `missed_count` events
    were seen by the kernel's own counter only.
    """

    event: Event
    pids: list[int] | None
    window_s: float
    cpus: int
    period_ms: float | None
    rows: list[SampleRow]
    users: list[UserStack]
    images: list[ProcessImage]
    kernel: dict[int, list[int]]
    kernel_names: dict[int, tuple[str, str, int]]
    comms: dict[int, str]
    events_count: int
    idle_count: int
    target_count: int
    missed_count: int
    stacks_count: int
    lost_stacks_count: int
    lost_rows_count: int
    notes: list[str]
    tool_cpu_s: float
    bpf_s: float | None = None
    interrupted: bool = False

    @property
    def busy_count(self) -> int:
        """Events while a CPU was not idle."""
        return self.events_count - self.idle_count


# What a window of statements is, between its collection and its analysis: plain values that can be saved.

NO_WAITS = (0,) * WAITS


class StatementUse(msgspec.Struct, frozen=True):
    """What one thread used for one statement; thread 0 are all that had ended, where they were many. `open_count`: of
    `calls`, those that had not ended. `waits_ns`: by `StatementWait`; with `cpu_ns` they are `wall_ns`, but for CPU
    time after the last packet and what was stolen from the running thread. `squares`: the sum of the squares of a
    call's CPU time, in units of 2^`SQUARED_NS_LOG` ns, of those that ended."""

    id: int
    tid: int
    calls: int
    cpu_ns: int
    wall_ns: int
    wakeups: int
    faults: int
    open_count: int = 0
    waits_ns: tuple[int, ...] = NO_WAITS
    squares: int = 0


class RecordedText(msgspec.Struct, frozen=True):
    """The first text of an identity, without the comment that it begins with: `length` is that of the whole, `hashed`
    of what the identity is made of, and `text` what was kept of that. A prepared statement that was prepared before the
    window and of which the server's memory had no text has none; it has the server's number, and the thread that
    executed it."""

    id: int
    command: int
    length: int
    text: bytes
    prepared_number: int = 0
    tid: int = 0
    hashed: int | None = None

    @property
    def may_be_several(self) -> bool:
        """Whether texts that differ have this identity: behind what was hashed of them."""
        return self.hashed is not None and self.hashed < self.length

    @property
    def is_cut(self) -> bool:
        """Whether texts of which the same was kept have identities of their own."""
        return self.hashed is not None and len(self.text) < self.hashed


class ThreadUse(msgspec.Struct, frozen=True):
    """One thread of the server, or with number 0 `count` that had ended. `before_ns`: used before its first statement
    of the window began."""

    tid: int
    comm: str
    cpu_ns: int
    wakeups: int
    statements: int
    before_ns: int
    count: int = 1


class TraceCost(msgspec.Struct, frozen=True):
    """What tracing took: in BPF programs (None where the kernel does not tell), and in a probe's trap beside them."""

    bpf_s: float | None
    trap_ns: float


class StatementTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A window as it was collected. `latencies`: identity → class of nanoseconds (`class_range`) → calls.

    `process_cpu_ns` is the scheduler's own count of the process, or of all that a server works in, with what ended
    threads ran that its clock missed. `is_sure`: of PostgreSQL's messages each is recognised.
    `has_run_queue`: the kernel counts waits for a CPU; `tells_locks`: the server says what it waits for. `lost_count`
    are updates for which a table had no room, `unreadable_count` texts that were not in memory, `cut_count` texts
    longer than is looked at.
    """

    pid: int
    window_s: float
    symbol: str
    ends_by: str
    process_cpu_ns: int | None
    uses: list[StatementUse]
    texts: list[RecordedText]
    threads: list[ThreadUse]
    latencies: dict[int, dict[int, int]]
    dispatches_count: int
    lost_count: int
    unreadable_count: int
    cut_count: int
    cost: TraceCost
    family: Family = "mysql"
    is_sure: bool = True
    has_run_queue: bool = True
    tells_locks: bool = True


def find_latency_class(duration_ns: int) -> int:
    """The class of a time, as the programs in the kernel tell it (uses.bpf.h): eight of equal width in each octave."""
    octave = max(duration_ns.bit_length() - 1, 3)
    return octave << 3 | duration_ns >> (octave - 3) & 7


def latency_class_range_ns(bucket: int) -> tuple[float, float]:
    """Lowest and highest nanoseconds of a class."""
    octave, part = bucket >> 3, bucket & 7
    width = 2.0 ** (octave - 3)
    return (8 + part) * width, (9 + part) * width


# What a window of system calls is, between its collection and its analysis.


class CallSum(msgspec.Struct, frozen=True, kw_only=True):
    """A thread's calls of one kind. `operation` is futex's; else empty."""

    pid: int
    tid: int
    name: str
    operation: str
    count: int
    errors_count: int
    ns: int
    longest_ns: int


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """What a thread did with one file. `mode` is st_mode, `path` the file's or as much of it as the kernel passed on.

    Bytes are those that were read and written; of asynchronous requests (io_uring, io_submit) those asked for.
    """

    pid: int
    tid: int
    comm: str
    path: str
    mode: int
    reads_count: int
    read_bytes: int
    writes_count: int
    write_bytes: int
    syncs_count: int
    sync_ns: int


class SyscallTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in a window. `waiting`: calls that were open at its end, by name and operation.

    `lost_count`: what had no room in a table; `parts_count`: requests of more parts than were looked at.
    """

    pids: list[int]
    window_s: float
    calls: list[CallSum]
    files: list[FileSum]
    waiting: dict[str, int]
    lost_count: int
    parts_count: int
    notes: list[str]
    tool_cpu_s: float
    bpf_s: float | None
    interrupted: bool
