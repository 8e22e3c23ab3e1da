# SPDX-License-Identifier: Apache-2.0
"""Function probes against a program whose call counts and CPU times are known by construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.attribution.profile import FunctionProfile, FunctionRow, build_function_profile
from powerprof.measure.window import OpenWindow
from powerprof.system.errors import UsageError
from powerprof.tracing.functions import FunctionTracer
from tests.programs.own_library import own_libc
from tests.programs.running import Running
from tests.programs.truth import TRUTH, compiled

pytestmark = pytest.mark.usefixtures("root_bpf")

_AT_MOST_S = 60.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, compilers: Sequence[str]) -> Path:
    return compiled(compilers[0], "functions_truth.c", tmp_path_factory.mktemp("functions"))


@contextmanager
def started(program: Path) -> Iterator[Running]:
    target = Running(program)
    yield target
    target.end()


@pytest.fixture
def running(program: Path) -> Iterator[Running]:
    with started(program) as target:
        yield target


def profile(running: Running, pattern: str, *, multi: bool = True) -> FunctionProfile:
    with FunctionTracer([running.pid], pattern, multi=multi) as tracer:
        # The work takes 0.4 s of a CPU, whatever else the machine is busy with: the window is open when it begins, and
        # ends when it is done.
        window = OpenWindow(tracer)
        running.begin()
        window.wait(_AT_MOST_S, running.descriptor)
        trace = tracer.collect(window.end(None))
    assert running.process.poll() is None
    assert running.line() == "done\n"
    return build_function_profile(trace)


def by_name(found: FunctionProfile) -> dict[str, FunctionRow]:
    return {row.function: row for row in found.functions}


@pytest.mark.parametrize("multi", [True, False], ids=["uprobe_multi", "uprobe_pmu"])
def test_calls_are_exact_and_self_times_are_the_functions_own(program: Path, multi: bool) -> None:
    # Own CPU time of a call. The clock is read every 0.2 µs and a probe's cost is known to 1 to 3 µs.
    bounds = {name: (0.98 * own_us - 3, 1.04 * own_us + 3 + 4000 / calls) for name, (calls, own_us) in TRUTH.items()}
    # In all of its calls, in µs: recursion counts once, the time after a tail call is the second function's.
    bounds["all of truth_recurse"] = (18_000, 26_000)
    bounds["all of truth_tail_first"] = (28_000, 36_000)
    # Interrupts and time stolen by the hypervisor make calls longer, never shorter, so the shortest of three is judged.
    shortest_us = dict.fromkeys(bounds, float("inf"))
    for _ in range(3):
        with started(program) as running:
            found = profile(running, "truth_*", multi=multi)
        rows = by_name(found)
        assert {name: rows[name].calls_count for name in TRUTH} == {name: calls for name, (calls, _) in TRUTH.items()}
        assert sum(rows[name].abandoned_count for name in TRUTH) == 0
        took_us = {name: rows[name].self_cpu_mean_us or 0.0 for name in TRUTH} | {
            f"all of {name}": 1000 * rows[name].cpu_ms for name in ("truth_recurse", "truth_tail_first")
        }
        shortest_us = {name: min(took_us[name], before) for name, before in shortest_us.items()}
        if all(us <= bounds[name][1] for name, us in shortest_us.items()):
            break
    wrong = {name: us for name, us in shortest_us.items() if not bounds[name][0] <= us <= bounds[name][1]}
    assert wrong == {}
    # Off-CPU time is wall time only: 40 sleeps of 5 ms, which cost the kernel some CPU time too.
    assert rows["truth_sleeper"].calls_count == 40
    assert rows["truth_sleeper"].self_wall_ms >= 200
    assert 40 * 0.095 < rows["truth_sleeper"].self_cpu_ms < 0.2 * rows["truth_sleeper"].self_wall_ms
    assert found.unmatched_returns_count == found.lost_count == found.too_deep_count == 0


def test_calls_left_by_longjmp_or_too_deep_for_the_kernel_are_abandoned(running: Running) -> None:
    rows = by_name(profile(running, "truth_*"))
    assert (rows["truth_jumps"].calls_count, rows["truth_jumps"].abandoned_count) == (60, 60)
    assert (rows["truth_jumper"].calls_count, rows["truth_jumper"].abandoned_count) == (60, 0)
    assert rows["truth_deep"].calls_count == 100
    assert rows["truth_deep"].abandoned_count >= 36  # the kernel follows 64 returns


def test_the_cost_of_the_probes_is_told(running: Running) -> None:
    found = profile(running, "truth_leaf")
    assert found.hits_count == 600
    assert 0.1 < found.probe_call_us < 200
    assert found.probe_stepped_call_us > found.probe_call_us
    assert found.probe_cost_ms == pytest.approx(
        600
        * (
            found.probe_call_us
            if found.functions[0].probe_ms < 600 * found.probe_stepped_call_us / 1e3
            else found.probe_stepped_call_us
        )
        / 1e3
    )


def test_patterns_that_mean_too_much_or_nothing_are_refused(running: Running) -> None:
    pid = running.pid
    with pytest.raises(UsageError, match=r"means \d+ functions; more than 3"):
        FunctionTracer([pid], "truth_*", limit=3)
    with pytest.raises(UsageError, match="means no function") as nothing:
        FunctionTracer([pid], "nanosleep")
    assert nothing.value.hint == "libc.so.6 has 1 such functions: 'libc.so.6:nanosleep'"
    with pytest.raises(UsageError, match="setjmp cannot be probed"):
        FunctionTracer([pid], "libc.so.6:setjmp")
    with pytest.raises(UsageError, match="IFUNC"):
        FunctionTracer([pid], "libc.so.6:strlen")


def test_a_function_of_a_library(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_libc() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with started(program) as running:
            rows = by_name(profile(running, "libc:nanosleep"))
    assert rows["nanosleep"].calls_count == 40
    assert rows["nanosleep"].self_wall_ms >= 200
