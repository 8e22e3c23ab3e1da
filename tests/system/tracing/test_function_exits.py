# SPDX-License-Identifier: Apache-2.0
"""A process that can throw is probed where its functions are left: counts are exact, and exceptions do it no harm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from powerprof.attribution.profile import FunctionProfile, build_function_profile
from powerprof.measure import window
from powerprof.tracing.functions import FunctionTracer
from tests.conftest import Cli
from tests.programs.running import Running
from tests.programs.truth import TRUTH, compiled

pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, compilers: Sequence[str]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exits")
    c, cxx = compilers
    # A C program that something in it could throw through: the library is there, nobody calls it.
    truth = compiled(c, "functions_truth.c", folder, "-Wl,--no-as-needed", "-lstdc++")
    return {"throwing": compiled(cxx, "throwing.cpp", folder), "truth": truth}


@pytest.fixture
def throwing(programs: dict[str, Path]) -> Iterator[Running]:
    target = Running(programs["throwing"])
    yield target
    target.end()


def profile(target: Running, *, multi: bool = True) -> tuple[FunctionProfile, str]:
    """A window that is as long as the program works, however long that takes on this host."""
    said = []

    def work(*_: object) -> None:
        target.begin()
        said.append(target.line())

    with FunctionTracer([target.pid], "truth_*", multi=multi) as tracer, pytest.MonkeyPatch.context() as patch:
        assert tracer.danger is None
        patch.setattr(window, "wait_and_read", work)
        trace = tracer.measure(1)
    assert target.process.poll() is None
    (one,) = said
    return build_function_profile(trace), one


@pytest.mark.parametrize("multi", [True, False], ids=["uprobe_multi", "uprobe_pmu"])
def test_a_program_throws_ten_thousand_times_through_probed_functions_and_lives(throwing: Running, multi: bool) -> None:
    found, said = profile(throwing, multi=multi)
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
    assert (found.lost_count, found.unmatched_returns_count) == (0, 0)
    assert all(name.endswith(".cold") for name, _ in found.refused)


def test_calls_are_exact_and_self_times_are_the_functions_own(programs: dict[str, Path]) -> None:
    wrong = dict.fromkeys(TRUTH, 0.0)
    # Counts are exact each time. Times can be another program's fault: a function must be right once.
    for _ in range(3):
        target = Running(programs["truth"])
        try:
            found, said = profile(target)
        finally:
            target.end()
        assert said == "done\n"
        rows = {row.function: row for row in found.functions}
        assert {name: (rows[name].calls_count, rows[name].abandoned_count) for name in TRUTH} == {
            name: (calls, 0) for name, (calls, _) in TRUTH.items()
        }
        assert (rows["truth_jumps"].calls_count, rows["truth_jumps"].abandoned_count) == (60, 60)
        assert (rows["truth_jumper"].calls_count, rows["truth_jumper"].abandoned_count) == (60, 0)
        # No return probe, so no limit of 64.
        assert (rows["truth_deep"].calls_count, rows["truth_deep"].abandoned_count) == (100, 0)
        assert found.unmatched_returns_count == found.lost_count == found.too_deep_count == 0
        means = {name: rows[name].self_cpu_mean_us or 0.0 for name in wrong}
        # A `ret` is stepped over by a second trap, whose 20 to 45 µs vary by half; 4 ms in all for a busy machine.
        wrong = {
            name: mean
            for name, mean in means.items()
            if not 0.97 * TRUTH[name][1] - 20 <= mean <= 1.04 * TRUTH[name][1] + 20 + 4000 / TRUTH[name][0]
        }
        if not wrong:
            break
    assert wrong == {}


def test_return_probes_where_exceptions_pass_are_a_danger_that_is_told(throwing: Running) -> None:
    with FunctionTracer([throwing.pid], "truth_*", unwinding_risk=True) as tracer:
        assert tracer.danger is not None
        assert "an exception that passes a probed function ends the process" in tracer.danger


def test_that_danger_needs_somebodys_consent(throwing: Running, powerprof_cli: Cli) -> None:
    words = ["functions", "truth_*", "--pid", str(throwing.pid), "--duration", "0.2", "--no-save"]
    refused = powerprof_cli([*words, "--allow-unwinding-risk"])
    assert refused.code == 2
    assert re.fullmatch(
        r"warning: libstdc\+\+\.so\.6\S*, throwing can throw: an exception that passes a probed function ends the "
        r"process\n"
        r"error: confirmation needs a terminal\nhint: add --yes, or leave out --allow-unwinding-risk\n",
        refused.err,
    )
    agreed = powerprof_cli([*words, "--allow-unwinding-risk", "--yes"])
    assert agreed.code == 0
    assert agreed.err.startswith("warning: ")
    assert "at exits" not in agreed.out
    without = powerprof_cli([*words])
    assert (without.code, without.err) == (0, "")
    assert "at exits" in without.out
