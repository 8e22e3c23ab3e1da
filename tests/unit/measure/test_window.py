# SPDX-License-Identifier: Apache-2.0
"""Windows: their clocks, the order of their parts, the thread that waits, and the CPU time of a group."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from powerprof.measure.clock import SuspendClock, WallOffset, note_suspend, parse_timens_offset
from powerprof.measure.idle_counters import CpuReading, StateInfo, is_polling
from powerprof.measure.window import (
    GroupCpuClock,
    OpenWindow,
    WindowPart,
    read_group_cpu_ns,
    realtime_scheduling,
    run_window,
    wait_and_read,
)
from powerprof.system import capabilities, signals
from powerprof.system.errors import Interrupted, PowerprofError
from tests.programs.suspended import SuspendedClock


def test_each_asking_tells_of_the_time_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, suspended = SuspendedClock(monkeypatch), SuspendClock()
    assert suspended.since_s() == 0.0
    clock.sleep(30.0)
    assert suspended.since_s() == pytest.approx(30.0, abs=0.01)
    assert suspended.since_s() == 0.0
    clock.sleep(0.25)
    clock.sleep(0.25)
    assert suspended.since_s() == pytest.approx(0.5, abs=0.01)


def test_a_reading_that_was_cut_in_two_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two clocks a busy host may let others run for a time slice: no suspend."""
    now_ns, cut = 10**12, [True, False, True]

    def gettime(clock: int) -> int:
        nonlocal now_ns
        now_ns += 1000
        if clock == time.CLOCK_BOOTTIME and cut and cut.pop(0):
            now_ns += 40_000_000
        return now_ns

    monkeypatch.setattr(time, "clock_gettime_ns", gettime)
    suspended = SuspendClock()
    assert suspended.since_s() == 0.0
    assert cut == []


def test_a_window_notes_a_suspend() -> None:
    assert note_suspend(0.0) == []
    assert note_suspend(12.34)[0].startswith("the host was suspended for 12.3 s within this window")


def test_the_wall_clock_is_remembered_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 1000.0
    monkeypatch.setattr(time, "time", lambda: time.monotonic() + ahead)
    offset = WallOffset()
    for now_s in (1.0, 2.0, 3.0, 4.0):
        offset.note(now_s)
    ahead = 4600.0
    offset.note(5.0)
    for when_s, known in ((1.0, 1000.0), (2.9, 1000.0), (4.0, 1000.0), (5.0, 4600.0), (9.0, 4600.0)):
        assert offset.near(when_s) == pytest.approx(known, abs=0.01)


@pytest.mark.parametrize(
    ("file", "text", "ns"),
    [
        ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n", 1_500_000),
        ("cpuacct.usage", "987654321\n", 987_654_321),
        ("cpu.stat", "nr_periods 0\nnr_throttled 0\n", None),  # version 1's file of that name
        ("cpu.stat", "usage_usec many\n", None),
        ("cpuacct.usage", "", None),
    ],
)
def test_each_version_and_what_is_no_count(tmp_path: Path, file: str, text: str, ns: int | None) -> None:
    (tmp_path / file).write_text(text)
    assert read_group_cpu_ns(tmp_path) == ns


def test_a_group_that_is_gone_at_the_end_has_none(tmp_path: Path) -> None:
    usage = tmp_path / "cpuacct.usage"
    usage.write_text("5\n")
    clock, nobody = GroupCpuClock(tmp_path), GroupCpuClock(None)
    for one in (clock, nobody):
        one.begin()
    usage.write_text("9\n")
    for one in (clock, nobody):
        one.end()
    assert (clock.used_ns, nobody.used_ns) == (4, None)
    clock = GroupCpuClock(tmp_path)
    clock.begin()
    usage.unlink()
    clock.end()
    assert clock.used_ns is None


