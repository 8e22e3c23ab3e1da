# SPDX-License-Identifier: Apache-2.0
"""The capture of a traced window: own cost, losses, governor counters and names, by hand from the trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from powerprof.attribution.capture import Capture, encode, load
from powerprof.attribution.requests import AttributeRequest, name_postgres_processes
from powerprof.attribution.window import CaptureContext, _unseen_time_notes, build_capture
from powerprof.energy.request import EnergyRequest
from powerprof.energy.windows import WindowEnergy
from powerprof.measure.idle_counters import CpuReading, Snapshot, StateInfo
from powerprof.model.records import Note, Window
from powerprof.stacks.image import ProcessImage
from powerprof.system.errors import DataError, UsageError
from powerprof.system.targets import Target
from powerprof.system.tasks import Task
from powerprof.tracing.bpf.shared_numbers import Flag, RunKind
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle import IdleTrace, TracedWindow
from powerprof.tracing.idle_data import CAUSE, CPU_TOTAL, IDLE_EXIT, RUN_TIME, RunTimes, SiteWakings
from powerprof.tracing.idle_stacks import StackTrace
from tests.conftest import Tree
from tests.unit.attribution.captures import capture, exits, own_timer
from tests.unit.system.conftest import add_process

MS, S = 1_000_000, 1_000_000_000
STATES = (StateInfo("POLL", True), StateInfo("C1", False, False, 2, 2))
GONE = 4_000_000  # no process of this host


def run_times(*rows: tuple[int, int, int, float]) -> np.ndarray:
    made = np.zeros(len(rows), dtype=RUN_TIME)
    for one, (tid, pid, kind, ms) in zip(made, rows, strict=True):
        one["tid"], one["pid"], one["kind"], one["ns"] = tid, pid, kind, round(ms * MS)
    return made


def reading(cpu: int, above: tuple[int | None, ...], below: tuple[int | None, ...], **more: Any) -> CpuReading:
    values: dict[str, Any] = {
        "at_ns": 5 * S,
        "states": STATES,
        "time_us": (7, 900),
        "usage": (3, 11),
        "above": above,
        "below": below,
        "rejected": (0, 0),
        "resolved": True,
    }
    return CpuReading(cpu=cpu, **(values | more))


# The counters of CPU 1 went backwards, CPU 2 went offline, and CPU 3 counts no `below`.
BEFORE = Snapshot(
    {
        0: reading(0, (1, 20), (5, 60)),
        1: reading(1, (1, 20), (5, 60)),
        2: reading(2, (1, 20), (5, 60)),
        3: reading(3, (1, 20), (5, None), resolved=False),
    }
)
AFTER = Snapshot(
    {
        0: reading(0, (4, 27), (16, 73)),
        1: reading(1, (4, 27), (16, 73), usage=(2, 11)),
        3: reading(3, (5, 29), (18, None)),
    }
)


def own_and_others() -> np.ndarray:
    causes = np.zeros(3, dtype=CAUSE)
    causes["count"] = 30, 12, 5
    causes["next_tid"], causes["next_tgid"] = (71, os.getpid(), 9), (GONE, os.getpid(), 9)
    causes["next_comm"] = b"worker", b"python", b"kworker"
    causes["flags"] = Flag.WAKER, Flag.WAKER, Flag.KERNEL | Flag.WAKER_KERNEL
    causes["waker_tid"], causes["waker_tgid"], causes["waker_comm"] = (81, 0, 82), (80, 0, 82), (b"client", b"", b"kw")
    causes["woken_tid"] = 0, 0, 91
    return causes


def window(**more: Any) -> TracedWindow:
    trace = IdleTrace(
        causes=own_and_others(),
        lost_count=3,
        sample=np.zeros(2, dtype=IDLE_EXIT),
        sample_1_in=8,
        sample_lost_count=5,
        totals=np.zeros(4, dtype=CPU_TOTAL),
        ran=RunTimes(run_times((71, GONE, RunKind.TARGET, 9.0)), 23, 29),
        run_time_s=0.0625,
        addresses={1: "hrtimer_wakeup"},
    )
    values: dict[str, Any] = {
        "edges": {cpu: CpuEdge(cpu, 0, 2 * S, 40 + cpu) for cpu in range(4)},
        "window_s": 2.0,
        "residency": Window(
            started_at="2026-01-01T00:00:00Z",
            window_s=2.0,
            cpus=4,
            c0_percent=31.0,
            idle_percent=69.0,
            wakeups_hz=None,
            states=[],
            residual_percent=None,
            steal_percent=4.0,
        ),
        "state_names": {0: ["POLL", "C1"]},
        "tool_cpu_s": 0.25,
        "stat_idle_percent": 66.5,
        "counters": (BEFORE, AFTER),
    }
    return TracedWindow(trace, **(values | more))


def stacks(**more: Any) -> StackTrace:
    values: dict[str, Any] = {
        "sites": [],
        "sleeping": [],
        "images": {},
        "wakings": [SiteWakings(72, GONE, 0, 0, 0, 0, 0, 0, 83, 84, 6)],
        "lost_count": 4,
        "loaded_count": 6,
        "unsent_count": 7,
        "uncounted_count": 8,
        "counted_from_ns": 100,
        "counted_to_ns": 2_300,
    }
    return StackTrace(**(values | more))


def look_up(tid: int, pid: int | None = None, comm: str = "", is_kernel: bool | None = None) -> Task:
    return Task(tid, pid, comm or f"thread {tid}", comm or f"pid {pid}", bool(is_kernel))


def built(traced: TracedWindow | None = None, **more: Any) -> Capture:
    target = Target(pids=(GONE,), label="worker")
    context = CaptureContext(target, {"host": "h"}, {33: "eth0"}, ["a note"], look_up=look_up)
    with WindowEnergy(EnergyRequest(source="none")) as energy:
        return build_capture(context, traced or window(), stacks(**more), energy, {71: "main"})


def test_own_cost_is_a_share_of_all_cpus() -> None:
    tool = built().tool
    assert (tool.cpu_s, tool.bpf_s, tool.lost_count) == (0.25, 0.0625, 3 + 4)
    assert tool.cpu_percent == pytest.approx(100 * 0.25 / (4 * 2.0))
    assert tool.wakeups_hz == pytest.approx(12 / 2.0)
    assert tool.memory_bytes is None or tool.memory_bytes > 1 << 20


def test_losses_and_edges_pass_through() -> None:
    made = built()
    assert (made.lost_count, made.stacks_lost_count, made.sample_lost_count, made.sample_1_in) == (3, 4, 5, 8)
    assert (made.loaded_count, made.unsent_count, made.uncounted_count) == (6, 7, 8)
    assert (made.counted_from_ns, made.counted_to_ns, made.ran_others_ns, made.ran_target_ns) == (100, 2_300, 23, 29)
    assert (made.c0_percent, made.steal_percent, made.stat_idle_percent, made.window_s) == (31.0, 4.0, 66.5, 2.0)
    assert [edge.usage_delta_count for edge in made.edges] == [40, 41, 42, 43]
    assert made.states == {0: ["POLL", "C1"], **{cpu: ["poll", "idle"] for cpu in (1, 2, 3)}}
    assert (made.server_names, made.interrupts, made.functions) == ({71: "main"}, {33: "eth0"}, {1: "hrtimer_wakeup"})
    names = [note.name if isinstance(note, Note) else note for note in made.notes]
    assert names == ["a note", "process_ended"]
    assert "no_registers" in [note.name for note in built(registers_found=False).notes if isinstance(note, Note)]
    assert made.cause_entries()["count"].tolist() == [30, 12, 5]


def test_counters_of_misses_grow_within_the_window() -> None:
    cpus = built().idle_cpus
    assert [(cpu.cpu, cpu.resolved, cpu.above, cpu.below) for cpu in cpus] == [
        (0, True, [3, 7], [11, 13]),
        (1, True, [None, None], [None, None]),
        (2, False, [None, None], [None, None]),
        (3, False, [4, 9], [13, None]),
    ]


def test_every_thread_of_the_trace_has_a_task() -> None:
    """Threads that ran, woke others or were woken, with the kernel's mark of each."""
    tasks = {task.tid: task for task in built().tasks}
    assert sorted(tasks) == sorted([71, os.getpid(), 9, 81, 82, 72, 83, 91])
    assert (tasks[71].comm, tasks[71].pid, tasks[71].is_kernel) == ("worker", GONE, False)
    assert (tasks[9].comm, tasks[9].is_kernel, tasks[82].is_kernel, tasks[81].is_kernel) == (
        "kworker",
        True,
        True,
        False,
    )
    assert (tasks[83].pid, tasks[72].pid, tasks[91].pid) == (84, GONE, None)


