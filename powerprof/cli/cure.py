# SPDX-License-Identifier: Apache-2.0
"""Does a remedy save wake-ups on this live server? Try it in turns, measure it, put it back.

--thread NAME --slack 50ms lets the kernel wake one thread later, so that its timeouts fall together; --set
VARIABLE=VALUE is SET GLOBAL, as root by the server's own socket, or as an account that you name; --finding RULE is the
first remedy of a finding of diagnose, such as an event of the server, which is disabled. Without a choice it lists what
can be tried. It is put back whatever happens, and read back.

--keep sets the slack of the thread and leaves it so until the thread ends; --release sets the kernel's default again.
Neither measures anything. --print-unit prints a systemd service that keeps it after each start, --print-drop-in the
drop-in that gives it to all threads of the service; they set nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.cli.options import (
    ENERGY,
    CommandOptions,
    EnergyOptions,
    Saving,
    ServerOptions,
    confirm,
    html_file,
    parse_percent,
    seed,
)
from powerprof.cli.output import check_saving, deliver, print_text, progress_printer
from powerprof.cli.parameters import flag, group, number, option, whole_number
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.cure.records import CurePrediction
    from powerprof.cure.remedies import PlannedChange
    from powerprof.system.processes import Target

# Options without an effect on the list of candidates.
_TRIAL_OPTIONS = ("pairs", "precision", "window", "max_p95", "seed", "yes", *ENERGY, "no_save", "runs_dir")

_RELEASE_OPTIONS = ("pid", "thread", "release")
_PRINT_OPTIONS = ("wait", "print_unit", "print_drop_in")
_KEEP_OPTIONS = ("pid", "thread", "slack", "keep", *_PRINT_OPTIONS)


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of `cure`."""

    pid: str = option("--pid", "ID|NAME", "The process id or name.", is_required=True)
    thread: str | None = option("--thread", "NAME|ID", "The thread, as the kernel or its server calls it.")
    slack: str | None = option("--slack", "TIME", "Its timer slack to try: 500us, 50ms, 1s.")
    variable: str | None = option("--set", "VARIABLE=VALUE", "The global variable to try.")
    finding: str | None = option("--finding", "RULE|NUMBER", "The finding of diagnose whose remedy to try.")
    pairs: int = whole_number("--pairs", "N", "Pairs of windows.", default=4, low=3, high=1000)
    precision: str | None = option(
        "--precision", "P%", "Continue until the interval is this narrow, at most 4 × --pairs."
    )
    window: float = number("--window", "S", "Length of each window in seconds.", default=5.0, low=0.5, high=3600)
    max_p95: float = number(
        "--max-p95", "PERCENT", "End where latency (p95) rises by more.", default=10.0, low=0, high=10000
    )
    seed: int = seed()
    keep: bool = flag("--keep", "Set --slack and leave it, until the thread ends.")
    release: bool = flag("--release", "Set the default slack of the thread again.")
    wait: float = number(
        "--wait", "S", "With --keep: wait so long for the process and thread.", default=0.0, low=0, high=3600
    )
    print_unit: bool = flag("--print-unit", "With --keep: print a service that follows restarts.")
    print_drop_in: bool = flag("--print-drop-in", "With --keep: print a drop-in for all threads.")
    yes: bool = flag("--yes", "Do not ask before something is changed.")
    server: ServerOptions = group(ServerOptions)
    energy: EnergyOptions = group(EnergyOptions)
    saving: Saving = group(Saving)
    html: str | None = html_file()


