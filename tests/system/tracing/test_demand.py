# SPDX-License-Identifier: Apache-2.0
"""Stacks on demand: a process that is not measured costs nothing; all wakings of a measured one are counted."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from powerprof.system.targets import resolve
from powerprof.system.tasks import read_switches
from powerprof.tracing.idle import trace_on_demand, trace_stacks
from powerprof.tracing.monitor import TraceMonitor

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


def test_only_measured_processes_are_captured_and_counted(
    root_bpf: None, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    measured, other = (one.pid for one in sleepers)
    with trace_on_demand(resolve((), cgroup=None, system=True)) as (tracer, looks), TraceMonitor(tracer) as monitor:
        assert not looks.members.images
        looks.measure([measured])
        # The first read takes its time: it finds the names of the kernel's functions.
        monitor.read()
        before = read_switches(measured)[measured]
        monitor.read()
        looks.collect()
        time.sleep(1.2)
        slept = read_switches(measured)[measured] - before
        monitor.read()
        found = looks.collect()
        assert {one.pid for one in found.wakings} == set(looks.members.images) == {measured}
        # Others may have the CPU between a look here and the read.
        assert sum(one.count for one in found.wakings) == pytest.approx(slept, rel=0.1, abs=10)
        looks.measure([])
        looks.look_at([other])
        monitor.read()
        looks.collect()
        time.sleep(0.5)
        monitor.read()
        assert not looks.collect().wakings
        assert set(looks.members.images) == {measured, other}
        sleepers[0].kill()
        sleepers[0].wait()
        monitor.read()
        looks.collect()
        assert set(looks.members.images) == {other}


def test_processes_that_ended_make_room_for_others(
    root_bpf: None, sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (one.pid for one in sleepers)
    with trace_stacks(resolve([str(first)])) as (tracer, looks):
        monkeypatch.setattr(looks.members, "_capacity", 1)
        looks.members.add([second])
        assert any("no room for 1 of the target" in note for note in looks.members.notes())
        sleepers[0].kill()
        sleepers[0].wait()
        looks.members.add([second])
        admitted = {int.from_bytes(key, "little") for key, _ in tracer.program.entries("targets")}
    assert admitted == {second}
