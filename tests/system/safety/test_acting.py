# SPDX-License-Identifier: Apache-2.0
"""Acting as another account ends, whatever breaks it off."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from types import FrameType

import pytest

from powerprof.system.acting import acting_as
from powerprof.system.caller import account_of
from tests.system.safety.conftest import UID, Attacker


class _Broken(BaseException):
    """What a signal raises."""


def _acting() -> tuple[int, int, list[int]]:
    libc = ctypes.CDLL(None)
    return libc.setfsuid(-1), libc.setfsgid(-1), os.getgroups()


def test_a_signal_at_any_instant_leaves_nothing_of_it(root: None) -> None:
    """It would leave root without the right to end and remove what it started."""
    account = account_of(UID)
    assert account is not None
    before = _acting()

    def handler(number: int, frame: FrameType | None) -> None:
        raise _Broken

    broken = 0
    kept = signal.signal(signal.SIGALRM, handler)
    # Python drops what is raised while it runs the callbacks of other tests' garbage.
    gc.collect()
    gc.disable()
    try:
        for step in range(2000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + step % 200 * 1e-6)
                with acting_as(account):
                    os.getpid()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except _Broken:
                broken += 1
            assert _acting() == before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)
        gc.enable()
    assert broken > 50
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_it_may_do_what_the_account_may_and_no_more(attacker: Attacker) -> None:
    account = account_of(UID)
    assert account is not None
    with acting_as(account):
        with pytest.raises(PermissionError):
            attacker.secret.read_text()
        with pytest.raises(PermissionError):
            (attacker.secret.parent.parent / "made").touch()
        (attacker.home / "made").touch()
    assert (attacker.home / "made").stat().st_uid == UID
    assert attacker.secret.read_text() == "of root\n"
