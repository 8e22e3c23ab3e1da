# SPDX-License-Identifier: Apache-2.0
"""The early end of a window: drawn targets that end, stop, change or go on at drawn moments."""

from __future__ import annotations

import os
import platform
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from powerprof.measure.target_life import TargetEndedError, TargetLife
from powerprof.measure.window import PassedWindow, WindowPart, run_window
from powerprof.model.records import Ended, ended_by_signal
from powerprof.system import signals
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.targets import Target
from powerprof.system.tasks import has_ended

LENGTH_S = 0.5
# Longer than a loaded host takes to see an event.
PATIENCE_S = 30.0
_EXIT = {"x86_64": 60, "aarch64": 93}
# The first thread ends, and the process lives on in another one; or it executes another program.
_PROGRAM = f"""
import ctypes, os, signal, sys, threading, time
libc = ctypes.CDLL(None)
signal.signal(signal.SIGUSR1, lambda *_: libc.syscall({_EXIT.get(platform.machine(), 60)}, 0))
signal.signal(signal.SIGUSR2, lambda *_: os.execv("/bin/sleep", ["sleep", "60"]))
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
for _ in range(int(sys.argv[1])):
    if not os.fork():
        time.sleep(60)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
# The event, the signal that causes it, and what ends the window.
EVENTS: dict[str, tuple[int, str | None]] = {
    "killed": (signal.SIGKILL, "target_ended"),
    "terminated": (signal.SIGTERM, "target_ended"),
    "stopped": (signal.SIGSTOP, "target_stopped"),
    "another program": (signal.SIGUSR2, "target_replaced"),
    "only its first thread ends": (signal.SIGUSR1, None),
    "goes on": (0, None),
}
WORDS = {"target_ended": "ended", "target_stopped": "was stopped by", "target_replaced": "another program, sleep"}


@contextmanager
def running(children: int = 0) -> Iterator[int]:
    """A program in a process group of its own, with children of the same program; its parent reaps nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(children)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    try:
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


class Edges(WindowPart):
    """The moments at which a part of a window begins and ends."""

    def begin(self) -> None:
        self.began_s = time.monotonic()

    def end(self) -> None:
        self.ended_s = time.monotonic()


class Happening(Edges):
    """Something that happens `at_s` seconds after this part of a window began, on a busy host after its end.

    `has_happened`: whether it is to be seen when the part ends.
    """

    def __init__(self, at_s: float, act: Callable[[], object], is_visible: Callable[[], bool] = lambda: True) -> None:
        self._act, self._is_visible, self.timer = act, is_visible, threading.Timer(at_s, self._happen)
        self.happened_s, self.has_happened = 0.0, False

    def _happen(self) -> None:
        self.happened_s = time.monotonic()
        self._act()

    def begin(self) -> None:
        super().begin()
        self.timer.start()

    def end(self) -> None:
        self.has_happened = self._is_visible()
        super().end()


def is_changed(pid: int) -> bool:
    """Whether a process has ended, is stopped, or executes another program."""
    if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZTX":
        return True
    return Path(f"/proc/{pid}/exe").readlink().name == "sleep"


def run_with(target: Target, happening: Happening, *first: WindowPart, look_s: float, length_s: float) -> PassedWindow:
    """Run a window of the target in which something happens."""
    with TargetLife(target, look_s) as life:
        try:
            return run_window(length_s, *first, life, happening)
        finally:
            if happening.timer.ident is not None:
                happening.timer.join()


def measure(
    target: Target, at_s: float, act: Callable[[], object], look_s: float = 0.05, length_s: float = LENGTH_S
) -> PassedWindow:
    """Run a window of the target in which something happens."""
    return run_with(target, Happening(at_s, act), look_s=look_s, length_s=length_s)


def draw_cases(seed: int, count: int) -> Iterator[tuple[str, str, float]]:
    """Draw kinds of targets, events and moments: the first tenth, the middle and the last tenth."""
    draw = random.Random(seed)
    for _ in range(count):
        kind = draw.choice(["one", "family", "two", "second of two"])
        low = draw.choice([0.0, 0.45, 0.9])
        yield kind, draw.choice(list(EVENTS)), (low + 0.1 * draw.random()) * LENGTH_S


