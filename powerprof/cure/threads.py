# SPDX-License-Identifier: Apache-2.0
"""The process and thread of a cure: which are meant, who may change them, and timer slack that stays."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from powerprof.attribution.requests import complete_thread_names
from powerprof.database.local_login import read_local_thread_names
from powerprof.diagnosis.cpu_times import read_cpu_times
from powerprof.model.attribution import Thread
from powerprof.model.text import Say, number
from powerprof.reversible.timer_slack import read_start_ticks
from powerprof.system import files, paths
from powerprof.system.caller import caller, is_delegated
from powerprof.system.errors import CapabilityError, SeveralThreadsError, UsageError
from powerprof.system.foreign_text import printable, whole
from powerprof.system.processes import label_of, language_of, name_of, owner_of
from powerprof.system.reader_process import shared
from powerprof.system.server_names import is_mysql_program
from powerprof.system.targets import Target, resolve_server
from powerprof.system.tasks import list_threads, look_up, read_switches

_MAX_KNOWN = 4
_MAX_NAMES = 12
_CAP_SYS_NICE = 23  # linux/capability.h
# epoll_wait, epoll_pwait and epoll_pwait2 (asm-generic/unistd.h and syscall_64.tbl).
_EPOLL = {"x86_64": ("232", "281", "441"), "aarch64": ("22", "441")}
_REAL_TIME = {os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR", 6: "SCHED_DEADLINE"}


def find_target(pid: str | None, choice: object, *, only: bool = False, say: Say = lambda text: None) -> Target:
    """Return the server of a cure; if it is a family and a thread is chosen, the process of that thread.

    Raise UsageError, PowerprofError.
    """
    target = resolve_server(pid, only, say)
    if len(target.pids) == 1 or not isinstance(choice, SlackChoice):
        return target
    names = read_local_thread_names(target.first)
    matches, reasons = list[int](), list[UsageError]()
    for member in target.pids:
        try:
            find_thread(member, choice.thread, names)
            matches.append(member)
        except UsageError as error:
            reasons.append(error)
    if len(matches) == 1:
        return replace(target, pids=(matches[0],), roots=())
    thread = printable(choice.thread)[:60]
    if matches:
        listed = ", ".join(f"{member} ({names.get(member) or name_of(member)})" for member in matches[:_MAX_NAMES])
        raise UsageError(
            f"{len(matches)} processes of {target.label} have a thread {thread!r}", f"choose one: {listed}"
        )
    listed = ", ".join(sorted({names.get(member) or f"process {member}" for member in target.pids})[:_MAX_NAMES])
    raise UsageError(f"no process of {target.label} ({target.first}) has the thread {thread!r}", f"it has {listed}")


def check_owner(pid: int) -> None:
    """Raise UsageError if the caller of sudo may not change this process.

    Under sudo root changes the caller's own processes and services of system accounts, but not processes of root or of
    other persons.
    """
    if not is_delegated():
        return
    words = files.read_fields(paths.procfs() / str(pid) / "status").get("Uid", "").split()
    uids = {uid for word in words if (uid := whole(word)) is not None}
    if uids == {caller().uid}:
        return
    reason = "runs as root" if not uids or 0 in uids else owner_of(pid, any_service=True).distrust
    if reason is not None:
        raise UsageError(
            f"process {pid} {reason}: under sudo, cure changes only processes of the caller and of system accounts",
            "run as root itself",
        )


def find_thread(pid: int, word: str, server_names: Mapping[int, str]) -> Thread:
    """Return the thread of a process with that number, or with that name at the kernel or the server.

    A part of a name is enough if only one thread has it. Raise UsageError.
    """
    threads = [
        Thread(tid=tid, comm=look_up(tid, pid).comm, server_name=server_names.get(tid), pid=pid)
        for tid in list_threads(pid)
    ]
    tid = whole(word)
    if tid is not None:
        matches = [thread for thread in threads if thread.tid == tid]
    else:
        matches = [thread for thread in threads if word in _names_of(thread)]
        matches = matches or [thread for thread in threads if any(word in name for name in _names_of(thread))]
    if len(matches) == 1:
        return matches[0]
    word = printable(word)[:60]
    if not matches:
        known = sorted({f"{printable(thread.label)[:30]} ({thread.tid})" for thread in threads})
        more = f" and {len(known) - _MAX_KNOWN} more" if len(known) > _MAX_KNOWN else ""
        raise UsageError(
            f"process {pid} has no thread {word!r}",
            f"its threads: {', '.join(known[:_MAX_KNOWN])}{more}; ps -L -o tid,comm -p {pid} lists all",
        )
    raise SeveralThreadsError(f"{len(matches)} threads have the name {word!r}", _describe_threads(pid, matches))


def _describe_threads(pid: int, threads: Sequence[Thread]) -> list[str]:
    """Return one line per thread for a choice: id, name, start function, CPU time and mean rate since its start."""
    from powerprof.stacks.thread_starts import read_thread_starts

    starts, switches, times = read_thread_starts(pid), read_switches(pid), read_cpu_times([pid])
    ticks_hz, now_s = os.sysconf("SC_CLK_TCK"), time.clock_gettime(time.CLOCK_BOOTTIME)
    lines = []
    for thread in sorted(threads, key=lambda thread: -switches.get(thread.tid, 0))[:_MAX_NAMES]:
        started = read_start_ticks(thread.tid)
        age_s = None if started is None else now_s - started / ticks_hz
        cpu_ns = None if times is None else times.threads_ns.get(thread.tid)
        wakings = switches.get(thread.tid)
        rate = "unknown" if wakings is None or not age_s else f"{number(wakings / age_s, 1)}/s"
        cpu = "unknown" if cpu_ns is None else f"{number(cpu_ns / 1e9, 2)} s"
        function = starts[thread.tid].function if thread.tid in starts else "start function unknown"
        function = "main" if thread.tid == pid else function
        lines.append(f"  {thread.tid}  {thread.label}  {function}  wakes {rate}  CPU {cpu}")
    if len(threads) > len(lines):
        lines.append(f"  and {len(threads) - len(lines)} more")
    own = look_up(pid, pid).comm
    nameless = [each for each in threads if each.server_name is None and each.comm == own and each.tid != pid]
    if nameless and is_mysql_program(label_of(pid)):
        lines.append(
            f"  {len(nameless)} without a name of the server: performance_schema is off or refuses this login, and "
            "the build is stripped"
        )
    return lines


def read_thread_names(pid: int, names: Mapping[int, str] | None = None) -> Mapping[int, str]:
    """Return the server's thread names (`names`, or by its own socket), else those of their start functions."""
    return complete_thread_names([pid], dict(read_local_thread_names(pid) if names is None else names))[0]


