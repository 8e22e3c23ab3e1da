# SPDX-License-Identifier: Apache-2.0
"""Sleeps, waits for a CPU and wakers, against a program that counts its own by the kernel's figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from powerprof.attribution.offcpu import build_bpf_profile
from powerprof.measure import window as runner
from powerprof.tracing.captures import OffCpuTrace
from powerprof.tracing.offcpu import OffCpuTracer
from tests.conftest import Cli
from tests.programs.running import Running
from tests.programs.truth import compiled

pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.fixture
def target(tmp_path: Path, compilers: Sequence[str]) -> Iterator[Running]:
    compiled(compilers[0], "sleeping_truth.c", tmp_path)
    running = Running(tmp_path / "sleeping_truth")
    yield running
    running.end()


def traced(target: Running) -> tuple[OffCpuTrace, int, list[int]]:
    """A window as long as the program's work; what it says of its own sleeps and waits."""
    with OffCpuTracer([target.pid]) as tracer:
        window = runner.OpenWindow(tracer)
        target.begin()
        line = target.line()
        trace = tracer.collect(window.end())
    mean_ns, *waits = (int(word) for word in line.split()[1:])
    return trace, mean_ns, waits


def test_sleeps_waits_and_wakers_are_the_programs_own(target: Running) -> None:
    trace, mean_ns, waits = traced(target)
    threads = {thread.comm: thread for thread in trace.threads}
    sleeps = {name: sum(count for count, _ in threads[name].states.values()) for name in threads}
    # A sleep follows the count, and the end of a thread can add a wait for a lock. On a guest no program was called
    # where a process of its owner was the current one: whoever was switched to then is known by being switched out
    # once more, which the sleep that follows is for.
    for name, kernel in zip(("sleeper", "consumer", "producer"), waits, strict=True):
        assert kernel <= sleeps[name] <= kernel + 3, name
    sleeper = threads["sleeper"]
    count, slept_ns = sleeper.states["interruptible"]
    assert count >= 200
    # One that is woken on its way off a CPU runs on without a wait.
    assert sleeps["sleeper"] - trace.unseen_count - 1 <= sleeper.waits_count <= sleeps["sleeper"]
    # The program's clock has the sleep and the wait for a CPU in one, and the way there and back, preemption within.
    assert slept_ns / count >= 4.9e6
    assert (slept_ns + sleeper.wait_ns) / count == pytest.approx(mean_ns, abs=0.3e6)
    assert sleeper.sleep_max_ns >= 5e6

    wakers: Counter[tuple[int, int]] = Counter()
    for row in trace.wakings:
        wakers[row.tid, row.waker_tid] += row.count
    consumer, producer = threads["consumer"].tid, threads["producer"].tid
    # Timers end the sleeper's sleeps, the producer the consumer's; both also for the producer.
    woken = Counter[int]()
    for (tid, _), count in wakers.items():
        woken[tid] += count
    for name in ("sleeper", "consumer", "producer"):
        # No sleep has two wakings; those that were not seen are few.
        assert 0.97 * sleeps[name] <= woken[threads[name].tid] <= sleeps[name], name
    assert wakers[sleeper.tid, 0] == woken[sleeper.tid]
    assert wakers[consumer, producer] >= woken[consumer] - 3
    assert wakers[producer, 0] + wakers[producer, consumer] >= woken[producer] - 2
    assert trace.lost_count == 0
    assert trace.bpf_s is not None and 0 < trace.bpf_s < trace.window_s


def test_the_profile_adds_up(target: Running) -> None:
    trace, _, _ = traced(target)
    profile = build_bpf_profile(trace, {})
    assert profile.sleeps_count == sum(thread.sleeps_count for thread in profile.threads)
    for thread in profile.threads:
        assert thread.states is not None
        assert thread.sleeps_count == sum(state.sleeps_count for state in thread.states)
    assert profile.wakings_count == sum(waker.count for waker in profile.wakers)
    waits = sum(thread.waits_count for thread in profile.threads)
    assert waits <= profile.wakings_count <= waits + trace.unseen_count
    assert sum(waker.percent for waker in profile.wakers) == pytest.approx(100.0)
    assert "consumer" in {thread.thread for thread in profile.threads}


def test_the_command_saves_a_run_that_opens_again(target: Running, powerprof_cli: Cli, tmp_path: Path) -> None:
    words = ["--duration", "0.5", "--json", str(tmp_path / "record.json")]
    done = powerprof_cli(
        ["--runs-dir", str(tmp_path / "runs"), "offcpu", "--pid", str(target.pid), "--backend", "bpf", *words]
    )
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "record.json").read_bytes())
    assert (record["schema"], record["command"], record["id"]) == ("powerprof.offcpu/1", "offcpu", "offcpu-0001")
    assert record["method"] == "bpf" and record["tool_cpu_s"] > 0 and record["lost_count"] == 0
    again = powerprof_cli(["--runs-dir", str(tmp_path / "runs"), "report", "offcpu-0001"])
    assert again.code == 0, again.err
    assert again.out.splitlines()[0] == done.out.splitlines()[0]