@pytest.mark.parametrize("seed", range(4))
def test_a_window_ends_with_its_target_and_lasts_as_long_as_it_lived(seed: int) -> None:
    for kind, event, at_s in draw_cases(seed, 6):
        number, how = EVENTS[event]
        with running(children=2 * (kind == "family")) as first, running() as second:
            two = "two" in kind
            target = Target((first, second) if two else (first,), "program", roots=(first, second)[: 1 + two])
            victim = second if kind == "second of two" else first
            outer, inner = Edges(), Happening(at_s, partial(os.kill, victim, number), partial(is_changed, victim))
            passed = run_with(target, inner, outer, look_s=0.05, length_s=LENGTH_S)
        what = f"{kind}, {event}, {at_s:.2f} s"
        if how is None:
            assert (passed.ended, passed.window_s >= LENGTH_S) == (None, True), what
            continue
        if not inner.has_happened:
            continue  # The host was late.
        assert passed.ended is not None and passed.ended.after_s is not None, what
        assert (passed.ended.how, passed.ended.pid) == (how, victim), what
        assert WORDS[how] in passed.ended.why and f"({victim})" in passed.ended.why, what
        assert inner.happened_s - inner.began_s <= passed.ended.after_s <= outer.ended_s - outer.began_s, what
        assert passed.window_s == pytest.approx(passed.ended.after_s, abs=0.1), what
        assert passed.interrupted is None, what


@pytest.mark.parametrize("event", [event for event, (_, how) in EVENTS.items() if how is not None])
def test_a_long_window_does_not_wait_for_its_end(event: str) -> None:
    with running() as pid:
        passed = measure(Target((pid,), "x"), 0.0, lambda: os.kill(pid, EVENTS[event][0]), length_s=PATIENCE_S)
    assert passed.ended is not None and passed.window_s < PATIENCE_S


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    with running() as pid:
        passed = measure(Target((pid,), "x"), 0.1, lambda: os.kill(pid, signal.SIGKILL), look_s=60.0)
        assert has_ended(pid) and Path(f"/proc/{pid}").exists()  # not reaped
        assert passed.ended is not None and passed.window_s < LENGTH_S
        for pids in ((pid,), (os.getpid(), pid)):
            with pytest.raises(TargetEndedError, match=rf"\({pid}\) ended before the window began"):
                measure(Target(pids, "x"), 0.0, lambda: None)


def test_the_children_of_a_family_come_and_go() -> None:
    with running(children=2) as pid:
        child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        passed = measure(Target((pid, child), "x", roots=(pid,)), 0.1, lambda: os.kill(child, signal.SIGKILL))
    assert passed.ended is None


def test_a_control_group_ends_with_its_last_process(tmp_path: Path) -> None:
    """A folder without cgroup.events, as in version 1."""
    with running() as first, running() as second:
        procs = tmp_path / "cgroup.procs"
        procs.write_text(f"{first}\n{second}\n")
        target = Target((first, second), "group", cgroup=tmp_path)

        def leave(*left: int) -> None:
            procs.write_text("".join(f"{pid}\n" for pid in left))

        assert measure(target, 0.1, lambda: leave(second)).ended is None
        stopped = measure(target, 0.1, lambda: os.kill(second, signal.SIGSTOP)).ended
        assert stopped is not None and (stopped.how, stopped.pid) == ("target_stopped", second)
        os.kill(second, signal.SIGCONT)
        ended = measure(target, 0.1, leave).ended
        assert ended is not None and (ended.how, ended.why) == ("target_ended", "group has no processes any more")


def test_the_whole_system_never_ends() -> None:
    assert measure(Target((), "this system", system=True), 0.0, lambda: None).ended is None


def test_a_signal_to_powerprof_is_its_own_reason() -> None:
    """It may have ended the target too."""
    signals.install()
    try:
        with running() as pid:

            def interrupt() -> None:
                os.kill(pid, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGTERM)

            passed = measure(Target((pid,), "x"), 0.1, interrupt)
    finally:
        signals.release()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if passed.interrupted is not None:
        assert passed.ended == ended_by_signal(True)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PowerprofError("SELECT failed (the server closed the connection)"), r"^python\S* \(\d+\) ended$"),
        (UsageError("no such option"), "^no such option$"),
    ],
)
def test_the_end_of_the_target_explains_other_errors(error: PowerprofError, message: str) -> None:
    with running() as pid, pytest.raises(PowerprofError, match=message), TargetLife(Target((pid,), "x")):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        raise error


def test_an_error_about_a_living_target_stays() -> None:
    with pytest.raises(PowerprofError, match=r"^no room$"), TargetLife(Target((os.getpid(),), "x")):
        raise PowerprofError("no room")


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (Ended("target_ended", "mysqld (7) ended", 2.08, 7), "mysqld (7) ended 2.1 s after the window began"),
        (Ended("target_ended", "mysqld (7) ended", 0.04, 7), "mysqld (7) ended 0.04 s after the window began"),
        (Ended("target_stopped", "x was stopped", 3.0), "x was stopped at the latest 3.0 s after the window began"),
        (Ended("target_ended", "mysqld (7) ended"), "mysqld (7) ended"),
        (Ended("failed", "no room"), "no room"),
    ],
)
def test_message_of_an_early_end(ended: Ended, message: str) -> None:
    assert (ended.message, ended.is_of_target) == (message, ended.how != "failed")


def test_nothing_stays_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with TargetLife(Target((os.getpid(), os.getppid()), "x")):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