def _names_of(thread: Thread) -> tuple[str, ...]:
    full = thread.server_name or ""
    last = full.rpartition("/")[2]
    return tuple(name for name in (thread.comm, full, thread.label if full else "", last) if name)


def check_slack(pid: int, thread: Thread) -> None:
    """Raise UsageError if slack is unsuitable for the thread, and CapabilityError if this process may not set it."""
    runtime = language_of(pid)
    if runtime is not None:
        raise UsageError(
            f"process {pid} is a program of {runtime}. Its timers share a few threads: "
            "slack would delay those of the application",
            "change the timers in the application",
        )
    try:
        policy = os.sched_getscheduler(thread.tid) & 0xFFFF
    except OSError:
        policy = None
    if policy in _REAL_TIME:
        raise UsageError(
            f"thread {thread.tid} ({thread.label}) runs in real time ({_REAL_TIME[policy]}), so it has no timer slack",
            "choose another thread",
        )
    from powerprof.host.kernel_probes import effective_capabilities

    if not effective_capabilities() >> _CAP_SYS_NICE & 1:
        raise CapabilityError("timer slack of another process needs CAP_SYS_NICE", "run as root")


def loop_warning(pid: int, thread: Thread) -> str:
    """Return a warning that slack delays all timers of the program; empty unless the thread is an event loop.

    An event loop sleeps in epoll_wait until the next timer of its program.
    """
    words = (shared().proc_file(pid, f"task/{thread.tid}/syscall", 256) or b"").decode().split()
    if not words or words[0] not in _EPOLL.get(platform.machine(), ()):
        return ""
    return (
        f"{thread.label} ({thread.tid}) is an event loop: this delays every timer of its program, including "
        f"timers of clients"
    )


class SlackChoice(msgspec.Struct, frozen=True):
    """A timer slack for the thread with this name or number."""

    thread: str
    slack_ns: int