def command(options: Options) -> None:
    """Try a remedy, judge it, save and print; or list the remedies, or keep or release timer slack."""
    if options.keep or options.release:
        _change_slack(options)
        return
    options.refuse_without_effect("without --keep", _PRINT_OPTIONS)
    server, saving = options.server, options.saving
    from powerprof.cure.remedies import CureRequest, parse_choice

    choice = parse_choice(options.thread, options.slack, options.variable, options.finding)
    request = CureRequest(
        pid=options.pid,
        choice=choice,
        pairs=options.pairs,
        window_s=options.window,
        seed=options.seed,
        max_p95_percent=options.max_p95,
        precision_percent=parse_percent("--precision", options.precision),
        server_url=server.server,
        socket=server.socket,
        defaults_file=server.defaults_file,
        energy=options.energy.request,
    )
    if choice is None:
        if saving.json is not None or saving.label or options.html is not None:
            raise UsageError(
                "without a remedy there is nothing to save", "--thread NAME --slack TIME, --set or --finding"
            )
        options.refuse_without_effect("without --thread and --slack, --set or --finding", _TRIAL_OPTIONS)
        from powerprof.cure.candidates import list_candidates
        from powerprof.report.cure import candidate_lines

        for line in candidate_lines(list_candidates(request, progress_printer(saving)), options.pid):
            print_text(line)
        return
    files = {"html": options.html}
    saving = check_saving(saving, files)
    from powerprof.cure import session
    from powerprof.cure.candidates import resolve_finding

    def consent(plan: PlannedChange, target: Target, lasts_s: float, predicted: CurePrediction | None) -> None:
        from powerprof.report.cure import announce_lines

        lines = found + announce_lines(plan.remedy, target.label, target.pids[0], request, lasts_s, predicted)
        _agree(lines, options.yes, None if plan.connections is None else plan.remedy.name)

    request, found = resolve_finding(request, progress_printer(saving))
    deliver(session.run_cure(request, consent, progress_printer(saving)), "cure", saving, files)


def _change_slack(options: Options) -> None:
    """Set the timer slack of a thread, or print a unit that sets it. Raise UsageError, PowerprofError."""
    if options.keep and options.release:
        raise UsageError("--keep and --release are two changes", "choose one")
    name, allowed = ("--release", _RELEASE_OPTIONS) if options.release else ("--keep", _KEEP_OPTIONS)
    options.refuse_without_effect(f"with {name}", but=allowed)
    if options.thread is None:
        raise UsageError(f"{name} needs a thread", "--thread NAME, or a thread id")
    if options.print_unit and options.print_drop_in:
        raise UsageError("--print-unit and --print-drop-in are two ways to keep it", "choose one")
    if (options.print_unit or options.print_drop_in) and options.wait:
        raise UsageError("--wait has no effect where nothing is set", "leave it out")
    from powerprof.cure import threads
    from powerprof.cure.remedies import parse_choice
    from powerprof.diagnosis.thread_pace import DEFAULT_NS
    from powerprof.report.cure import released_line, slack_lines

    choice = parse_choice(options.thread, threads.slack_text(DEFAULT_NS) if options.release else options.slack, None)
    assert isinstance(choice, threads.SlackChoice)  # noqa: S101  a thread and a slack
    if options.print_unit or options.print_drop_in:
        target, thread = threads.find_slack_target(options.pid, choice)
        _warn(threads.loop_warning(target.pids[0], thread))
        if options.print_drop_in:
            text = threads.drop_in_text(choice, target)
        else:
            text = threads.unit_text(str(Path(sys.argv[0]).resolve()), options.pid, choice, target, thread)
        print_text(text, end="")
        return
    change = threads.keep_slack(options.pid, choice, options.wait)
    if options.release:
        print_text(released_line(change))
        return
    _warn(change.warning)
    for line in slack_lines(change, options.pid):
        print_text(line)


def _warn(warning: str) -> None:
    if warning:
        print_text(f"warning: {warning}", error=True)


def _agree(announcement: list[str], yes: bool, copied: str | None) -> None:
    """Print the change on stderr and ask on a terminal. Raise UsageError without consent.

    `copied` is a variable that connections copy and keep. --yes does not cover it, since it cannot be put back.
    """
    for line in announcement:
        print_text(line, error=True)
    if yes and copied is not None:
        raise UsageError(
            f"--yes does not cover {copied}: connections that open during the cure copy it and keep it afterwards",
            "run it on a terminal without --yes, or try a variable without session scope",
        )
    if yes:
        return
    confirm(
        "Try it?",
        without_terminal="add --yes" if copied is None else f"run it on a terminal: --yes does not cover {copied}",
        declined=UsageError("not agreed: nothing was changed", "add --yes to be not asked"),
    )
