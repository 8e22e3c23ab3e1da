# SPDX-License-Identifier: Apache-2.0
"""Work in a fork: its parts survive its end, and its memory is separate."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from powerprof.system import fork
from powerprof.system.errors import Interrupted
from powerprof.system.fork import SendPart, run_in_fork


@pytest.fixture
def _no_new_child() -> Iterator[None]:
    """Check that the test leaves no child. The tests' browser may be a child of this process too."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def test_parts_are_returned_complete_and_in_order() -> None:
    parts = [b"", b"first", bytes(300_000), b"last"]

    def work(send: SendPart) -> None:
        for part in parts:
            send(part)

    result = run_in_fork(work, 30.0)
    assert (result.parts, result.ended) == (parts, True)


@pytest.mark.usefixtures("_no_new_child")
@pytest.mark.parametrize("ending", [signal.SIGKILL, None])
def test_parts_before_a_crash_are_returned(ending: int | None) -> None:
    def work(send: SendPart) -> None:
        send(b"so far")
        if ending is None:
            raise ValueError("not shown")
        os.kill(os.getpid(), ending)

    result = run_in_fork(work, 30.0)
    assert (result.parts, result.ended) == ([b"so far"], False)


@pytest.mark.usefixtures("_no_new_child")
def test_fork_is_killed_after_the_timeout() -> None:
    def work(send: SendPart) -> None:
        send(b"so far")
        time.sleep(600)

    began_s = time.monotonic()
    result = run_in_fork(work, 0.3)
    assert (result.parts, result.ended) == ([b"so far"], False)
    assert time.monotonic() - began_s < 60


@pytest.mark.usefixtures("_no_new_child")
def test_interrupt_kills_the_fork() -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted("interrupted")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Interrupted):
            run_in_fork(lambda _: time.sleep(600), 600.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_cpu_time_is_that_of_user_and_system() -> None:
    """Reads of /dev/zero need system time, and additions user time. The kernel counts both for the child."""

    def work(send: SendPart) -> None:
        end_s = time.process_time() + 0.15
        with Path("/dev/zero").open("rb", buffering=0) as zeros:
            while time.process_time() < end_s:
                zeros.read(1 << 20)
        times = os.times()
        send(f"{times.user} {times.system}".encode())

    result = run_in_fork(work, 60.0)
    user_s, system_s = map(float, result.parts[0].split())
    assert system_s > 0.05
    assert result.cpu_s >= user_s + system_s - 0.02


def test_a_part_that_is_cut_is_left_out() -> None:
    handle = os.memfd_create("parts")
    try:
        os.write(handle, b"\x03\0\0\0one\0\0\0\0\x05\0\0\0cut")
        assert fork._read_parts(handle) == [b"one", b""]
        os.truncate(handle, 9)
        assert fork._read_parts(handle) == [b"one"]
    finally:
        os.close(handle)
