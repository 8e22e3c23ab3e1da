"""SIGINT and SIGTERM as an exception, and the stretch in which they have to wait.

The state is the process's own: which handler is set. The first signal raises `Interrupted`; from then on, and
from `hold` on, signals only leave a mark, so that nothing breaks the clean-up or the saving, until `release`.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

from powerprof.errors import Interrupted

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.01


class _Waiting:
    """A handler that only remembers."""

    def __init__(self) -> None:
        self.arrived = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True


def _wait() -> None:
    waiting = _Waiting()
    for number in _NUMBERS:
        signal.signal(number, waiting)


def _raise(number: int, frame: FrameType | None) -> None:
    _wait()
    raise Interrupted("interrupted")


def _dropped(unraisable: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a destructor or in a callback from C. A dropped interrupt comes again."""
    if isinstance(unraisable.exc_value, Interrupted):
        signal.signal(signal.SIGALRM, _raise)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(unraisable)


def install() -> None:
    """The first SIGINT or SIGTERM raises Interrupted in the main thread. To be called there."""
    for number in _NUMBERS:
        signal.signal(number, _raise)
    sys.unraisablehook = _dropped


def hold() -> None:
    """From here to `release` a signal waits: what was measured is put together and saved.

    Does nothing where `install` was not called, or a signal has come already.
    """
    if signal.getsignal(signal.SIGTERM) is _raise:
        _wait()


def ignore() -> None:
    """Everything is done: signals mean nothing any more."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def release() -> None:
    """Signals raise again. Raises Interrupted where one has come since `hold`, or since the one that was raised."""
    waiting = signal.getsignal(signal.SIGTERM)
    if isinstance(waiting, _Waiting):
        install()
        if waiting.arrived:
            raise Interrupted("interrupted")
