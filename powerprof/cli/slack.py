# SPDX-License-Identifier: Apache-2.0
"""Let the kernel wake one thread later, until it ends: what a cure has shown to save wake-ups.

Sets the timer slack of a thread of a running process and reads it back. Nothing is measured: cure does that. Slack ends
with its thread. --print-unit prints a systemd service that sets it after each start, --print-drop-in the drop-in that
gives it to all threads of the service; neither changes anything. 50us puts the kernel's default back.
"""

from __future__ import annotations

from dataclasses import dataclass

from powerprof.cli.options import CommandOptions
from powerprof.cli.output import print_text
from powerprof.cli.parameters import argument, flag, number, option
from powerprof.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of `slack`."""

    slack: str = argument("TIME", "The timer slack: 500us, 50ms, 1s.", is_required=True)
    pid: str = option("--pid", "ID|NAME", "The process id or name.", is_required=True)
    thread: str = option("--thread", "NAME|ID", "The thread, as its server calls it.", is_required=True)
    wait: float = number("--wait", "S", "Wait so long for the process and thread.", default=0.0, low=0, high=3600)
    print_unit: bool = flag("--print-unit", "Print a service that follows restarts; set nothing.")
    print_drop_in: bool = flag("--print-drop-in", "Print a drop-in for all threads; set nothing.")


def command(options: Options) -> None:
    """Set the timer slack of a thread, or print a unit that does."""
    pid, print_unit, print_drop_in = options.pid, options.print_unit, options.print_drop_in
    from powerprof.cure import candidates
    from powerprof.cure.remedies import SlackChoice, choice_of
    from powerprof.cure.threads import loop_warning
    from powerprof.report.cure import slack_lines

    choice = choice_of(options.thread, options.slack, None)
    assert isinstance(choice, SlackChoice)  # noqa: S101  of a thread and a slack
    if print_unit and print_drop_in:
        raise UsageError("--print-unit and --print-drop-in are two ways to keep it", "choose one")
    if (print_unit or print_drop_in) and options.wait:
        raise UsageError("--wait has no effect where nothing is set", "leave it out")
    if print_unit or print_drop_in:
        target, meant = candidates.planned(pid, choice)
        if warning := loop_warning(target.pids[0], meant):
            print_text(f"warning: {warning}", error=True)
        if print_drop_in:
            print_text(candidates.drop_in_text(choice, target), end="")
        else:
            from powerprof.live.unit import this_installation

            print_text(candidates.unit_text(str(this_installation()), pid, choice, target, meant), end="")
        return
    done = candidates.set_slack(pid, choice, options.wait)
    if done.warning:
        print_text(f"warning: {done.warning}", error=True)
    for line in slack_lines(done, pid):
        print_text(line)
