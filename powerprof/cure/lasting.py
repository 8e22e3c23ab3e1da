# SPDX-License-Identifier: Apache-2.0
"""Timer slack that stays: set once and read back, and the systemd texts that set it after each start."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from powerprof.attribution.records import Thread
from powerprof.caller import caller
from powerprof.cure.choices import SlackChoice
from powerprof.cure.remedies import slack_text, unit_of
from powerprof.cure.session import target_of
from powerprof.cure.threads import check_owner, check_slack, find_thread, loop_warning
from powerprof.database.products.local import names_of_local_server
from powerprof.errors import PowerprofError, UsageError
from powerprof.processes.accounts import uids_of
from powerprof.processes.targets import Target, may_be_forged
from powerprof.reversible.kinds import TimerSlack, started_ticks

_AGAIN_S = 0.5
_WORD = re.compile(r"[A-Za-z0-9_./:@+-]{1,128}")


@dataclass(frozen=True)
class SlackSet:
    """What was set: of which thread, from what and to what in ns. `warning`: what it delays besides; empty for none."""

    target: Target
    thread: Thread
    before: str
    now: str
    warning: str


def set_slack(pid: str, choice: SlackChoice, wait_s: float = 0.0) -> SlackSet:
    """Set it and read it back. `wait_s`: how long the process and its thread are waited for, after a server's start.

    Raises UsageError, CapabilityError, PowerprofError.
    """
    until_s = time.monotonic() + wait_s
    while True:
        try:
            target = target_of(pid)
            # While the service is away a process of any account may have its name.
            if time.monotonic() >= until_s or not may_be_forged(pid) or uids_of(target.pids[0]) == {caller().uid}:
                thread = find_thread(target.pids[0], choice.thread, names_of_local_server(target.pids[0]))
                break
        except UsageError:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_AGAIN_S)
    check_owner(target.pids[0])
    check_slack(target.pids[0], thread)
    started = started_ticks(thread.tid)
    setting = TimerSlack(thread.tid, started or 0, str(choice.slack_ns))
    before = setting.read() if started is not None else None
    if before is None:
        raise PowerprofError(f"thread {thread.tid} has ended", "name one that runs")
    setting.write(setting.value)
    now = setting.read()
    if now is None:
        raise PowerprofError(f"thread {thread.tid} has ended", "name one that runs")
    if now != setting.value:
        raise PowerprofError(f"{setting.name} reads {now}, not {setting.value}", "does something else set it?")
    return SlackSet(target, thread, before, now, loop_warning(target.pids[0], thread))


def planned(pid: str, choice: SlackChoice) -> tuple[Target, Thread]:
    """Which process and thread are meant, for a text that sets it later. Raises as `set_slack`."""
    target = target_of(pid)
    thread = find_thread(target.pids[0], choice.thread, names_of_local_server(target.pids[0]))
    check_slack(target.pids[0], thread)
    return target, thread


def unit_text(program: str, pid: str, choice: SlackChoice, target: Target, thread: Thread) -> str:
    """A systemd service that sets it after every start of the target's unit. Raises UsageError for what has no unit, or
    for names that are not words of a unit."""
    unit = unit_of(target.pids[0])
    if unit is None:
        raise UsageError(
            f"process {target.pids[0]} belongs to no systemd service: nothing can be bound to its restarts",
            "run powerprof slack after each start, from what starts it",
        )
    # A number is another's after a restart.
    who = target.label if pid.isdigit() else pid
    name = thread.label if choice.thread.isdigit() else choice.thread
    for word in (program, who, name):
        if not _WORD.fullmatch(word):
            raise UsageError(f"{word[:60]!r} cannot stand in a unit", "name process and thread by plain words")
    return _UNIT.format(program=program, unit=unit, pid=who, thread=name, slack=slack_text(choice.slack_ns))


def drop_in_text(choice: SlackChoice, target: Target) -> str:
    """A drop-in that gives all threads of the service that slack, from its next start."""
    unit = unit_of(target.pids[0]) or "UNIT.service"
    return _DROP_IN.format(unit=unit, slack=slack_text(choice.slack_ns))


_UNIT = """\
# To be kept as /etc/systemd/system/powerprof-slack.service; then systemctl enable powerprof-slack, and start it.
[Unit]
Description=powerprof: {slack} of timer slack for {thread} of {unit}
Documentation=man:powerprof(1)
# It is started and stopped with the server, restarts after failures included.
BindsTo={unit}
After={unit}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={program} slack --pid {pid} --thread {thread} --wait 120 {slack}
TimeoutStartSec=150

[Install]
WantedBy={unit}
"""

_DROP_IN = """\
# systemctl edit {unit}, paste this, then restart it. It delays every timeout of all threads of the
# service, those of connections too, by at most {slack}.
[Service]
TimerSlackNSec={slack}
"""
