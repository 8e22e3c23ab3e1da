# SPDX-License-Identifier: Apache-2.0
"""CPU sampling and page faults against programs whose shares and counts are known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from powerprof.attribution.profile import OnCpuProfile, build_on_cpu_profile
from powerprof.measure.window import OpenWindow
from powerprof.tracing.captures import Event, OnCpuCapture
from powerprof.tracing.profile import OnCpuTracer
from tests.programs.truth import compiled

pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, compilers: Sequence[str]) -> Path:
    return compiled(compilers[0], "oncpu_truth.c", tmp_path_factory.mktemp("oncpu"))


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def measure(
    program: Path,
    arguments: list[str],
    event: Event,
    duration_s: float,
    *,
    frequency_hz: int = 99,
    every_process: bool = False,
    ring_pages: int = 2048,
) -> tuple[OnCpuCapture, str, tuple[float, float]]:
    """The capture, what the program said, and the CPU time that it had used just before and after the window's end."""
    process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    try:
        pid = int(process.stdout.readline())
        pids = None if every_process else [pid]
        with OnCpuTracer(pids, event, frequency_hz=frequency_hz, ring_pages=ring_pages) as tracer:
            window = OpenWindow(tracer)
            process.stdin.write("\n")
            process.stdin.flush()
            window.wait(duration_s)
            low_s = _cpu_s(pid)
            passed = window.end()
            used_s = low_s, _cpu_s(pid)
            capture = tracer.collect(passed)
        process.stdin.close()
        said = process.stdout.readline() if event == "page-faults" else ""
    finally:
        process.kill()
        process.wait()
    return capture, said, used_s


def shares(profile: OnCpuProfile, *names: str) -> dict[str, float]:
    """Share of the targets' samples with the function anywhere on the stack, in percent."""
    found = dict.fromkeys(names, 0)
    for row in profile.stacks:
        for name in {frame.label for frame in row.stack} & set(names):
            found[name] += row.count
    return {name: 100 * count / profile.target_count for name, count in found.items()}


def test_cpu_time_falls_to_the_functions_that_use_it(program: Path) -> None:
    capture, _, (low_s, high_s) = measure(program, ["burn", "60"], "cpu-clock", 1.5, frequency_hz=1997)
    profile = build_on_cpu_profile(capture)
    # 1,000 samples and more: a share of 50 % is known to ±3.1 points (95 %), and 6 are twice that.
    found = shares(profile, "truth_one", "truth_two", "truth_kernel", "truth_level")
    assert found["truth_one"] == pytest.approx(50, abs=6)
    assert found["truth_two"] == pytest.approx(30, abs=6)
    assert found["truth_kernel"] == pytest.approx(20, abs=6)
    assert found["truth_level"] > 97
    # The CPU time that the kernel accounts (in ticks of 10 ms), used by a thread born in the window.
    assert 900 * low_s - 30 <= profile.target_c0_ms <= 1100 * high_s + 30
    assert {row.comm for row in profile.stacks if row.count > 20} == {"truth-burner"}
    named = profile.complete_count + profile.truncated_count + profile.failed_count + profile.lost_count
    assert named == profile.target_count
    assert profile.complete_count >= 0.99 * profile.target_count
    kernel = [row for row in profile.functions if row.kernel]
    assert any(row.function == "read_zero" for row in kernel)
    # Repeated paths are counted, not copied again.
    assert profile.copied_stacks_count < 0.5 * profile.target_count


def test_every_process_is_seen_and_percentages_are_of_the_target(program: Path) -> None:
    capture, *_ = measure(program, ["burn", "60"], "cpu-clock", 1.0, frequency_hz=499, every_process=True)
    profile = build_on_cpu_profile(capture)
    assert profile.target_count == capture.busy_count
    assert sum(row.percent for row in profile.stacks) == pytest.approx(100, abs=0.01)
    assert sum(row.self_percent for row in profile.functions) == pytest.approx(100, abs=0.01)
    one = next(row for row in profile.functions if row.function == "truth_one")
    assert one.low_percent is not None and one.high_percent is not None
    assert one.low_percent < one.self_percent < one.high_percent


def test_page_faults_are_counted_exactly(program: Path) -> None:
    capture, said, _ = measure(program, ["touch", "5000"], "page-faults", 0.7)
    profile = build_on_cpu_profile(capture)
    counted = int(said)
    touched = sum(row.count for row in profile.stacks if row.stack and row.stack[0].label == "truth_touch")
    # getrusage counts what truth_touch and the two calls around it took.
    assert 5000 <= touched <= counted <= 5010
    assert counted - 3 <= touched
    # Faults that the kernel skips while a program of ours runs on that CPU; none of them is one of those above.
    assert profile.missed_count <= 10
    assert profile.target_count >= counted


def test_lost_stacks_are_counted_and_events_are_not_lost(program: Path) -> None:
    capture, *_ = measure(program, ["burn", "60"], "cpu-clock", 1.2, frequency_hz=4999, ring_pages=8)
    profile = build_on_cpu_profile(capture)
    assert capture.lost_stacks_count > 0
    assert sum(row.count for row in capture.rows) + capture.lost_rows_count == capture.target_count
    assert sum(row.count for row in profile.stacks) == capture.target_count - capture.lost_rows_count


def test_a_saved_capture_gives_the_same_answer(program: Path) -> None:
    capture, *_ = measure(program, ["touch", "300"], "page-faults", 0.3)
    saved = msgspec.msgpack.encode(capture)
    assert build_on_cpu_profile(msgspec.msgpack.decode(saved, type=OnCpuCapture)) == build_on_cpu_profile(capture)


_IN_STEP = """
import sys, time
print(flush=True)
sys.stdin.readline()
due = time.monotonic()
while True:
    end = time.thread_time() + 0.002
    while time.thread_time() < end:
        pass
    due = max(due + 1 / 99, time.monotonic())
    time.sleep(max(due - time.monotonic(), 0))
"""


def test_work_in_step_with_the_rate_is_sampled(program: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_STEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        with OnCpuTracer([process.pid], frequency_hz=99) as tracer:
            capture = tracer.measure(2.5)
        profile = build_on_cpu_profile(capture)
    finally:
        process.kill()
        process.communicate()
    assert profile.clock_c0_ms is not None and profile.low_c0_ms is not None and profile.high_c0_ms is not None
    assert profile.target_c0_ms == profile.clock_c0_ms > 200
    # Four deviations: 95 % intervals twice as wide.
    assert 2 * profile.low_c0_ms - profile.sampled_c0_ms < profile.clock_c0_ms
    assert profile.clock_c0_ms < 2 * profile.high_c0_ms - profile.sampled_c0_ms
    assert sum(row.self_ms for row in profile.functions) == pytest.approx(profile.clock_c0_ms)
