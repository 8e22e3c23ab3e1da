# SPDX-License-Identifier: Apache-2.0
"""Let the kernel wake one thread later, until it ends: what a cure has shown to save wake-ups.

Sets the timer slack of a thread of a running process and reads it back. Nothing is measured: cure does that. Slack ends
with its thread. --print-unit prints a systemd service that sets it after each start, --print-drop-in the drop-in that
gives it to all threads of the service; neither changes anything. 50us puts the kernel's default back.
"""

from __future__ import annotations

from typing import Annotated

import typer

from powerprof.cli.output import say
from powerprof.system.errors import UsageError

Slack = Annotated[str, typer.Argument(metavar="TIME", help="The timer slack: 500us, 50ms, 1s.")]
Pid = Annotated[str, typer.Option("--pid", metavar="ID|NAME", help="The process id or name.")]
Thread = Annotated[str, typer.Option("--thread", metavar="NAME|ID", help="The thread, as its server calls it.")]
Wait = Annotated[
    float, typer.Option("--wait", metavar="S", min=0, max=3600, help="Wait so long for the process and thread.")
]
PrintUnit = Annotated[bool, typer.Option("--print-unit", help="Print a service that follows restarts; set nothing.")]
PrintDropIn = Annotated[bool, typer.Option("--print-drop-in", help="Print a drop-in for all threads; set nothing.")]


def command(
    *,
    slack: Slack,
    pid: Pid,
    thread: Thread,
    wait: Wait = 0.0,
    print_unit: PrintUnit = False,
    print_drop_in: PrintDropIn = False,
) -> None:
    """Set, or print."""
    from powerprof.cure import candidates
    from powerprof.cure.remedies import SlackChoice, choice_of
    from powerprof.cure.threads import loop_warning
    from powerprof.report.cure import slack_lines

    choice = choice_of(thread, slack, None)
    assert isinstance(choice, SlackChoice)  # noqa: S101  of a thread and a slack
    if print_unit and print_drop_in:
        raise UsageError("--print-unit and --print-drop-in are two ways to keep it", "choose one")
    if (print_unit or print_drop_in) and wait:
        raise UsageError("--wait has no effect where nothing is set", "leave it out")
    if print_unit or print_drop_in:
        target, meant = candidates.planned(pid, choice)
        if warning := loop_warning(target.pids[0], meant):
            say(f"warning: {warning}", error=True)
        if print_drop_in:
            say(candidates.drop_in_text(choice, target), end="")
        else:
            from powerprof.live.unit import this_installation

            say(candidates.unit_text(str(this_installation()), pid, choice, target, meant), end="")
        return
    done = candidates.set_slack(pid, choice, wait)
    if done.warning:
        say(f"warning: {done.warning}", error=True)
    for line in slack_lines(done, pid):
        say(line)
