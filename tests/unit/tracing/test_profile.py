# SPDX-License-Identifier: Apache-2.0
"""Samples of paths: their rows, the states of their stacks, and the number that was due in a window."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import X86_64
from powerprof.tracing.captures import OnCpuCapture, SampledTime, SampleRow, UserStack, estimate_cpu_time
from powerprof.tracing.profile import OnCpuTracer, PathNames
from tests.unit.attribution import test_profile as samples
from tests.unit.tracing.programs import FakeProgram

# Code of a JIT compiler, whose frame pointers are followed; its stack has two callers.
CODE, SP = 0x10000, 0x7000
REGISTERS = X86_64.pack({"ip": CODE + 0x10, "sp": SP, "bp": SP + 0x10})
STACK = struct.pack("<8Q", 1, 2, SP + 0x20, CODE + 0x100, 0, CODE + 0x200, 5, 6)
KERNEL = {5: [0xFFFFFFFF81000040, 0xFFFFFFFF82000000]}
NAMES = {0xFFFFFFFF81000040: ("vfs_read", "xfs", 0xFFFFFFFF81000010)}


def capture(**more: Any) -> OnCpuCapture:
    mapping = Mapping(start=CODE, end=CODE + 0x1000, offset=0, path="", device="00:00", inode=0)
    image = ProcessImage(pid=70, started_ticks=1, executable="/usr/bin/js", mappings=(mapping,))
    stacks = ((0, REGISTERS, STACK), (0, REGISTERS, b""), (None, REGISTERS, STACK), (0, b"registers", STACK))
    users = [UserStack(number, 70, 71, *stack) for number, stack in enumerate(stacks, 11)]
    own = {"users": users, "images": [image], "kernel": KERNEL, "kernel_names": NAMES, "target_count": 200}
    return samples.capture([], **{**own, **more})


@pytest.mark.parametrize(
    ("user", "state", "frames"),
    [(11, "truncated", 3), (12, "failed", 1), (13, "failed", 0), (14, "failed", 0), (15, "lost", 0), (0, "kernel", 0)],
)
def test_states_of_stacks(user: int, state: str, frames: int) -> None:
    """A stack with one frame only failed. The kernel's frames are inside of the program's."""
    found, known = PathNames(capture()).of(SampleRow(user, 5, 70, 71, 3))
    assert (known, len(found)) == (state, frames + 2)
    assert [(frame.function, frame.module, frame.offset, frame.kernel) for frame in found[:2]] == [
        ("vfs_read", "xfs", 0x30, True),
        (None, "vmlinux", None, True),
    ]
    assert [frame.address for frame in found[2:]] == ["0x10010", "0x10100", "0x10200"][:frames]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 1200),
        ({"sampled_ms": 5_000.0}, 600),  # no fewer than met running CPUs
        ({"sampled_ms": 0.0}, 900),
        ({"period_ms": None}, 900),
    ],
)
def test_samples_that_were_due(more: dict[str, Any], expected: int) -> None:
    made = capture(**more)
    assert (made.busy_count, made.expected_count) == (600, expected)


def test_time_of_samples_is_of_the_sampled_time() -> None:
    estimate = estimate_cpu_time(200, 10.0, 12_000.0)
    assert estimate.ms == 2_000 and 1_755 < estimate.low_ms < 1_765 and 2_255 < estimate.high_ms < 2_270
    assert estimate_cpu_time(1_200, 10.0, 12_000.0).high_ms == 12_000
    # More samples than were due: all of the sampled time.
    assert estimate_cpu_time(1_300, 10.0, 12_000.0).high_ms == 12_000


def test_rows_of_samples() -> None:
    key = struct.pack("<3Q2I", 11, 5, 0x1F00, 70, 71)
    tracer = OnCpuTracer.__new__(OnCpuTracer)
    tracer.program = FakeProgram(hashes={"samples": {key: struct.pack("<Q", 9)}}).as_loaded()
    comms: dict[int, str] = {}
    assert tracer._rows(comms) == [SampleRow(11, 5, 70, 71, 9, 0x1F00)]
    assert list(comms) == [71]


@pytest.mark.parametrize(
    ("clock_ms", "noted"), [(935.0, False), (932.0, True), (1_284.0, False), (1_287.0, True), (None, False)]
)
def test_samples_and_clock_may_differ_by_a_twentieth(clock_ms: float | None, noted: bool) -> None:
    """From 1,000 ms less a twentieth of the clock and 20 ms, to 1,200 ms and as much more."""
    assert bool(SampledTime(1_100.0, 1_000.0, 1_200.0).compare_with_clock(clock_ms)) is noted
