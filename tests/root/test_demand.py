# SPDX-License-Identifier: Apache-2.0
"""Stacks on demand: whoever is not judged costs nothing, and every waking of the judged is counted."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.files import read_fields
from powerprof.processes.targets import resolve
from powerprof.tracing.idle.demand import DemandTracer
from powerprof.tracing.idle.monitor import TraceMonitor
from powerprof.tracing.idle.stacks import StackTracer

_PROGRAM = "import time\nprint(flush=True)\nwhile True: time.sleep(0.01)"


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    found = [subprocess.Popen(["python3", "-c", _PROGRAM], stdout=subprocess.PIPE) for _ in range(2)]
    for one in found:
        assert one.stdout is not None and one.stdout.readline()
    yield found
    for one in found:
        one.kill()
        one.communicate()


def test_only_the_judged_are_looked_at_and_counted(root_bpf: None, sleepers: list[subprocess.Popen[bytes]]) -> None:
    judged, other = (one.pid for one in sleepers)
    with DemandTracer(resolve((), cgroup=None, system=True)) as tracer, TraceMonitor(tracer) as monitor:
        assert not tracer.images
        tracer.judge([judged])
        # The first read takes its time: it finds the names of the kernel's functions.
        monitor.read()
        before = _voluntary(judged)
        monitor.read()
        tracer.stack_trace()
        time.sleep(2)
        slept = _voluntary(judged) - before
        monitor.read()
        found = tracer.stack_trace()
        assert {one.pid for one in found.wakings} == set(tracer.images) == {judged}
        # Others may have the CPU between a look here and the read.
        assert sum(one.count for one in found.wakings) == pytest.approx(slept, rel=0.1, abs=10)
        tracer.judge([])
        tracer.look_at([other])
        monitor.read()
        tracer.stack_trace()
        time.sleep(0.5)
        monitor.read()
        assert not tracer.stack_trace().wakings
        assert set(tracer.images) == {judged, other}
        sleepers[0].kill()
        sleepers[0].wait()
        monitor.read()
        tracer.stack_trace()
        assert set(tracer.images) == {other}


def _voluntary(pid: int) -> int:
    return int(read_fields(Path(f"/proc/{pid}/status"))["voluntary_ctxt_switches"])


def test_processes_that_ended_make_room_for_others(
    root_bpf: None, sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (one.pid for one in sleepers)
    with StackTracer(resolve([str(first)])) as tracer:
        monkeypatch.setattr(tracer, "_most_processes", 1)
        tracer.add([second])
        assert any("no room for 1 of the target" in note for note in tracer.notes())
        sleepers[0].kill()
        sleepers[0].wait()
        tracer.add([second])
        admitted = {int.from_bytes(key, "little") for key, _ in tracer.program.entries("targets")}
    assert admitted == {second}