def test_ended_processes_have_the_names_of_their_programs() -> None:
    image = ProcessImage(pid=GONE, started_ticks=1, executable="/usr/bin/first", mappings=())
    later = replace(image, executable="/usr/bin/second", space=7)
    made = built(images={GONE: [image, later]})
    task = next(task for task in made.tasks if task.tid == 72)
    assert (task.process, task.comm) == ("second", "thread 72")
    assert (made.target.pid, made.target.executable) == (GONE, "/usr/bin/second")
    assert [each.executable for each in made.images] == ["/usr/bin/first", "/usr/bin/second"]


def test_window_without_cpus_has_no_shares() -> None:
    """The idle governor changed within the window: no CPU has two edges."""
    tool = built(window(edges={}, window_s=0.0, counters=None)).tool
    assert (tool.cpu_percent, tool.wakeups_hz) == (None, None)


@pytest.mark.parametrize(
    ("used_ms", "traced_ms", "missing_ms"),
    [
        (500.0, (100.0, 200.0, 40.0), 160.0),
        (500.0, (100.0, 200.0, 156.0), None),  # 20 ms and 5 % may be missing because of the edges
        (500.0, (100.0, 200.0, 154.0), 46.0),
        (None, (100.0, 200.0, 40.0), None),
    ],
)
def test_unseen_time_of_a_group(
    used_ms: float | None, traced_ms: tuple[float, float, float], missing_ms: float | None
) -> None:
    """The group's time less its traced threads, its processes of another kind, and its ended threads."""
    target, other_kind, ended = traced_ms
    rows = run_times(
        (71, 70, RunKind.TARGET, target), (81, 80, RunKind.OTHER, other_kind), (91, 90, RunKind.OTHER, 999.0)
    )
    used_ns = None if used_ms is None else round(used_ms * MS)
    notes = _unseen_time_notes(used_ns, RunTimes(rows, 0, round(ended * MS)), [80])
    values = None if missing_ms is None else {"missing_ms": pytest.approx(missing_ms), "used_ms": used_ms}
    assert [note.values for note in notes] == ([] if values is None else [values])


