# SPDX-License-Identifier: Apache-2.0
"""What an attribution says: `powerprof.attribution/1`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from powerprof.model import text
from powerprof.model.records import (
    Cause,
    Conservation,
    EnergyReading,
    EnergySource,
    EnergySplit,
    Mechanism,
    Notes,
    ToolCost,
)

Origin = Literal["own_timer", "other_thread", "other_process", "device", "kernel", "runnable"]


class StackFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One function, innermost first in a stack. `function` is None where no symbol covers the address.

    `offset` is the address's distance from the function's start, `function_start` that start in the file.
    """

    function: str | None
    module: str
    address: str
    offset: int | None = None
    function_start: str | None = None
    inlined: bool = False
    source: str | None = None

    @property
    def label(self) -> str:
        """The name, else `module+0x…` of the function's start, else of the address."""
        if self.function is not None:
            return self.function
        if self.function_start is not None:
            return f"{self.module}+{self.function_start}"
        return f"{self.module}+{self.address}" if self.module == "[unmapped]" else f"{self.module} {self.address}"

    @property
    def placed(self) -> str:
        """The label with the source file's name and line, where they are known."""
        return text.label_with_source(self.label, self.source)


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread; `server_name` is performance_schema's. `tid` 0: all threads of that name that had ended, where there
    were too many to list each. `process` names its process where the target is not one process alone, `unit` its
    control group as people call it: a service, a container, a pod."""

    tid: int
    comm: str
    server_name: str | None = None
    pid: int | None = None
    process: str | None = None
    unit: str | None = None

    @property
    def label(self) -> str:
        """The server's own name without its prefix, else the comm."""
        return self.server_name.removeprefix("thread/") if self.server_name else self.comm


class Waker(msgspec.Struct, frozen=True, kw_only=True):
    """Who woke the thread, if a task did; its stack where it belongs to the target. `pid` 0: of several that ended."""

    pid: int
    comm: str
    tid: int | None = None
    server_name: str | None = None
    stack: list[StackFrame] = []
    stack_complete: bool | None = None


class Wakeup(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits blamed on one thread, stack, origin and mechanism.

    `wakings_count` adds the times that it was woken there while a CPU ran. A waking that ends no idle period has no
    mechanism: where rows differ by mechanism only, those are counted in the most frequent one, so that the sum over
    rows is the number of wakings.

    `origin` runnable: the thread had not slept. It was throttled (a CPU limit) or moved from another CPU: nothing woke
    it, and there is no stack.

    `c0_ms` is what the thread itself ran (`own_ms`) and what the kernel ran from these exits until it did; what others
    ran meanwhile is theirs. `own_ms` is None in runs that were saved before it was measured: there `c0_ms` is all time
    until the CPUs idled again. `idle_ms` is how long the periods that were cut short had lasted on average; `states`
    counts them by idle state. `detail` names the timer's function or the device.
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


class StackCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the stacks of blamed idle exits, counted per distinct stack."""

    captured_count: int
    complete_count: int
    truncated_count: int
    failed_count: int
    lost_count: int = 0
    exits_with_stack_percent: float | None = None
    exits_complete_percent: float | None = None
    unnamed_frames_percent: float | None = None


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Whose wake-ups were attributed."""

    pid: int | None
    executable: str | None
    build_id: str | None
    label: str
    pids: list[int] = []
    system: bool = False
    threads_count: int | None = None


class Woken(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits that a thread of the target caused by waking a thread of another process."""

    thread: Thread
    process: str
    count: int
    rate_hz: float


class Waking(msgspec.Struct, frozen=True, kw_only=True):
    """Wakings of one thread at one stack by one origin that all found a CPU running: they ended no idle period.

    `own_ms` is what the thread ran because of them: a share of all that it ran, by what it runs after its idle exits.
    """

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
    """All time in which the host's CPUs ran, by whose it was; the parts sum to `c0_ms`.

    A part is what its threads ran themselves, and what the kernel ran from their idle exits until they did. `kernel_ms`
    followed exits after which nobody ran (ticks). `rest_ms` is nobody's: going idle, polling, interrupts where the
    kernel counts them by themselves, what the hypervisor took; None where C0 is unknown.
    """

    c0_ms: float | None
    target_ms: float
    tool_ms: float
    others_ms: float
    kernel_ms: float
    rest_ms: float | None


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """One traced window: conservation is over all idle exits of the host, `wakeups` are the target's, by count.

    `wakings_window_s` is how long wakings were counted: each CPU has a window of its own for its idle exits, and
    `window_s` is their mean.
    """

    id: str | None
    started_at: str
    target: TargetInfo
    window_s: float
    cpus: int
    conservation: Conservation
    wakeups: list[Wakeup]
    stacks: StackCounts
    tool: ToolCost
    host: dict[str, Any] = {}
    wakings_window_s: float | None = None
    wakings_without_exit: list[Waking] = []
    woken_elsewhere: list[Woken] = []
    other_causes: list[Cause] = []
    c0_percent: float | None = None
    running: RunningTime | None = None
    energy: list[EnergyReading] = []
    energy_split: EnergySplit | None = None
    energy_source: EnergySource | None = None
    notes: Notes = []
    interrupted: bool = False
    command: str = "attribute"
    schema: Literal["powerprof.attribution/1"] = "powerprof.attribution/1"
