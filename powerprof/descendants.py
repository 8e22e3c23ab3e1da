# SPDX-License-Identifier: Apache-2.0
"""Whom a started command leaves behind: its descendants, in whatever session or group they put themselves.

While this process is a subreaper (prctl(2)) the kernel makes every orphan of its descendants its child, so that all of
them are found from here. Each is signalled through a pidfd: a number may be anybody's once its process was waited for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
_LOOK_EVERY_S = 0.02
_KILLING_S = 5.0


def adopt_orphans(yes: bool) -> None:
    """From now on orphans of our descendants become our children, or those of init again."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def end(own: Callable[[], Collection[int]], patience_s: float) -> bool:
    """End every descendant but the children of `own` and theirs; True where one was running.

    Asked by SIGTERM first, killed where they have not ended in time. A child of ours that has ended is waited for.
    """
    found = False
    asked: set[int] = set()
    kill_s = time.monotonic() + patience_s
    while left := list(_strangers(own())):
        found = True
        now_s = time.monotonic()
        if now_s > kill_s + _KILLING_S:  # asleep in the kernel, or of an account that we may not signal
            break
        for pid, parent in left:
            if now_s >= kill_s:
                _signal(pid, parent, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                _signal(pid, parent, signal.SIGTERM)
        time.sleep(_LOOK_EVERY_S)
    return found


def _strangers(own: Collection[int]) -> Iterator[tuple[int, int]]:
    """(pid, parent) of each descendant that runs, but for children in `own`."""
    me = os.getpid()
    left = [(pid, me) for pid in _children(me) if pid not in own and not _bury(pid)]
    while left:
        pid, parent = left.pop()
        yield pid, parent
        left += [(child, pid) for child in _children(pid) if not _has_ended(child)]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError):
                found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def _bury(pid: int) -> bool:
    """Wait for a child of ours that has ended; whether it had."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _status(pid: int) -> tuple[str, int]:
    """State and parent of a process; ("X", 0) for one that is gone."""
    try:
        words = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return words[0].decode(), int(words[1])
    except (OSError, ValueError, IndexError):
        return "X", 0


def _has_ended(pid: int) -> bool:
    return _status(pid)[0] in "ZX"


def _signal(pid: int, parent: int, number: int) -> None:
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            # Opened, the number stays its: it is looked at again whether it is the process that was meant.
            if _status(pid)[1] == parent:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
