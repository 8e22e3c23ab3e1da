# SPDX-License-Identifier: Apache-2.0
"""The records of an attribution: `powerprof.attribution/1`."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from powerprof.model import text
from powerprof.model.deep_idle import DeepIdle
from powerprof.model.records import Cause, Conservation, EnergyReading, EnergySplit, Mechanism, Record, ToolCost

_GENERATED = re.compile(r"\[(anonymous|.+ code)\]")


def is_generated(module: str) -> bool:
    """Return whether a module is generated code without names: `[Java code]`, or `[anonymous]` of an unknown runtime.

    Its addresses are no functions, so all of it is one function in reports.
    """
    return _GENERATED.fullmatch(module) is not None


Origin = Literal["own_timer", "other_thread", "other_process", "device", "kernel", "runnable"]


class StackFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A function; stacks begin with the innermost. `offset` is in the function, `function_start` in the file."""

    function: str | None
    module: str
    address: str
    offset: int | None = None
    function_start: str | None = None
    inlined: bool = False
    source: str | None = None

    @property
    def label(self) -> str:
        """The name, else `module+0x…` of the function's start, else of the address. Generated code is its module."""
        if self.function is not None:
            return self.function
        if is_generated(self.module):
            return self.module
        if self.function_start is not None:
            return f"{self.module}+{self.function_start}"
        return f"{self.module}+{self.address}" if self.module == "[unmapped]" else f"{self.module} {self.address}"

    @property
    def placed(self) -> str:
        """The label with the source file's name and line, if they are known."""
        return text.label_with_source(self.label, self.source)


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread.

    Attributes:
        tid: 0 represents several threads of that name.
        server_name: in performance_schema; if it is off, by the start function of the thread.
        process: if the target has several.
        unit: control group: service, container or pod.
    """

    tid: int
    comm: str
    server_name: str | None = None
    pid: int | None = None
    process: str | None = None
    unit: str | None = None
    threads_count: int = 1

    @property
    def label(self) -> str:
        """The server's own name without its prefix, else the comm, with the number of threads if there are several."""
        name = self.server_name.removeprefix("thread/") if self.server_name else self.comm
        return f"{name} ×{self.threads_count:,}" if self.threads_count > 1 else name


class Waker(msgspec.Struct, frozen=True, kw_only=True):
    """The waking task. `pid` 0: several ended tasks."""

    pid: int
    comm: str
    tid: int | None = None
    server_name: str | None = None
    stack: list[StackFrame] = []
    stack_complete: bool | None = None


class Wakeup(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits by thread, stack, origin and mechanism.

    Attributes:
        origin: `runnable`: the thread had not slept (throttled or moved): no waker, no stack.
        wakings_count: wake-ups on idle and busy CPUs. Of rows that differ by mechanism, the largest has those on busy
            CPUs.
        c0_ms: running time of the thread (`own_ms`), and of the kernel before it.
        idle_ms: mean length of the ended idle periods; `states` counts them by state.
        detail: timer function or device.
        rate_low_hz, rate_high_hz: the 95 % interval of `rate_hz` if only slices of the window were traced.
    """

    mechanism: Mechanism
    origin: Origin
    count: int
    rate_hz: float
    wakings_count: int | None
    period_ms: float | None
    c0_ms: float
    thread: Thread
    waker: Waker | None
    stack: list[StackFrame]
    stack_complete: bool
    own_ms: float | None = None
    detail: str | None = None
    idle_ms: float | None = None
    states: dict[str, int] = {}
    joules: float | None = None
    joules_kind: str | None = None
    rate_low_hz: float | None = None
    rate_high_hz: float | None = None


class StackCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Captured stacks of idle exits, per distinct stack."""

    captured_count: int
    complete_count: int
    truncated_count: int
    failed_count: int
    lost_count: int = 0
    exits_with_stack_percent: float | None = None
    exits_complete_percent: float | None = None
    unnamed_frames_percent: float | None = None


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The traced processes.

    Attributes:
        roots: the processes whose descendants of the same program belong to the target.
    """

    pid: int | None
    executable: str | None
    build_id: str | None
    label: str
    pids: list[int] = []
    system: bool = False
    threads_count: int | None = None
    roots: list[int] = []


class ExternalWakeup(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits that a thread of the target caused by waking another process."""

    thread: Thread
    process: str
    count: int
    rate_hz: float


class Waking(msgspec.Struct, frozen=True, kw_only=True):
    """Wakings on busy CPUs by thread, stack and origin. `own_ms`: running time because of them."""

    origin: Origin
    wakings_count: int
    wakings_hz: float
    thread: Thread
    waker: Waker | None
    stack: list[StackFrame]
    stack_complete: bool
    own_ms: float | None = None
    detail: str | None = None


class RunningTime(msgspec.Struct, frozen=True, kw_only=True):
    """Running time of the host's CPUs by owner; the sum is `c0_ms`.

    Attributes:
        target_ms, tool_ms, others_ms: of their threads, and of the kernel before them.
        kernel_ms: after exits without a thread (ticks).
        rest_ms: no owner: going idle, polling, interrupts, stolen time.
    """

    c0_ms: float | None
    target_ms: float
    tool_ms: float
    others_ms: float
    kernel_ms: float
    rest_ms: float | None


class Slicing(msgspec.Struct, frozen=True, kw_only=True):
    """The traced part of a window whose cost was bounded. Counts and rates of the record are estimates from it.

    Attributes:
        exits_count: idle exits of the host in the whole window, by the kernel's counter if it has one.
        target_low_hz, target_high_hz: the 95 % interval of the target's idle exits per second.
        unseen_below_hz: the largest rate of a cause that no slice shows, with 95 % certainty.
    """

    slices_count: int
    traced_s: float
    traced_percent: float
    exits_count: int
    target_low_hz: float
    target_high_hz: float
    unseen_below_hz: float


class UnitShare(msgspec.Struct, frozen=True, kw_only=True):
    """The idle exits, running time and joules above the idle floor of a service, container or pod."""

    unit: str
    exits_count: int
    c0_s: float
    joules: float | None = None


class UnitSplit(msgspec.Struct, frozen=True, kw_only=True):
    """The host by units. They and `other` sum to its idle exits and C0; with `idle_joules`, to its energy."""

    units: list[UnitShare]
    other: UnitShare
    idle_joules: float | None = None


class Attribution(Record, frozen=True, kw_only=True):
    """One traced window.

    `conservation` covers the host (with `slicing`: in the slices), `wakeups` the target. `window_s` is the CPUs' mean
    for idle exits. `deep`: by deep-idle. `exits_by_part`: the idle exits of the target in equal parts of the window,
    from a sample of their times.
    """

    target: TargetInfo
    window_s: float
    cpus: int
    conservation: Conservation
    wakeups: list[Wakeup]
    stacks: StackCounts
    tool: ToolCost
    exits_by_part: list[float] = []
    wakings_window_s: float | None = None
    wakings_without_exit: list[Waking] = []
    woken_elsewhere: list[ExternalWakeup] = []
    other_causes: list[Cause] = []
    c0_percent: float | None = None
    running: RunningTime | None = None
    energy: list[EnergyReading] = []
    energy_split: EnergySplit | None = None
    deep: DeepIdle | None = None
    slicing: Slicing | None = None
    by_unit: UnitSplit | None = None
    command: str = "attribute"
    schema: Literal["powerprof.attribution/1"] = "powerprof.attribution/1"

    @property
    def exits_count(self) -> int:
        """The idle exits of the host in the window."""
        return self.conservation.idle_exits_count if self.slicing is None else self.slicing.exits_count
