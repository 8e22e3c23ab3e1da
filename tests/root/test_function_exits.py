"""A process that can throw is probed where its functions are left: counts are exact, and exceptions do it no harm."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from powerprof.attribution.functions import FunctionProfile, function_profile
from powerprof.tracing.functions import FunctionTracer

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, compilers: Sequence[str]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exits")
    c, cxx = compilers
    subprocess.run([cxx, "-O2", "-o", folder / "throwing", HERE / "throwing.cpp"], check=True)
    # A C program that something in it could throw through: the library is there, nobody calls it.
    linked = ["-Wl,--no-as-needed", "-lstdc++", "-lpthread"]
    flags = ["-O2", "-fomit-frame-pointer"]
    subprocess.run([c, *flags, "-o", folder / "truth", HERE / "functions_truth.c", *linked], check=True)
    return {name: folder / name for name in ("throwing", "truth")}


@pytest.fixture(params=["throwing", "truth"])
def running(request: pytest.FixtureRequest, programs: dict[str, Path]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen([programs[request.param]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, int(process.stdout.readline())
    process.kill()
    process.wait()


def profile(
    running: tuple[subprocess.Popen[str], int], seconds: float, *, multi: bool = True
) -> tuple[FunctionProfile, str]:
    process, pid = running
    assert process.stdin is not None and process.stdout is not None
    with FunctionTracer([pid], "truth_*", multi=multi) as tracer:
        assert tracer.danger is None

        def begin() -> None:
            process.stdin.write("\n")
            process.stdin.flush()

        timer = threading.Timer(0.1, begin)
        timer.start()
        trace = tracer.measure(seconds)
        timer.join()
    assert process.poll() is None
    return function_profile(trace), process.stdout.readline()


@pytest.mark.parametrize("running", ["throwing"], indirect=True)
@pytest.mark.parametrize("multi", [True, False], ids=["uprobe_multi", "uprobe_pmu"])
def test_a_program_throws_ten_thousand_times_through_probed_functions_and_lives(
    running: tuple[subprocess.Popen[str], int], multi: bool
) -> None:
    found, said = profile(running, 5, multi=multi)
    assert said == "alive 10000 0\n"
    assert found.method.endswith("at exits")
    rows = {row.function: row for row in found.functions}
    assert {name: rows[name].calls_count for name in rows} == dict.fromkeys(
        ("truth_throws", "truth_passed", "truth_catches"), 10_000
    )
    assert [rows[name].abandoned_count for name in ("truth_throws", "truth_passed", "truth_catches")] == [
        10_000,
        10_000,
        0,
    ]
    assert (found.lost_count, found.unmatched_returns_count, found.refused) == (0, 0, [])


@pytest.mark.parametrize("running", ["truth"], indirect=True)
def test_calls_are_exact_and_self_times_are_the_functions_own(running: tuple[subprocess.Popen[str], int]) -> None:
    found, said = profile(running, 3)
    assert said == "done\n"
    rows = {row.function: row for row in found.functions}
    # calls and own CPU time of each call in µs, as functions_truth.c has them
    truth = {
        "truth_leaf": (600, 100),
        "truth_outer": (50, 300),
        "truth_inner": (150, 150),
        "truth_recurse": (400, 50),
        "truth_tail_first": (60, 200),
        "truth_tail_second": (60, 300),
    }
    for name, (calls, own_us) in truth.items():
        assert (rows[name].calls_count, rows[name].abandoned_count) == (calls, 0), name
        mean_us = rows[name].self_cpu_mean_us
        # A `ret` is stepped over by a second trap, whose cost varies by some µs; 4 ms in all for a busy machine.
        assert mean_us is not None
        assert 0.97 * own_us - 10 <= mean_us <= 1.04 * own_us + 10 + 4000 / calls, name
    assert (rows["truth_jumps"].calls_count, rows["truth_jumps"].abandoned_count) == (60, 60)
    assert (rows["truth_jumper"].calls_count, rows["truth_jumper"].abandoned_count) == (60, 0)
    # No return probe, so no limit of 64.
    assert (rows["truth_deep"].calls_count, rows["truth_deep"].abandoned_count) == (100, 0)
    assert found.unmatched_returns_count == found.lost_count == found.too_deep_count == 0


@pytest.mark.parametrize("running", ["throwing"], indirect=True)
def test_return_probes_where_exceptions_pass_are_a_danger_that_is_told(
    running: tuple[subprocess.Popen[str], int],
) -> None:
    _, pid = running
    with FunctionTracer([pid], "truth_*", unwinding_risk=True) as tracer:
        assert tracer.danger is not None
        assert "an exception that passes a probed function ends the process" in tracer.danger
