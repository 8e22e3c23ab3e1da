# SPDX-License-Identifier: Apache-2.0
"""Try a remedy on a live server, measure the saved wake-ups, and restore the old value.

Windows with and without the remedy alternate. --thread NAME --slack 50ms sets the timer slack of one thread, so that
its timers fire later and together. --set VARIABLE=VALUE runs SET GLOBAL, or ALTER SYSTEM and a reload on PostgreSQL:
as root through the server's own socket, or with an account of yours. --host SETTING=VALUE changes a setting of the
host, such as latency-limit=50 (in µs), and shows power, time in C0 and the latency of statements. --finding RULE
applies the first remedy of a finding of `diagnose`. Without a remedy, cure lists the available remedies. The old value
is always restored, and then read back.

--keep and --release measure nothing. --print does not change the server.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from powerprof.cli.meter_options import EnergyOptions
from powerprof.cli.options import CommandOptions, parse_percent
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import EXPERT_HEADING, Mode, flag, group, option, time_span, whole_number
from powerprof.cli.targets import ServerOptions, only, server_pid
from powerprof.cli.terminal import confirm, print_report, print_text, progress_printer, require_terminal
from powerprof.cli.window_options import seed
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.cure.records import CurePrediction
    from powerprof.cure.remedies import CureRequest, PlannedChange
    from powerprof.system.targets import Target

_REMEDIES = ("--thread", "--slack", "--set", "--finding", "--host")
_KEPT = ("--pid", "--only", "--thread")


def _printed(text: str) -> str:
    if text not in ("unit", "drop-in"):
        raise ValueError("not one of 'unit', 'drop-in'")
    return text


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `cure`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("--release",), allows=_KEPT),
        Mode(words=("--keep",), allows=(*_KEPT, "--slack", "--wait", "--print")),
        Mode(
            words=_REMEDIES,
            circumstance="without --thread and --slack, --set, --host or --finding",
            is_without=True,
            refuses=(
                *("--pairs", "--precision", "--duration", "--guard", "--seed", "--yes", "--meter", "--no-save"),
                *("--json", "-o", "--label"),
            ),
        ),
    )

    pid: str | None = server_pid()
    only: bool = only()
    thread: str | None = option(
        "--thread", "NAME|ID", "Thread id, or the name of the thread in the kernel or the server."
    )
    slack: str | None = option("--slack", "TIME", "Timer slack to try, such as 500us, 50ms or 1s.")
    variable: str | None = option("--set", "VARIABLE=VALUE", "Variable or setting of the server to try.")
    finding: str | None = option("--finding", "RULE|NUMBER", "Try the remedy of this finding of diagnose.")
    host: str | None = option(
        "--host",
        "SETTING=VALUE",
        "Setting of the host: latency-limit, idle-governor, cpu-governor, epp, disable-state, halt-poll, profile.",
    )
    pairs: int = whole_number(
        "--pairs",
        "N",
        "Number of window pairs, with and without the remedy.",
        default=4,
        low=3,
        high=1000,
        needed_by="an interval",
    )
    precision: str | None = option(
        "--precision", "P%", "Continue until the 95 % interval is this narrow, up to 4 × --pairs."
    )
    duration: float = time_span("--duration", "Length of each window.", default=5.0, low=0.5, high=3600)
    guard: str = option(
        "--guard",
        "pN=PERCENT",
        "End if this percentile of the latency rises by more, such as p99=5%.",
        default="p95=10%",
    )
    seed: int = seed()
    keep: bool = flag("--keep", "Set --slack until the thread ends, without measuring.")
    release: bool = flag("--release", "Restore the default slack of the thread.")
    wait: float = time_span(
        "--wait",
        "With --keep: wait this long for the process and thread.",
        default=0.0,
        low=0,
        high=3600,
        heading=EXPERT_HEADING,
        needs=("--keep",),
        excludes=("--print",),
    )
    printed: str | None = option(
        "--print",
        "unit|drop-in",
        "With --keep: print a systemd service that follows restarts, or a drop-in for all threads.",
        convert=_printed,
        needs=("--keep",),
    )
    yes: bool = flag("--yes", "Do not ask for confirmation.")
    server: ServerOptions = group(ServerOptions)
    energy: EnergyOptions = group(EnergyOptions)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)


def estimate_s(options: Options) -> float:
    """Return the approximate duration of a trial in s."""
    from powerprof.cure.session import estimate_seconds

    return estimate_seconds(_request(options))


def _request(options: Options) -> CureRequest:
    from powerprof.cure.remedies import CureRequest, parse_choice, parse_guard

    server = options.server
    percentile, limit = parse_guard(options.guard)
    return CureRequest(
        pid=options.pid,
        choice=parse_choice(options.thread, options.slack, options.variable, options.finding, options.host),
        pairs=options.pairs,
        window_s=options.duration,
        seed=options.seed,
        max_p95_percent=limit,
        guard_percentile=percentile,
        precision_percent=parse_percent("--precision", options.precision),
        server_url=server.server,
        socket=server.socket,
        defaults_file=server.defaults_file,
        energy=options.energy.request,
        only=options.only,
    )


def command(options: Options) -> None:
    """Try a remedy, judge it, save and print; or list the remedies, or keep or release timer slack."""
    if options.keep or options.release:
        _change_slack(options)
        return
    saving = options.saving
    request = _request(options)
    if request.choice is None:
        from powerprof.cure.candidates import list_candidates
        from powerprof.report.cure import candidate_lines

        print_report(candidate_lines(list_candidates(request, progress_printer(saving))))
        return
    saving = check_saving(saving, options.outputs)
    from powerprof.cure import session
    from powerprof.cure.candidates import resolve_finding

    def consent(plan: PlannedChange, target: Target, lasts_s: float, predicted: CurePrediction | None) -> None:
        from powerprof.report.cure import announce_lines

        lines = found + announce_lines(plan.remedy, target.label, target.first, request, lasts_s, predicted)
        _agree(lines, options.yes, None if plan.connections is None else plan.remedy.name)

    def check_terminal() -> None:
        if not options.yes:
            require_terminal("add --yes")

    say = progress_printer(saving)
    request, found = resolve_finding(request, check_terminal, say)
    deliver(session.run_cure(request, check_terminal, consent, say), "cure", saving)


def _change_slack(options: Options) -> None:
    """Set the timer slack of a thread, or print a unit that sets it. Raise UsageError, PowerprofError."""
    name = "--release" if options.release else "--keep"
    if options.thread is None:
        raise UsageError(f"{name} needs a thread", "--thread NAME, or --thread ID")
    from powerprof.cure.remedies import parse_choice
    from powerprof.cure.slack import drop_in_text, find_slack_target, keep_slack, slack_text, unit_text
    from powerprof.cure.threads import SlackChoice, loop_warning
    from powerprof.diagnosis.thread_pace import DEFAULT_NS
    from powerprof.report.cure import released_line, slack_lines

    choice = parse_choice(options.thread, slack_text(DEFAULT_NS) if options.release else options.slack, None)
    say = progress_printer(options.saving)
    assert isinstance(choice, SlackChoice)  # noqa: S101  a thread and a slack
    if options.printed is not None:
        target, thread = find_slack_target(options.pid, choice, only=options.only, say=say)
        _warn(loop_warning(target.first, thread))
        if options.printed == "drop-in":
            text = drop_in_text(choice, target)
        else:
            text = unit_text(str(Path(sys.argv[0]).resolve()), options.pid, choice, target, thread)
        print_text(text, end="")
        return
    change = keep_slack(options.pid, choice, options.wait, only=options.only, say=say)
    if options.release:
        print_text(released_line(change))
        return
    _warn(change.warning)
    for line in slack_lines(change, options.pid or change.target.label):
        print_text(line)


def _warn(warning: str) -> None:
    if warning:
        print_text(f"warning: {warning}", error=True)


def _agree(announcement: list[str], yes: bool, copied: str | None) -> None:
    """Print the change on stderr and ask on a terminal. Raise UsageError without a terminal, Declined after a no.

    `copied` is a variable that connections copy and keep. --yes does not cover it, since it cannot be put back.
    """
    for line in announcement:
        print_text(line, error=True)
    if yes and copied is not None:
        raise UsageError(
            f"--yes does not cover {copied}: connections that open during the cure copy it and keep it afterwards",
            "run it on a terminal without --yes, or try a variable that has only a global scope",
        )
    if yes:
        return
    confirm(
        "Try it?",
        without_terminal="add --yes" if copied is None else f"run it on a terminal: --yes does not cover {copied}",
        declined="the server is unchanged",
    )
