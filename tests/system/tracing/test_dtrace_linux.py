# SPDX-License-Identifier: Apache-2.0
"""The D scripts by Debian's dtrace 2.0.7, against programs whose counts are known by construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from powerprof.attribution.profile import FunctionProfile, build_function_profile
from powerprof.measure import window
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.tracing.captures import FunctionTrace
from powerprof.tracing.dtrace import Dtrace, find_dtrace, read_script, render_script, run_dtrace
from powerprof.tracing.dtrace_functions import trace_functions
from powerprof.tracing.dtrace_output import parse_latency, parse_wakeups
from powerprof.tracing.functions import FunctionTracer
from tests.programs.running import Running
from tests.programs.truth import TRUTH, compiled

Start = Callable[[str], Running]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, compilers: Sequence[str]) -> Path:
    folder = tmp_path_factory.mktemp("dtrace")
    c, cxx = compilers
    for compiler, source in ((c, "functions_truth.c"), (c, "sleeping_truth.c"), (cxx, "throwing.cpp")):
        compiled(compiler, source, folder)
    return folder


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    started: list[Running] = []

    def run(name: str) -> Running:
        started.append(Running(folder / name))
        return started[-1]

    yield run
    for one in started:
        one.end()


@pytest.fixture
def dtrace(dtrace_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Dtrace:
    monkeypatch.setenv("PATH", f"{dtrace_folder}:/usr/sbin:/usr/bin:/sbin:/bin")
    found = find_dtrace()
    assert found.version >= (2, 0, 7)
    return found


def by_bpf(truth: Running, monkeypatch: pytest.MonkeyPatch) -> FunctionProfile:
    """Return the profile of a window that ends with the work."""
    with FunctionTracer([truth.pid], "truth_*") as tracer:
        working(truth, monkeypatch)
        return build_function_profile(tracer.measure(2.5))


def mean_cpu_us(trace: FunctionTrace, name: str) -> float:
    """Of one call, the probes' time within."""
    row = next(row for row in trace.functions if row.name == name)
    assert row.self_cpu_ns is not None
    return row.self_cpu_ns / row.calls / 1e3


def assert_exact(trace: FunctionTrace) -> None:
    rows = {row.name: (row.calls, row.returns) for row in trace.functions}
    assert {name: rows[name] for name in TRUTH} == {name: (calls, calls) for name, (calls, _) in TRUTH.items()}
    assert rows["truth_sleeper"] == (40, 40)
    assert rows["truth_jumps"] == (60, 0)  # they leave by longjmp
    assert rows["truth_jumper"] == (60, 60)
    assert rows["truth_deep"] == (100, 100)
    assert trace.lost_count == 0
    asleep = next(row for row in trace.functions if row.name == "truth_sleeper")
    assert asleep.self_wall_ns is not None and asleep.self_wall_ns >= 40 * 5e6
    assert asleep.self_wall_ns / 1e9 < trace.window_s


def beyond(trace: FunctionTrace, expected: dict[str, float]) -> list[tuple[str, float, float]]:
    """Return the functions whose self time is below the known one, or above that of BPF and the probes' cost.

    BPF measured on the same busy host: its time is a bound above the known time, not below.
    """
    # A call of truth_deep does nothing: its time is what a probe costs within the call; as much again lies around it.
    probe_us = mean_cpu_us(trace, "truth_deep")
    assert 1 < probe_us < 400
    found = []
    for name, (calls, known_us) in TRUTH.items():
        mean_us, inner = mean_cpu_us(trace, name), {"truth_outer": 3, "truth_recurse": 1}.get(name, 0)
        limit_us = 1.2 * max(expected[name], known_us) + (1 + inner) * probe_us + 4000 / calls
        if not 0.8 * known_us <= mean_us <= limit_us:
            found.append((name, mean_us, limit_us))
    return found


