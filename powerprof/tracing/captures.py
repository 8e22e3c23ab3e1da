# SPDX-License-Identifier: Apache-2.0
"""The form in which traces pass from collection to analysis: plain records that can be saved and analysed elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from powerprof.model.identities import Family
from powerprof.model.records import Ended, Note, Notes
from powerprof.stacks.image import ProcessImage
from powerprof.statistics.counts import proportion
from powerprof.tracing.bpf.probe_cost import ProbeCost
from powerprof.tracing.bpf.shared_numbers import WAITS, OpenStatement

Array = npt.NDArray[Any]
Counter = Literal["cpuidle", "perf"]
_STILL = 2


class CpuEdge(msgspec.Struct, frozen=True, array_like=True):
    """The window of one CPU: its edges (CLOCK_MONOTONIC) and its number of idle exits.

    `usage_delta_count` is Δusage of cpuidle, None if the CPU has no counters. `event_count` is perf's count of the
    cpu_idle tracepoint, None if it is not available. `traced_count`: exits in the trace.
    """

    cpu: int
    start_ns: int
    end_ns: int
    usage_delta_count: int | None
    event_count: int | None = None
    traced_count: int | None = None


def count_reference_exits(edges: Mapping[int, CpuEdge]) -> tuple[Counter, int] | None:
    """Return the kernel's own count of exits over all CPUs' windows and its counter, or None if nothing counted.

    If cpuidle counts, a CPU without its counters (`find_unchecked_cpus`) contributes its traced exits, so the other
    CPUs are still checked. A perf counter that stood still on a CPU that was traced leaving idle repeatedly does not
    count there.
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
    """Return the CPUs that cpuidle did not count on, while it counted on others: they came, left or were reset."""
    without = [cpu for cpu, edge in edges.items() if edge.usage_delta_count is None]
    return without if len(without) < len(edges) else []


def select_in_window(exits: Array, edges: Mapping[int, CpuEdge]) -> Array:
    """Return the exits (IDLE_EXIT) that are inside their own CPU's window."""
    size = max(edges, default=0) + 2
    start = np.full(size, np.iinfo(np.uint64).max, dtype=np.uint64)
    end = np.zeros(size, dtype=np.uint64)
    for cpu, edge in edges.items():
        start[cpu], end[cpu] = edge.start_ns, edge.end_ns
    # The last place is for CPUs without a window.
    cpus = np.minimum(exits["cpu"], size - 1)
    inside: Array = exits[(exits["exit_ns"] >= start[cpus]) & (exits["exit_ns"] <= end[cpus])]
    return inside


class FunctionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of one function over the window. Times include the probes' own time.

    `wall_ns`, `cpu_ns`: from entry to return of outermost calls. `self_…`: without probed functions that it called.
    `abandoned`: calls left without a return (longjmp, exception, or more than 64 return probes deep), None if not
    counted. `unfinished`: calls that were open at the end of the window. `children`: direct calls of probed functions.
    `stepped`: its probe costs a second trap.
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
    low_count: float | None = None
    high_count: float | None = None


class FunctionTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A window of function counts, for `attribution.profile`.

    The costs are None if the backend does not measure them (DTrace). `tool_cpu_s`: powerprof's own CPU time in the
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
    ended: Ended | None = None


class ThreadSums(msgspec.Struct, frozen=True, kw_only=True):
    """The sleeps of one thread by kernel state (name → count, ns), its waits once woken, and its preemptions."""

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
    low_count: float | None = None
    high_count: float | None = None