class Noted(WindowPart):
    """Writes down what it is asked; `act` is done in each read."""

    def __init__(self, name: str, log: list[str], every_s: float = math.inf, calls: int | None = None) -> None:
        self._name, self._log, self._every_s, self._calls = name, log, every_s, calls
        self.act: Callable[[], object] = int

    @property
    def wake_descriptor(self) -> int | None:
        return self._calls

    @property
    def read_interval_s(self) -> float:
        return self._every_s

    def open(self) -> None:
        self._log.append(f"{self._name} opens")

    def begin(self) -> None:
        self._log.append(f"{self._name} begins")

    def read(self) -> None:
        self._log.append(f"{self._name} is read")
        self.act()

    def end(self) -> None:
        self._log.append(f"{self._name} ends")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_parts_open_before_privileges_are_given_up_and_end_in_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(capabilities, "drop_privileges", lambda: log.append("settled"))
    passed = run_window(0.0, Noted("a", log), Noted("b", log), settle=True)
    assert log == ["a opens", "b opens", "settled", "a begins", "b begins", "b ends", "a ends"]
    assert (passed.interrupted, passed.notes) == (None, [])
    assert passed.window_s >= 0 and passed.tool_cpu_s > 0
    log.clear()
    OpenWindow(Noted("a", log)).end()
    assert log == ["a opens", "a begins", "a ends"]


def test_who_calls_is_read_and_nobody_else(pipe: tuple[int, int]) -> None:
    log: list[str] = []
    over, end = os.pipe()
    calling, other = Noted("calling", log, calls=pipe[0]), Noted("other", log)
    calling.act = lambda: (os.read(pipe[0], 1), os.write(end, b"x"))
    os.write(pipe[1], b"x")
    wait_and_read((calling, other), math.inf, over)
    assert log == ["calling is read"]
    os.close(over)
    os.close(end)


def test_a_part_is_read_when_it_is_due_and_never_at_the_end(pipe: tuple[int, int]) -> None:
    log: list[str] = []
    quick, slow = Noted("quick", log, 0.001), Noted("slow", log, 3600.0)
    reads = iter(range(3))
    quick.act = lambda: os.write(pipe[1], b"x") if next(reads) == 2 else None
    wait_and_read((quick, slow), math.inf, pipe[0])
    assert log == ["quick is read"] * 3
    log.clear()
    wait_and_read((Noted("due with the end", log, 0.01),), 0.01)
    assert log == []


def test_what_is_due_is_so_over_many_short_waits(pipe: tuple[int, int]) -> None:
    """Thousands of executions of a command that takes a millisecond: a meter's counter would wrap unseen."""
    log: list[str] = []
    part = Noted("meter", log, 3600.0)
    running = OpenWindow(part)
    os.write(pipe[1], b"x")
    running.wait(math.inf, pipe[0])
    assert log[2:] == []
    running._due_s[0] -= 3600.0
    os.read(pipe[0], 1)
    running.wait(0.001, pipe[0])
    running.wait(0.001, pipe[0])
    assert log[2:] == ["meter is read"]


def test_a_window_that_has_nothing_left_to_observe_is_over(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x")
    assert run_window(3600.0, until=pipe[0]).window_s < 600


@pytest.fixture
def answered() -> Iterator[None]:
    """SIGALRM, as the command line answers SIGINT."""

    def answer(number: int, frame: FrameType | None) -> None:
        raise Interrupted("interrupted")

    before = signal.signal(signal.SIGALRM, answer)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def interrupting(answered: None) -> Iterator[None]:
    """It comes in 50 ms."""
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)


@pytest.mark.parametrize("by", ["sleep", "poll"])
def test_an_interrupt_ends_the_window_and_every_part(interrupting: None, pipe: tuple[int, int], by: str) -> None:
    log: list[str] = []
    passed = run_window(3600.0, Noted("a", log, calls=pipe[0] if by == "poll" else None))
    assert passed.interrupted is not None and passed.interrupted.message == "interrupted"
    assert log[-1] == "a ends"
    assert passed.window_s < 600


def test_a_signal_that_another_thread_takes_is_not_late(answered: None) -> None:
    """Nor one between Python's last look for signals and the system call: in both no call of ours is cut short."""

    def take() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)

    taking = threading.Timer(0.2, take)
    taking.start()
    passed = run_window(60.0)
    taking.join()
    assert passed.interrupted is not None
    assert passed.window_s < 50