def test_calls_are_exact_and_self_times_those_of_bpf_and_the_probes(
    dtrace: Dtrace, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {
        row.function: row.self_cpu_mean_us or 0.0 for row in by_bpf(start("functions_truth"), monkeypatch).functions
    }
    outside = dict.fromkeys(TRUTH, (0.0, 0.0))
    # Counts are exact each time. Times can be another program's fault: a function must be right once.
    for _ in range(3):
        truth = start("functions_truth")
        said = working(truth, monkeypatch)
        trace = trace_functions(dtrace, truth.pid, "truth_*", 0.5, limit=200)
        assert said == ["done\n"]
        assert_exact(trace)
        outside = {name: (mean, limit) for name, mean, limit in beyond(trace, expected) if name in outside}
        if not outside:
            break
    assert outside == {}


def working(target: Running, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The next window lasts as long as the work; where the target's word will be."""
    said: list[str] = []

    def work(*_: object) -> None:
        target.begin()
        said.append(target.line())

    monkeypatch.setattr(window, "wait_and_read", work)
    return said


def test_ten_thousand_exceptions_pass_probed_functions_and_the_program_lives(
    dtrace: Dtrace, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start("throwing")
    said = working(target, monkeypatch)
    trace = trace_functions(dtrace, target.pid, "truth_*", 0.5, limit=200)
    assert said == ["alive 10000 0\n"]
    assert {row.name: row.calls for row in trace.functions} == dict.fromkeys(
        ("truth_throws", "truth_passed", "truth_catches"), 10_000
    )
    target.begin()
    assert target.line() == "alive 10000 0\n"


def test_wakings_are_those_that_the_kernel_counts(
    dtrace: Dtrace, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start("sleeping_truth")
    said = working(target, monkeypatch)
    script = render_script(read_script("wakeups"), pid=target.pid)
    found = parse_wakeups(run_dtrace(dtrace, script, target.pid, 0.5))
    sleeper, consumer, producer = (int(word) for word in said[0].split()[2:])
    pairs: Counter[tuple[int, int]] = Counter()
    for row in found.wakeups:
        if row.waker_pid == target.pid and row.stack:
            pairs[row.sleeper_tid, row.waker_tid] += row.count
    # Each time that the consumer waited, the producer woke it. An interrupt while the producer ran, or a thread's start
    # and end, can add one or two.
    (consumer_tid, producer_tid), count = pairs.most_common(1)[0]
    assert 250 <= consumer <= 302
    assert count == pytest.approx(consumer, abs=2)
    total = sum(row.count for row in found.wakeups)
    # The three threads' waits, one more of each, and the main thread's for its line, its threads and their end.
    assert total == pytest.approx(sleeper + consumer + producer + 3, abs=12)
    assert pairs[producer_tid, consumer_tid] <= producer - 298
    assert found.lost_count == 0


def test_sleeps_are_the_programs_own_in_number_and_length(
    dtrace: Dtrace, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start("sleeping_truth")
    said = working(target, monkeypatch)
    script = render_script(read_script("sleep-wake-latency"), pid=target.pid)
    found = parse_latency(run_dtrace(dtrace, script, target.pid, 0.5))
    mean_ns, *waits = (int(word) for word in said[0].split()[1:])
    counted = sorted((row.sleeps_count for row in found.threads), reverse=True)[:3]
    # A wait that is over before the thread is off its CPU is one for the kernel, and no sleep: the producer's for an
    # answer, some of them. A sleep follows the count, and a thread's start and end can add two.
    for sleeps, kernel in zip(counted, sorted(waits, reverse=True), strict=True):
        assert 0.95 * kernel - 2 <= sleeps <= kernel + 3
    sleeper = min(found.threads, key=lambda row: abs(row.sleeps_count - waits[0]))
    # One that is woken on its way off a CPU runs on without a wait: on a busy host a few.
    assert 0 <= sleeper.sleeps_count - sleeper.waits_count <= 0.05 * sleeper.sleeps_count
    assert sleeper.sleep_mean_ms is not None and sleeper.wait_mean_ms is not None
    # The program's clock has the sleep and the wait for a CPU in one, and the way there and back, preemption within.
    assert sleeper.sleep_mean_ms >= 5.0
    assert sleeper.sleep_mean_ms + sleeper.wait_mean_ms == pytest.approx(mean_ns / 1e6, abs=0.3)


def test_what_dtrace_refuses_is_told_in_its_words(dtrace: Dtrace, start: Start) -> None:
    target = start("functions_truth")
    with pytest.raises(PowerprofError, match=r"dtrace 2\.0\.\d+ failed: .*syntax error"):
        run_dtrace(dtrace, "dtrace:::BEGIN { nonsense }}", target.pid, 1)
    with pytest.raises(UsageError, match="means no function"):
        trace_functions(dtrace, target.pid, "no_such_function", 1, limit=200)
    assert target.process.poll() is None
