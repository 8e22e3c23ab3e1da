# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM and SIGHUP as an exception, and the stretch in which they have to wait.

The state is the process's own: which handler is set. The first signal raises `Interrupted`; from then on, and
from `hold` on, signals only leave a mark, so that nothing breaks the clean-up or the saving, until `release`.
None breaks an import: half of numpy stays in sys.modules, and the saving that follows fails on it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType

from powerprof.system.errors import HungUp, Interrupted

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 0.01


class _Waiting:
    """A handler that only remembers: `first` is the signal that has been raised, `arrived` one that came since."""

    def __init__(self, first: int | None = None) -> None:
        self.first = first
        self.arrived: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.arrived = number


def _set(handler: _Waiting | Callable[[int, FrameType | None], None]) -> None:
    for number in _NUMBERS:
        # Who started us by nohup wants a hang-up to mean nothing.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _error(number: int | None, hint: str | None = None) -> Interrupted:
    return HungUp("hung up", hint) if number == signal.SIGHUP else Interrupted("interrupted", hint)


def _must_wait(frame: FrameType | None) -> bool:
    """In an import, and where Python would drop once more what is raised."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code is _dropped.__code__:
            return True
        frame = frame.f_back
    return False


def _raise(number: int, frame: FrameType | None) -> None:
    if _must_wait(frame):
        # The same signal again: by then its handler may be one that waits.
        _soon(lambda: signal.raise_signal(number))
        return
    _set(_Waiting(number))
    raise _error(number)


def _soon(act: Callable[[], None]) -> None:
    """Every moment it is looked whether it may be done now; then that ends."""

    def look(_number: int, frame: FrameType | None) -> None:
        if not _must_wait(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            act()

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)


def _dropped(unraisable: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a destructor or in a callback from C. A dropped interrupt comes again."""
    if isinstance(unraisable.exc_value, Interrupted):
        number = signal.SIGHUP if isinstance(unraisable.exc_value, HungUp) else signal.SIGINT
        _soon(lambda: _raise_again(number))
    else:
        sys.__unraisablehook__(unraisable)


def _raise_again(number: int) -> None:
    """What was dropped. Its signal's handler only waits since: it is not asked."""
    if not isinstance(signal.getsignal(signal.SIGTERM), _Waiting):
        _set(_Waiting(number))
    raise _error(number)


def install() -> None:
    """The first SIGINT, SIGTERM or SIGHUP raises Interrupted in the main thread. To be called there."""
    _set(_raise)
    sys.unraisablehook = _dropped


@cache
def _pipe() -> tuple[int, int]:
    # Never closed: a signal's byte would go to whatever has the number then.
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def heard() -> int | None:
    """A descriptor that each signal makes readable, from now on, for a wait that none may miss: whoever waits empties
    it. None in other threads than the first, and where no descriptor is left.

    Python runs handlers between its own instructions. A signal that comes after the last of them and before the system
    call, or is delivered to another thread, does not end the call: it would be answered when the wait is over.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        descriptor, written = _pipe()
    except OSError:
        return None
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    return descriptor


def _deaf() -> None:
    """In a child: the pipe is its parent's, and the child may give its numbers to something else."""
    signal.set_wakeup_fd(-1)
    _pipe.cache_clear()


os.register_at_fork(after_in_child=_deaf)


def hold() -> None:
    """From here to `release` a signal waits: what was measured is put together and saved.

    Does nothing where `install` was not called, or a signal has come already.
    """
    if signal.getsignal(signal.SIGTERM) is _raise:
        _set(_Waiting())


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a signal wait until the block has ended. If one came before, others wait already."""
    if came():
        yield
        return
    hold()
    try:
        yield
    finally:
        release()


def ended_by(hint: str | None = None) -> Interrupted:
    """The error that what was cut short ends with: HungUp where a hang-up did it."""
    waiting = signal.getsignal(signal.SIGTERM)
    return _error((waiting.first or waiting.arrived) if isinstance(waiting, _Waiting) else None, hint)


def came() -> bool:
    """Whether a signal has been raised, or waits."""
    waiting = signal.getsignal(signal.SIGTERM)
    return isinstance(waiting, _Waiting) and (waiting.first or waiting.arrived) is not None


def ignore() -> None:
    """Everything is done: signals mean nothing any more, and what was to be raised again is not."""
    # The default handler, which the interpreter puts back when it ends, would have the timer kill us.
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def release() -> None:
    """Signals raise again. Raises Interrupted where one has come since `hold`, or since the one that was raised."""
    waiting = signal.getsignal(signal.SIGTERM)
    if isinstance(waiting, _Waiting):
        install()
        if waiting.arrived is not None:
            raise _error(waiting.arrived)
