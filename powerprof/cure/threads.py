# SPDX-License-Identifier: Apache-2.0
"""The process and thread of a cure: which are meant, who may change them, and timer slack that stays."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from powerprof.attribution.requests import complete_thread_names
from powerprof.database.local_login import read_local_thread_names
from powerprof.diagnosis.collect import read_cpu_times
from powerprof.model.attribution import Thread
from powerprof.model.text import Say, number
from powerprof.reversible.kinds import TimerSlack, read_start_ticks
from powerprof.system import files, paths
from powerprof.system.caller import caller, is_delegated
from powerprof.system.cgroups import service_of
from powerprof.system.errors import CapabilityError, PowerprofError, SeveralThreadsError, UsageError
from powerprof.system.foreign_text import printable, whole
from powerprof.system.language_runtimes import language_of
from powerprof.system.processes import label_of, name_of, owner_of, uids_of
from powerprof.system.reader_process import shared
from powerprof.system.server_names import is_mysql_program
from powerprof.system.targets import Target, may_be_forged, resolve_server
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


# Timer slack that stays: the change itself, and the texts for systemd that repeat it after each start.

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))
_POLL_S = 0.5
_WORD = re.compile(r"[A-Za-z0-9_./:@+-]{1,128}")


class SlackChoice(msgspec.Struct, frozen=True):
    """A timer slack for the thread with this name or number."""

    thread: str
    slack_ns: int


class SlackChange(msgspec.Struct, frozen=True):
    """A timer slack that was set, in ns.

    Attributes:
        warning: the other timers that it delays; empty without such timers.
    """

    target: Target
    thread: Thread
    before: str
    now: str
    warning: str


def slack_text(nanoseconds: int) -> str:
    """Return a slack as it is typed: `50ms`, `1.5s`."""
    for size, unit in _UNITS:
        if nanoseconds >= size:
            return f"{nanoseconds / size:.9g}{unit}"
    return f"{number(nanoseconds, 0)}ns"


def read_slack(thread: Thread, slack_ns: int) -> tuple[TimerSlack, str]:
    """Return the setting that gives a thread this slack, and its present value in ns. Raise PowerprofError."""
    started = read_start_ticks(thread.tid)
    setting = TimerSlack(thread.tid, started or 0, str(slack_ns))
    before = setting.read() if started is not None else None
    if before is None:
        raise PowerprofError(f"thread {thread.tid} has ended", "choose a running thread")
    return setting, before


def keep_slack(
    pid: str | None, choice: SlackChoice, wait_s: float = 0.0, *, only: bool = False, say: Say = lambda text: None
) -> SlackChange:
    """Set the slack of a thread until the thread ends, and read it back.

    Wait up to `wait_s` for the process and the thread, since a server that starts has neither at first.
    Raise UsageError, CapabilityError, PowerprofError.
    """
    until_s = time.monotonic() + wait_s
    while True:
        try:
            target = find_target(pid, choice, only=only, say=say)
            # While the service is down, a process of any account may have its name.
            is_forged = pid is not None and may_be_forged(pid) and uids_of(target.pids[0]) != {caller().uid}
            if time.monotonic() >= until_s or not is_forged:
                thread = find_thread(target.pids[0], choice.thread, read_thread_names(target.pids[0]))
                break
        except UsageError:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_POLL_S)
    check_owner(target.pids[0])
    check_slack(target.pids[0], thread)
    setting, before = read_slack(thread, choice.slack_ns)
    now = setting.write(setting.value)
    if now is None:
        raise PowerprofError(f"thread {thread.tid} has ended", "choose a running thread")
    if now != setting.value:
        raise PowerprofError(
            f"{setting.name} reads {now}, not {setting.value}", "check whether another program sets it"
        )
    return SlackChange(target, thread, before, now, loop_warning(target.pids[0], thread))


def find_slack_target(
    pid: str | None, choice: SlackChoice, *, only: bool = False, say: Say = lambda text: None
) -> tuple[Target, Thread]:
    """Return the process and the thread of a choice. Raise UsageError, CapabilityError, PowerprofError."""
    target = find_target(pid, choice, only=only, say=say)
    thread = find_thread(target.pids[0], choice.thread, read_thread_names(target.pids[0]))
    check_slack(target.pids[0], thread)
    return target, thread


def command_name_of(pid: int, thread: Thread) -> str:
    """Return a name of the thread for a command line.

    The kernel's name needs no account of the server. A thread with the name of its process gets the last part of the
    server's name.
    """
    process_name = (files.try_text(paths.procfs() / str(pid) / "comm") or "").strip()
    return thread.comm if thread.comm != process_name else thread.label.rpartition("/")[2]


def unit_text(program: str, pid: str | None, choice: SlackChoice, target: Target, thread: Thread) -> str:
    """Return a systemd service that sets the slack after every start of the target's unit.

    Raise UsageError if the process has no unit, or if a name is unsuitable for a unit.
    """
    unit = service_of(target.pids[0])
    if unit is None:
        raise UsageError(
            f"process {target.pids[0]} is not part of a systemd service, so no unit can follow its restarts",
            "after each start of the process, run the same command without --print unit",
        )
    # After a restart another process or thread may have the number.
    process_name = target.label if pid is None or pid.isdigit() else pid
    thread_name = thread.label if choice.thread.isdigit() else choice.thread
    for word in (program, process_name, thread_name):
        if not _WORD.fullmatch(word):
            raise UsageError(f"{word[:60]!r} is not allowed in a unit", "give names of letters, digits, -, _ and .")
    slack = slack_text(choice.slack_ns)
    return _UNIT.format(program=program, unit=unit, pid=process_name, thread=thread_name, slack=slack)


def drop_in_text(choice: SlackChoice, target: Target) -> str:
    """Return a drop-in that gives the slack to all threads of the service, from its next start."""
    return _DROP_IN.format(unit=service_of(target.pids[0]) or "UNIT.service", slack=slack_text(choice.slack_ns))


_UNIT = """\
# Save as /etc/systemd/system/powerprof-slack.service, then run:
# systemctl enable powerprof-slack; systemctl start powerprof-slack
[Unit]
Description=powerprof: {slack} of timer slack for {thread} of {unit}
Documentation=man:powerprof(1)
# It starts and stops with the server, also at restarts after failures.
BindsTo={unit}
After={unit}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={program} cure --pid {pid} --thread {thread} --slack {slack} --keep --wait 120
TimeoutStartSec=150

[Install]
WantedBy={unit}
"""

_DROP_IN = """\
# systemctl edit {unit}, paste this, then restart it. It delays all timeouts of the service
# by at most {slack}, including those of connections.
[Service]
TimerSlackNSec={slack}
"""