class WakingSum(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a thread's sleeps that one waker ended; `waker_tid` 0 is an interrupt."""

    tid: int
    waker_pid: int
    waker_tid: int
    waker_comm: str
    count: int
    low_count: float | None = None
    high_count: float | None = None


class OffCpuTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A window of sleeps and wakings.

    `lost_count`: threads and wakers for which there was no room. `unseen_count`: switches to threads for which the
    kernel did not call the program; their waits for a CPU are in no sum.
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
    ended: Ended | None


Event = Literal["cpu-clock", "page-faults"]


class UserStack(msgspec.Struct, frozen=True):
    """A copied user call path. `image` is an index into `OnCpuCapture.images`, None if unknown."""

    hash: int
    pid: int
    tid: int
    image: int | None
    registers: bytes
    stack: bytes


class SampleRow(msgspec.Struct, frozen=True):
    """The number of samples of one thread on a user and a kernel path; a hash of 0 is no path.

    `what`: the identity of the statement that it executed, if statements are traced; 0 for none.
    """

    user: int
    kernel: int
    pid: int
    tid: int
    count: int
    what: int = 0


class OnCpuCapture(msgspec.Struct, frozen=True, kw_only=True):
    """A window of CPU samples or page faults, for `attribution.profile`.

    `period_ms` is the CPU time of one sample, None for page faults, whose counts are exact. `busy_count`: events on a
    CPU that was not idle, of any process. `target_count`: events of the targets. `kernel` maps a hash to addresses,
    innermost first, `kernel_names` an address to (function, module, start). `missed_count`: events that only the
    kernel's own counter saw. `process_cpu_ms`: the targets' CPU time by the kernel's clocks of processes, None for the
    whole system or if a target ended. `sampled_ms`: the time of all CPUs that was sampled.
    `unseen_cpu_ms`: the CPU time of started processes that ended before they were found.
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
    notes: Notes
    tool_cpu_s: float
    bpf_s: float | None = None
    ended: Ended | None = None
    process_cpu_ms: float | None = None
    sampled_ms: float = 0.0
    unseen_cpu_ms: float = 0.0

    @property
    def busy_count(self) -> int:
        """Events on a CPU that was not idle."""
        return self.events_count - self.idle_count

    @property
    def expected_count(self) -> int:
        """The samples of the window if every CPU had taken all of its timer interrupts. Older captures: those seen."""
        if not self.sampled_ms or not self.period_ms:
            return self.events_count
        return max(round(self.sampled_ms / self.period_ms), self.busy_count)


# The kernel's clock of a process leaves out interrupts on some hosts, and the edges of both figures differ a little.
_CLOCK_TOLERANCE, _CLOCK_TOLERANCE_MS = 0.05, 20.0


class SampledTime(msgspec.Struct, frozen=True):
    """CPU time in ms by samples, with its 95 % interval."""

    ms: float
    low_ms: float
    high_ms: float

    def compare_with_clock(self, clock_ms: float | None) -> list[Note]:
        """Return a note if the exact CPU time of the process is outside of the interval. None is unknown."""
        if clock_ms is None:
            return []
        margin_ms = _CLOCK_TOLERANCE * clock_ms + _CLOCK_TOLERANCE_MS
        if self.low_ms - margin_ms <= clock_ms <= self.high_ms + margin_ms:
            return []
        values: dict[str, float | str] = {
            "sampled_ms": self.ms,
            "low_ms": self.low_ms,
            "high_ms": self.high_ms,
            "clock_ms": clock_ms,
        }
        return [Note("samples_miss_clock", values)]


def estimate_cpu_time(count: int, period_ms: float, sampled_ms: float) -> SampledTime:
    """Return the CPU time of `count` samples, of one per `period_ms` in `sampled_ms` of CPUs.

    The number of samples that arrived is not used: a guest's idle CPUs may take their timer interrupts late or never.
    """
    share = proportion(count, max(round(sampled_ms / period_ms), count))
    return SampledTime(
        count * period_ms, *(sampled_ms * part / 100 for part in (share.low_percent, share.high_percent))
    )


NO_WAITS = (0,) * WAITS


class StatementUse(msgspec.Struct, frozen=True):
    """The resources that one thread used for one statement. Thread 0 sums many threads that had ended.

    `open_count`: calls that had not ended, among `calls`. `waits_ns`: by `StatementWait`; with `cpu_ns` they sum to
    `wall_ns`, except CPU time after the last packet and time stolen from the running thread. `squares`: the sum of the
    squared CPU times of ended calls, in units of 2^`SQUARED_NS_LOG` ns. `began_before`: the part within the window of
    calls that began before it, which are in separate records. `by_slice`: the traced CPU time by number of the slice,
    if only slices were traced.
    """

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
    began_before: bool = False
    by_slice: tuple[tuple[int, int], ...] = ()


class RecordedText(msgspec.Struct, frozen=True):
    """The first text of an identity, without its leading comment.

    `length` is that of the whole text, `hashed` the length that the identity is made of, and `text` the part that was
    kept. A statement that was prepared before the window may have no text; it then has the server's number of it and
    the thread that executed it.
    """

    id: int
    command: int
    length: int
    text: bytes
    prepared_number: int = 0
    tid: int = 0
    hashed: int | None = None

    @property
    def may_be_several(self) -> bool:
        """Whether different texts have this identity: they differ after the hashed part."""
        return self.hashed is not None and self.hashed < self.length

    @property
    def is_cut(self) -> bool:
        """Whether texts with the same kept part have separate identities."""
        return self.hashed is not None and len(self.text) < self.hashed


class ThreadUse(msgspec.Struct, frozen=True):
    """One thread of the server, or with number 0 `count` ended threads.

    `before_ns`: CPU time before its first statement of the window. `is_helper`: it worked for statements of others.
    `open`: whether it executed a statement when the window began.
    """

    tid: int
    comm: str
    cpu_ns: int
    wakeups: int
    statements: int
    before_ns: int
    count: int = 1
    is_helper: bool = False
    open: OpenStatement = OpenStatement.UNKNOWN


class TraceCost(msgspec.Struct, frozen=True):
    """The cost of tracing: time in BPF programs (None if the kernel does not report it) and in the traps of probes."""

    bpf_s: float | None
    trap_ns: float


class StatementSlices(msgspec.Struct, frozen=True, kw_only=True):
    """The slices of a window of which only slices were traced.

    `weights`: the length of each stratum in lengths of its slice. `lengths_s`: of the slices. `used_ns`: CPU time of
    the server in each slice. `whole_ns`: in the window; None if it is unknown. `is_counted_by_server`: calls are scaled
    to the server's own count of statements.
    """

    weights: Sequence[float]
    lengths_s: Sequence[float]
    used_ns: Sequence[int]
    whole_ns: int | None
    is_counted_by_server: bool

    @property
    def traced_s(self) -> float:
        """The traced time in seconds."""
        return sum(self.lengths_s)


class StatementTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A window of statements. `latencies`: identity → class of nanoseconds (`latency_class_range_ns`) → calls.

    `process_cpu_ns` is the scheduler's own count of the server's processes, plus the time of ended threads that its
    clock missed. `is_sure`: each of PostgreSQL's messages is recognised. `has_run_queue`: the kernel counts waits for a
    CPU. `tells_locks`: the server reports its waits. `lost_count`: updates for which a table had no room.
    `unreadable_count`: texts that were not in memory. `cut_count`: texts longer than the limit. `slices`: if only
    slices were traced; the other figures are then estimates for the window, except counts of the tracer's own events.
    """

    pid: int
    window_s: float
    symbol: str
    ends_by: str
    process_cpu_ns: int | None
    uses: list[StatementUse]
    texts: list[RecordedText]
    threads: list[ThreadUse]
    latencies: Mapping[int, Mapping[int, float]]
    dispatches_count: int
    lost_count: int
    unreadable_count: int
    cut_count: int
    cost: TraceCost
    family: Family = "mysql"
    is_sure: bool = True
    has_run_queue: bool = True
    tells_locks: bool = True
    slices: StatementSlices | None = None


def find_latency_class(duration_ns: int) -> int:
    """Return the bucket of a time as statement_totals.bpf.h computes it: eight of equal width in each octave."""
    octave = max(duration_ns.bit_length() - 1, 3)
    return octave << 3 | duration_ns >> (octave - 3) & 7


def latency_class_range_ns(bucket: int) -> tuple[float, float]:
    """Return the lowest and highest nanoseconds of a class."""
    octave, part = bucket >> 3, bucket & 7
    width = 2.0 ** (octave - 3)
    return (8 + part) * width, (9 + part) * width


class CallSum(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one kind by one thread. `operation` is futex's, else empty."""

    pid: int
    tid: int
    name: str
    operation: str
    count: int
    errors_count: int
    ns: int
    longest_ns: int
    low_count: float | None = None
    high_count: float | None = None


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one file by one thread. `mode` is st_mode.

    `path` may be the part that the kernel passed on. Bytes are read and written bytes; of asynchronous requests
    (io_uring, io_submit) the requested ones.
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
    """A window of system calls. `waiting`: calls that were open at its end, by name and operation.

    `exited_names`: names of threads that exited in it, by thread id.

    `lost_count`: entries for which a table had no room. `parts_count`: requests with more parts than were examined.
    """

    pids: list[int]
    window_s: float
    calls: list[CallSum]
    files: list[FileSum]
    waiting: dict[str, int]
    exited_names: dict[int, str]
    lost_count: int
    parts_count: int
    notes: list[str]
    tool_cpu_s: float
    bpf_s: float | None
    ended: Ended | None
