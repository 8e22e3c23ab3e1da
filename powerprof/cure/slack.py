# SPDX-License-Identifier: Apache-2.0
"""Timer slack that stays: the change itself, and the texts for systemd that repeat it after each start."""

from __future__ import annotations

import re
import time

import msgspec

from powerprof.cure.threads import (
    SlackChoice,
    check_owner,
    check_slack,
    find_target,
    find_thread,
    loop_warning,
    read_thread_names,
)
from powerprof.model.attribution import Thread
from powerprof.model.text import Say, number
from powerprof.reversible.timer_slack import TimerSlack, read_start_ticks
from powerprof.system import files, paths
from powerprof.system.caller import caller
from powerprof.system.cgroups import service_of
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.processes import uids_of
from powerprof.system.targets import Target, may_be_forged

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns"))
_POLL_S = 0.5
_WORD = re.compile(r"[A-Za-z0-9_./:@+-]{1,128}")


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
