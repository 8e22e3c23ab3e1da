# SPDX-License-Identifier: Apache-2.0
"""Work in a fork: what it hands over counts, whatever becomes of it, and its memory is not ours."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.system.child import SendPart, run_in_fork
from powerprof.system.errors import Interrupted


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def _none_left() -> Iterator[None]:
    """No child that was not there before: the tests' browser is a child of this process as well."""
    before = children()
    yield
    assert children() <= before


def test_parts_come_back_whole_and_in_order() -> None:
    parts = [b"", b"first", bytes(300_000), b"last"]

    def work(say: SendPart) -> None:
        for part in parts:
            say(part)

    done = run_in_fork(work, 30.0)
    assert (done.parts, done.ended) == (parts, True)


def test_what_it_takes_is_gone_with_it_and_told() -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def work(say: SendPart) -> None:
        taken = bytearray(os.urandom(1 << 20) * 200)
        end_s = time.process_time() + 0.2
        while time.process_time() < end_s:
            taken[0] ^= 1
        say(str(len(taken)).encode())

    done = run_in_fork(work, 60.0)
    assert done.parts == [str(200 << 20).encode()]
    assert done.cpu_s >= 0.2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50_000


@pytest.mark.usefixtures("_none_left")
@pytest.mark.parametrize("ending", [signal.SIGKILL, None])
def test_what_was_handed_over_before_it_broke_counts(ending: int | None) -> None:
    def work(say: SendPart) -> None:
        say(b"so far")
        if ending is None:
            raise ValueError("nobody sees this")
        os.kill(os.getpid(), ending)

    done = run_in_fork(work, 30.0)
    assert (done.parts, done.ended) == ([b"so far"], False)


@pytest.mark.usefixtures("_none_left")
def test_one_that_takes_too_long_is_ended() -> None:
    def work(say: SendPart) -> None:
        say(b"so far")
        time.sleep(600)

    began_s = time.monotonic()
    done = run_in_fork(work, 0.3)
    assert (done.parts, done.ended) == ([b"so far"], False)
    assert time.monotonic() - began_s < 60


@pytest.mark.usefixtures("_none_left")
def test_an_interrupt_ends_it_too() -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted("interrupted")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Interrupted):
            run_in_fork(lambda _: time.sleep(600), 600.0)
    finally:
        signal.signal(signal.SIGALRM, before)
