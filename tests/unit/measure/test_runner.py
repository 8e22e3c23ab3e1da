# SPDX-License-Identifier: Apache-2.0
"""How a window passes: the order of its parts, who is read when, what ends it, and what it says of itself."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from powerprof.measure.window import OpenWindow, WindowPart, run_window, wait_and_read
from powerprof.system import caller, signals
from powerprof.system.errors import Interrupted, PowerprofError
from tests.programs.suspended import SuspendedClock


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
    monkeypatch.setattr(caller, "drop_privileges", lambda *words: log.append(f"settled {words}"))
    passed = run_window(0.0, Noted("a", log), Noted("b", log), settle=True, source="rapl")
    assert log == ["a opens", "b opens", "settled (True, 'rapl')", "a begins", "b begins", "b ends", "a ends"]
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
