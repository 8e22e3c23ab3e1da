# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM and SIGHUP as an exception, and the periods in which they wait.

The first signal raises `Interrupted` in the main thread. From then on, and from `hold` on, signals are only recorded
until `release`: neither the clean-up nor the saving is interrupted. A signal never interrupts an import. A
half-imported numpy would stay in sys.modules, and the saving that follows would fail.
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

import msgspec

from powerprof.system.errors import HungUp, Interrupted

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RETRY_S = 0.01


class _SignalState(msgspec.Struct):
    """The state of signal handling in this process.

    Attributes:
        is_installed: the handler of this module is set.
        is_waiting: signals are recorded and not raised.
        raised: number of the signal that was raised and started the waiting, if one did.
        arrived: number of the last signal that was recorded.
    """

    is_installed: bool = False
    is_waiting: bool = False
    raised: int | None = None
    arrived: int | None = None

    def start_waiting(self, raised: int | None = None) -> None:
        """Record signals from now on. A signal that arrives within this method is raised or recorded, never lost."""
        self.arrived, self.raised = None, raised
        self.is_waiting = True


_state = _SignalState()


def _make_error(number: int | None, hint: str | None = None) -> Interrupted:
    return HungUp("hung up", hint) if number == signal.SIGHUP else Interrupted("interrupted", hint)


def _is_unsafe_to_raise(frame: FrameType | None) -> bool:
    """Return whether the frame is in an import, or in the hook through which Python drops exceptions."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code is _retry_dropped.__code__:
            return True
        frame = frame.f_back
    return False


def _handle(number: int, frame: FrameType | None) -> None:
    if _state.is_waiting:
        _state.arrived = number
    elif _is_unsafe_to_raise(frame):
        _call_when_safe(lambda: signal.raise_signal(number))  # signals may be waiting by then
    else:
        _state.start_waiting(raised=number)
        raise _make_error(number)


def _call_when_safe(action: Callable[[], None]) -> None:
    """Call `action` from a timer as soon as an exception may be raised."""

    def retry(_number: int, frame: FrameType | None) -> None:
        if not _is_unsafe_to_raise(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            action()

    signal.signal(signal.SIGALRM, retry)
    signal.setitimer(signal.ITIMER_REAL, _RETRY_S, _RETRY_S)


def _retry_dropped(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt again that Python dropped in a destructor or in a callback from C."""
    if isinstance(unraisable.exc_value, Interrupted):
        number = signal.SIGHUP if isinstance(unraisable.exc_value, HungUp) else signal.SIGINT
        _call_when_safe(lambda: _raise_again(number))
    else:
        sys.__unraisablehook__(unraisable)


def _raise_again(number: int) -> None:
    # The signal itself would only be recorded: signals have been waiting since it was raised.
    if not _state.is_waiting:
        _state.start_waiting(raised=number)
    raise _make_error(number)


def install() -> None:
    """Raise Interrupted in the main thread at the first SIGINT, SIGTERM or SIGHUP. Call it in the main thread."""
    _state.is_waiting = False
    _state.is_installed = True
    for number in _NUMBERS:
        # nohup starts programs with SIGHUP ignored; that stays.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _handle)
    sys.unraisablehook = _retry_dropped


@cache
def _pipe() -> tuple[int, int]:
    # Stays open: after a close, the byte of a signal would reach the next file with that number.
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def wakeup_descriptor() -> int | None:
    """Return a descriptor that each signal makes readable from now on; the waiting caller empties it.

    Python runs handlers between its own instructions. A signal that arrives between the last instruction and the
    system call, or in another thread, does not end the call, and would be handled only after the wait.

    Returns:
        None in other threads than the main one, and if no descriptor is left.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        descriptor, written = _pipe()
    except OSError:
        return None
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    return descriptor


def _forget_pipe() -> None:
    # The pipe belongs to the parent process, and the child may reuse its numbers.
    signal.set_wakeup_fd(-1)
    _pipe.cache_clear()


os.register_at_fork(after_in_child=_forget_pipe)


def hold() -> None:
    """Let signals wait until `release`, so that the results are completed and saved.

    Does nothing without `install`, and after the first signal.
    """
    if _state.is_installed and not _state.is_waiting:
        _state.start_waiting()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals wait until the block ends. If they wait already, they wait after it, too."""
    if _state.is_waiting:
        yield
        return
    hold()
    try:
        yield
    finally:
        release()


def interruption(hint: str | None = None) -> Interrupted:
    """Return the error of an interrupted command: HungUp after SIGHUP, else Interrupted."""
    return _make_error((_state.raised or _state.arrived) if _state.is_waiting else None, hint)


def has_arrived() -> bool:
    """Return whether a signal was raised or is waiting."""
    return _state.is_waiting and (_state.raised or _state.arrived) is not None


def ignore() -> None:
    """Ignore all signals from now on, including those to be raised again."""
    # The interpreter restores the default handler of SIGALRM at exit; the timer would then kill this process.
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)
    _state.is_installed = _state.is_waiting = False


def release() -> None:
    """Let signals raise again. Raise Interrupted if one arrived since `hold`, or since the one that was raised."""
    if _state.is_waiting:
        install()
        if _state.arrived is not None:
            raise _make_error(_state.arrived)
