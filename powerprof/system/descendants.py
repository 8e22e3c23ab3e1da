# SPDX-License-Identifier: Apache-2.0
"""Descendants that a started command leaves running, in any session or process group."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from powerprof.system.fork import reap
from powerprof.system.own_processes import own_pids
from powerprof.system.tasks import has_ended, parent_of

if TYPE_CHECKING:
    import psutil

_PR_SET_CHILD_SUBREAPER = 36
_POLL_INTERVAL_S = 0.02
_KILL_PATIENCE_S = 5.0


def adopt_orphans(is_adopting: bool) -> None:
    """Make future orphans of our descendants our children, or those of init again.

    While this process is a subreaper (prctl(2)), all descendants that a started command leaves running are found from
    here, in any session or process group.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_adopting), 0, 0, 0)


class Leftovers(msgspec.Struct, frozen=True):
    """The descendants that a command left: whether one was still running, and the CPU seconds of all."""

    were_running: bool
    cpu_s: float


def end_descendants(list_kept: Callable[[], Collection[int]], patience_s: float) -> Leftovers:
    """End every descendant except the children in `list_kept()`, helpers, and their descendants. Return the cost.

    Each gets SIGTERM, and SIGKILL if it still runs after `patience_s` seconds. Ended children are waited for.
    """
    were_running, cpu_s = False, 0.0
    terminated: set[psutil.Process] = set()
    kill_s = time.monotonic() + patience_s
    while True:
        processes, ended_s = _list_descendants(list_kept())
        cpu_s += ended_s
        if not processes:
            break
        were_running = True
        now_s = time.monotonic()
        if now_s > kill_s + _KILL_PATIENCE_S:  # A process sleeps in the kernel, or we may not signal its account.
            break
        for process in processes:
            if now_s >= kill_s:
                _send_signal(process, signal.SIGKILL)
            elif process not in terminated:
                terminated.add(process)
                _send_signal(process, signal.SIGTERM)
        time.sleep(_POLL_INTERVAL_S)
    return Leftovers(were_running, cpu_s)


def _list_descendants(kept: Collection[int]) -> tuple[list[psutil.Process], float]:
    """Return the running descendants, without the children in `kept` and their descendants.

    Also wait for the children that have ended, and return their CPU seconds.
    """
    import psutil

    processes: list[psutil.Process] = []
    ended_s = 0.0
    children_of = _map_children()
    for child in children_of.get(os.getpid(), []):
        if child in kept or _is_helpers(child):
            continue
        if (ended := reap(child, 0.0)) is not None:
            ended_s += ended[1]
            continue
        family = [child]
        for pid in family:
            family += children_of.get(pid, [])
            with suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(pid))
    return [process for process in processes if not has_ended(process.pid)], ended_s


def _is_helpers(pid: int) -> bool:
    """Return whether a child is powerprof's helper or an orphan of one, such as of a meter's program.

    Helpers run in the session of powerprof or lead their own. A started command has a session of its own.
    """
    try:
        return os.getsid(pid) in {os.getsid(0), *own_pids()}
    except ProcessLookupError:
        return False


def _send_signal(process: psutil.Process, number: int) -> None:
    """Signal a process through a pidfd. psutil's own method could signal a process that reuses the number."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            # The descriptor keeps the process. The creation time shows whether it is still the intended one.
            if process.is_running():
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def list_children() -> set[int]:
    """Return the children of this process."""
    return set(_map_children().get(os.getpid(), []))


def _map_children() -> dict[int, list[int]]:
    """Return the children of each process. psutil reads the stat of each, which an account's exec can stop."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(parent_of(int(name)), []).append(int(name))
    return children
