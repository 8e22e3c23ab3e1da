# SPDX-License-Identifier: Apache-2.0
"""Which thread is meant, and whether its timer slack may be changed at all."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from powerprof.model.attribution import Thread
from powerprof.system import files, paths
from powerprof.system.caller import caller, is_delegated
from powerprof.system.errors import CapabilityError, UsageError
from powerprof.system.files import printable, whole
from powerprof.system.processes import language_of, owner_of
from powerprof.system.tasks import look_up, threads_of

_SHOWN = 12
_CAP_SYS_NICE = 23
# epoll_wait, epoll_pwait and epoll_pwait2 (asm-generic/unistd.h and syscall_64.tbl).
_EPOLL = {"x86_64": ("232", "281", "441"), "aarch64": ("22", "441")}
_REAL_TIME = {os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR", 6: "SCHED_DEADLINE"}


def find_thread(pid: int, word: str, server_names: Mapping[int, str]) -> Thread:
    """The one thread of a process that is called so, by the kernel or by its server, or has that number.

    Of a name a part is enough where it is of one thread alone. Raises UsageError.
    """
    known = [
        Thread(tid=tid, comm=look_up(tid, pid).comm, server_name=server_names.get(tid), pid=pid)
        for tid in threads_of(pid)
    ]
    number = whole(word)
    if number is not None:
        found = [thread for thread in known if thread.tid == number]
    else:
        found = [thread for thread in known if word in _names(thread)]
        found = found or [thread for thread in known if any(word in name for name in _names(thread))]
    if len(found) == 1:
        return found[0]
    if not found:
        names = sorted({thread.label for thread in known})
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UsageError(
            f"process {pid} has no thread {printable(word)[:60]!r}", f"it has {', '.join(names[:_SHOWN])}{more}"
        )
    ids = ", ".join(f"{thread.tid} ({thread.label})" for thread in found[:_SHOWN])
    raise UsageError(f"{len(found)} threads are called {printable(word)[:60]!r}", f"name one by its id: {ids}")


def _names(thread: Thread) -> tuple[str, ...]:
    full = thread.server_name or ""
    last = full.rpartition("/")[2]
    return tuple(name for name in (thread.comm, full, thread.label if full else "", last) if name)


def check_slack(pid: int, thread: Thread) -> None:
    """Raises UsageError where slack means nothing to the thread or more than was asked for; CapabilityError where we
    may not write it."""
    runtime = language_of(pid)
    if runtime is not None:
        raise UsageError(
            f"process {pid} is a program of {runtime}, whose timers all hang on a few threads: "
            "slack would delay the application's own",
            "change what sets those timers, in the application",
        )
    try:
        policy = os.sched_getscheduler(thread.tid) & 0xFFFF
    except OSError:
        policy = None
    if policy in _REAL_TIME:
        raise UsageError(
            f"thread {thread.tid} ({thread.label}) runs in real time ({_REAL_TIME[policy]}): it has no slack",
            "choose another thread",
        )
    if not _has_capability(_CAP_SYS_NICE):
        raise CapabilityError("timer slack of another process needs CAP_SYS_NICE", "run as root")


def loop_warning(pid: int, thread: Thread) -> str:
    """What slack of an event loop's thread delays; empty for a thread that is none.

    An event loop sleeps in epoll_wait until the next of all its program's timers.
    """
    place = paths.procfs() / str(pid) / "task" / str(thread.tid) / "syscall"
    words = (files.try_text(place) or "").split()
    if not words or words[0] not in _EPOLL.get(platform.machine(), ()):
        return ""
    return (
        f"{thread.label} ({thread.tid}) is an event loop: this delays every timer of its program, those of clients too"
    )


def check_owner(pid: int) -> None:
    """Under sudo root changes what is the caller's own, and services of system accounts, not of root and of others.

    Raises UsageError.
    """
    if not is_delegated():
        return
    words = files.read_fields(paths.procfs() / str(pid) / "status").get("Uid", "").split()
    uids = {uid for word in words if (uid := whole(word)) is not None}
    mine = caller().uid
    if uids == {mine}:
        return
    reason = "runs as root" if not uids or 0 in uids else owner_of(pid, any_service=True).distrust
    if reason is not None:
        raise UsageError(
            f"process {pid} {reason}: under sudo root changes processes of the caller and of system accounts",
            "run as root itself",
        )


def _has_capability(number: int) -> bool:
    from powerprof.host.survey import effective_capabilities

    return bool(effective_capabilities() >> number & 1)