@pytest.mark.parametrize(("kib", "pages"), [(4, 1), (8192, 2048), (16384, 4096)])
def test_stack_buffer_in_pages(kib: int, pages: int) -> None:
    assert AttributeRequest(duration_s=1.0, stack_buffer_kib=kib).stack_pages == pages


@pytest.mark.parametrize("kib", [0, 2, 3, 12, 8191, -4])
def test_stack_buffer_is_a_power_of_two(kib: int) -> None:
    with pytest.raises(UsageError):
        AttributeRequest(duration_s=1.0, stack_buffer_kib=kib)


def test_a_capture_of_another_version_is_refused(tmp_path: Path) -> None:
    path, made = tmp_path / "capture", capture(exits(own_timer(101)))
    path.write_bytes(encode(made))
    assert load(path).causes == made.causes
    for version in (made.version - 1, made.version + 1):
        path.write_bytes(encode(replace(made, version=version)))
        with pytest.raises(DataError, match="another version"):
            load(path)


def test_processes_of_postgresql_have_their_roles(fake_tree: Tree) -> None:
    """A process of the target has its name already; the title of another program is none."""
    title = "postgres: app shop [local] idle"
    for pid, program in ((7, "postgres"), (8, "postgres"), (9, "psql")):
        add_process(fake_tree, pid, f"/p/{program}", files={"cmdline": title})
    names = name_postgres_processes([7, 8, 8, 9, 0, 10], {7: "walwriter", 71: "main"})
    assert names == {7: "walwriter", 8: "backend of shop for app", 71: "main"}
