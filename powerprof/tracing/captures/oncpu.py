# SPDX-License-Identifier: Apache-2.0
"""What a window of CPU samples or page faults is, between its collection and its analysis: can be saved and moved."""

from __future__ import annotations

from typing import Literal

import msgspec

from powerprof.stacks.image import ProcessImage

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
