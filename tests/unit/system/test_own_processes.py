# SPDX-License-Identifier: Apache-2.0
"""powerprof's helpers are powerprof; servers, loads and commands are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.measure.window import run_window
from powerprof.system import own_processes, programs
from powerprof.system.fork import run_in_fork
from powerprof.system.own_processes import OwnCost, is_own, own_pids, read_own_cost
from powerprof.system.reader_process import ReaderProcess
from powerprof.system.sandbox import Confinement

_SHELL = ["/bin/sh", "-c", "echo $$"]


def _ran(tmp_path: Path) -> int:
    return int(programs.run(_SHELL).stdout)


def _confined(tmp_path: Path) -> int:
    user = (65534, 65534) if os.geteuid() == 0 else None
    return int(programs.run(_SHELL, user=user, confinement=Confinement(view=False)).stdout)


def _slept(_: Path, **options: Any) -> int:
    process = programs.start(["/bin/sleep", "30"], **options)
    programs.stop(process)
    return process.pid


def _command(tmp_path: Path) -> int:
    with (tmp_path / "errors").open("w") as errors:
        process = programs.start_typed(["/bin/true"], stderr=errors)
        process.wait()
    return process.pid


def _forked(tmp_path: Path) -> int:
    return int(b"".join(run_in_fork(lambda send: send(str(os.getpid()).encode()), 5.0).parts))


def _reader(tmp_path: Path) -> int:
    with ReaderProcess() as reader:
        return reader._ensure_child().pid


def _refused(tmp_path: Path) -> int:
    """A program that fails worked for powerprof too."""
    return int(programs.run(["/bin/sh", "-c", "echo $$; exit 3"], check=False).stdout)


@pytest.mark.parametrize(
    ("start", "is_own"),
    [
        (lambda _: os.getpid(), True),
        (_ran, True),
        (_refused, True),
        (_slept, True),
        (partial(_slept, dies_with_us=False), True),
        (_forked, True),
        (_reader, True),
        (_confined, False),
        (partial(_slept, affinity=[min(os.sched_getaffinity(0))]), False),
        (partial(_slept, measured=True), False),
        (_command, False),
        (lambda _: os.getppid(), False),
    ],
)
def test_helpers_are_own_processes(start: Callable[[Path], int], is_own: bool, tmp_path: Path) -> None:
    assert (start(tmp_path) in own_pids()) == is_own


def test_old_helpers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_processes, "_HELPERS", {})
    for pid in range(3_000_000, 3_002_000):
        own_processes.add_helper(pid)
    assert len(own_pids()) == own_processes._KEPT + 1
    assert 3_001_999 in own_pids() and 3_000_000 not in own_pids()


def test_the_cost_has_a_helper_that_ended() -> None:
    before = read_own_cost()
    programs.run(["/bin/sh", "-c", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; sleep 0.01; sleep 0.01"])
    cpu_s, switches = read_own_cost().since(before)
    assert cpu_s > 0.02 and switches >= 2


def test_a_window_has_the_wakings_of_its_helpers() -> None:
    process = programs.start(["/usr/bin/env", "python3", "-c", "import time\nfor _ in range(2000): time.sleep(0.01)"])
    try:
        time.sleep(0.3)
        passed = run_window(0.5)
    finally:
        programs.stop(process)
    assert passed.tool_wakeups_count > 20


def test_a_helper_s_number_that_another_process_has_now_is_not_own() -> None:
    """The kernel gives numbers again; the target of a long-lived exporter must not vanish."""
    own_processes.add_helper(os.getppid())
    assert os.getppid() in own_pids()
    assert not is_own(os.getppid()) and os.getppid() not in own_pids()
    assert is_own(os.getpid()) and not is_own(1)


def test_the_cost_between_two_readings_is_the_sum_of_the_differences() -> None:
    before = OwnCost({1: (2.0, 100), 2: (9.0, 900), 3: (5.0, 500), 0: (1.0, 10)})
    # 2 has ended; 3 is another process with this number; 4 is new.
    after = OwnCost({1: (2.75, 130), 3: (0.5, 7), 4: (0.125, 3), 0: (1.5, 12)})
    assert after.since(before) == (pytest.approx(0.75 + 0.125 + 0.5), 30 + 3 + 2)
    assert after.since(after) == (0.0, 0)


def test_the_cost_of_ended_helpers_is_user_and_system_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(user_s: float, system_s: float, voluntary: int, forced: int) -> Any:
        return SimpleNamespace(ru_utime=user_s, ru_stime=system_s, ru_nvcsw=voluntary, ru_nivcsw=forced)

    monkeypatch.setattr(own_processes, "_ENDED", {0: (1.0, 50)})
    own_processes.add_ended_cost(usage(3.0, 7.0, 100, 1000), usage(3.5, 7.25, 104, 1009))
    assert own_processes._ENDED[0] == (pytest.approx(1.75), 54)
    assert read_own_cost().spent[0] == own_processes._ENDED[0]


def test_a_helper_costs_its_time_on_a_cpu_and_its_voluntary_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "77"
    folder.mkdir()
    (folder / "schedstat").write_text("1250000000 9000000000 4711\n")
    switches = "voluntary_ctxt_switches:\t31\nnonvoluntary_ctxt_switches:\t4000\n"
    (folder / "status").write_text(f"Name:\tx\nPPid:\t{os.getpid()}\n{switches}")
    monkeypatch.setattr(own_processes, "Path", lambda _, pid: tmp_path / pid)
    monkeypatch.setattr(own_processes, "_RUNNING", {77, 78})
    assert read_own_cost().spent[77] == (1.25, 31)
    assert {77} == own_processes._RUNNING
    (folder / "status").write_text(f"Name:\tx\nPPid:\t1\n{switches}")
    assert 77 not in read_own_cost().spent


# A meter's program that burns CPU time itself and in a child that outlives it.
_METER = (
    "burn() { n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done; }; burn; (burn; sleep 1) >/dev/null 2>&1 & echo 5"
)


@pytest.mark.parametrize("is_command", [True, False], ids=["command", "load"])
def test_the_cpu_time_of_a_meters_program_is_in_no_command_and_no_load(tmp_path: Path, is_command: bool) -> None:
    """The meter is sampled while a sleeping command or load is measured."""
    with (tmp_path / "errors").open("w") as errors:
        if is_command:
            process = programs.start_typed(["/bin/sleep", "0.2"], stderr=errors)
        else:
            process = programs.start(["/bin/sleep", "0.2"], stderr=errors, measured=True)
        spent_s = read_own_cost()
        programs.run(["/bin/sh", "-c", _METER])
        cpu_s = programs.wait_for_cost(process) or 0.0
        leftovers = programs.end_session(process) if is_command else None
    assert read_own_cost().since(spent_s)[0] > 0.05
    assert cpu_s + (leftovers.cpu_s if leftovers else 0.0) < 0.05
    assert leftovers is None or not leftovers.were_running