def test_a_signal_that_only_leaves_a_mark_ends_no_window() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    try:
        signal.raise_signal(signal.SIGALRM)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        passed = run_window(0.3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert (passed.interrupted, came) == (None, [signal.SIGALRM] * 2)
    assert passed.window_s >= 0.3


def test_where_a_part_cannot_end_the_interrupt_is_what_happened(interrupting: None) -> None:
    class Broken(WindowPart):
        def end(self) -> None:
            raise PowerprofError("no counter")

    with pytest.raises(Interrupted):
        run_window(3600.0, Broken())
    with pytest.raises(PowerprofError, match="no counter"):
        run_window(0.0, Broken())


def test_time_asleep_is_a_note_of_every_window(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SuspendedClock(monkeypatch)
    running = OpenWindow()
    clock.sleep(3600.0)
    (note,) = running.end().notes
    assert note.startswith("the host was suspended for 3600.0 s within this window")


def test_signals_wait_from_the_end_of_a_window_that_holds_them() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signals.install()
    try:
        run_window(0.0, hold=True)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            signals.release()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to real-time scheduling")
TELL = "import os; print(os.sched_getscheduler(0))"


def policies() -> list[int]:
    """Of this thread, of a thread that it starts, and of a program that it starts."""
    found = [os.sched_getscheduler(0)]
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return [*found, int(subprocess.run([sys.executable, "-c", TELL], capture_output=True, check=True).stdout)]


@ROOT
def test_only_the_thread_that_waits_is_run_at_once_and_only_meanwhile() -> None:
    before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    with realtime_scheduling():
        assert policies() == [os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.SCHED_OTHER, os.SCHED_OTHER]
        with realtime_scheduling():
            pass
        assert policies()[0] == os.SCHED_RR | os.SCHED_RESET_ON_FORK
    assert policies() == [os.SCHED_OTHER] * 3
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before


def test_it_ends_with_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), realtime_scheduling():
        _ = 1 / 0
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_that_was_chosen_stays() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with realtime_scheduling():
            assert os.sched_getscheduler(0) == os.SCHED_BATCH
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_without_the_right_to_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with realtime_scheduling():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


_GIVEN_UP = """
import os
from powerprof.measure.window import realtime_scheduling
with realtime_scheduling():
    inside = os.sched_getscheduler(0)
    os.setresuid(65534, 65534, 65534)
print(inside & ~os.SCHED_RESET_ON_FORK, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
"""


@ROOT
def test_it_ends_for_who_has_given_up_root_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", _GIVEN_UP], capture_output=True, check=True, encoding="utf-8")
    assert done.stdout.split() == [str(os.SCHED_RR), str(os.SCHED_OTHER)]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("monotonic 86400 250000000\nboottime 7 8\n", 86_400_250_000_000),
        ("boottime 7 8\nmonotonic -3 0\n", -3 * 10**9),
        ("boottime 7 8\n", 0),
        ("", 0),
    ],
)
def test_the_offset_of_a_time_namespace(text: str, ns: int) -> None:
    assert parse_timens_offset(text) == ns


@pytest.mark.parametrize(
    ("name", "description", "polls"),
    [
        ("POLL", "CPUIDLE CORE POLL IDLE", True),
        ("state0", "CPUIDLE CORE POLL IDLE", True),
        ("snooze", "snooze", True),
        ("haltpoll", "haltpoll idle", False),
        ("haltpoll idle", "default architecture idle", False),
        ("C1", "MWAIT 0x00", False),
        ("C1", "", False),
    ],
)
def test_only_a_busy_loop_is_a_polling_state(name: str, description: str, polls: bool) -> None:
    assert is_polling(name, description) is polls


def test_rejected_entries_are_idle_exits() -> None:
    states = (StateInfo("POLL", True), StateInfo("C1", False))
    none = (None, None)
    assert CpuReading(0, 0, states, (0, 5), (3, 11), none, none, (2, None)).entries_count == 16
    assert CpuReading(0, 0, states, (0, 5), (3, 11), none, none, none).entries_count == 14


def test_a_group_is_measured_from_the_beginning_of_the_window(tmp_path: Path) -> None:
    usage = tmp_path / "cpu.stat"
    usage.write_text("usage_usec 7300\nuser_usec 1\n")
    clock = GroupCpuClock(tmp_path)
    clock.begin()
    usage.write_text("usage_usec 9900\nuser_usec 2\n")
    clock.end()
    assert clock.used_ns == 2_600_000
