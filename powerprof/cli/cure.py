# SPDX-License-Identifier: Apache-2.0
"""Does a remedy save wake-ups on this live server? Try it in turns, measure it, put it back.

--thread NAME --slack 50ms lets the kernel wake one thread later, so that its timeouts fall together; --set
VARIABLE=VALUE is SET GLOBAL, as root by the server's own socket, or as an account that you name; --finding RULE is the
first remedy of a finding of diagnose, such as an event of the server, which is disabled. Without a choice it lists what
can be tried. It is put back whatever happens, and read back.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.options import ENERGY, EnergyOptions, Given, Html, Saving, Seed, percent_of, refuse_without_effect
from powerprof.cli.output import check, deliver, say, say_to
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.cure.records import CurePrediction
    from powerprof.cure.remedies import PlannedChange
    from powerprof.system.processes import Target

Pid = Annotated[str, typer.Option("--pid", metavar="ID|NAME", help="The process id or name.")]
Thread = Annotated[
    str | None, typer.Option("--thread", metavar="NAME|ID", help="The thread, as the kernel or its server calls it.")
]
Slack = Annotated[str | None, typer.Option("--slack", metavar="TIME", help="Its timer slack to try: 500us, 50ms, 1s.")]
Set = Annotated[str | None, typer.Option("--set", metavar="VARIABLE=VALUE", help="The global variable to try.")]
Finding = Annotated[
    str | None, typer.Option("--finding", metavar="RULE|NUMBER", help="The finding of diagnose whose remedy to try.")
]
Pairs = Annotated[int, typer.Option("--pairs", metavar="N", min=3, max=1000, help="Pairs of windows.")]
Precision = Annotated[
    str | None,
    typer.Option("--precision", metavar="P%", help="Continue until the interval is this narrow, at most 4 × --pairs."),
]
Length = Annotated[
    float, typer.Option("--window", metavar="S", min=0.5, max=3600, help="Length of each window in seconds.")
]
MaxP95 = Annotated[
    float, typer.Option("--max-p95", metavar="PERCENT", min=0, max=10000, help="End where latency (p95) rises by more.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before something is changed.")]


# What the list of candidates has no use for.
_OF_A_TRIAL = ("pairs", "precision", "window", "max_p95", "seed", "yes", *ENERGY, "no_save", "runs_dir")


def command(
    *,
    context: typer.Context,
    pid: Pid,
    thread: Thread = None,
    slack: Slack = None,
    variable: Set = None,
    finding: Finding = None,
    pairs: Pairs = 4,
    precision: Precision = None,
    window: Length = 5.0,
    max_p95: MaxP95 = 10.0,
    seed: Seed = 1,
    yes: Yes = False,
    given: Given,
    energy: EnergyOptions,
    saving: Saving,
    html: Html = None,
) -> None:
    """Try, judge, save, print; or list."""
    from powerprof.cure.remedies import CureRequest, choice_of

    choice = choice_of(thread, slack, variable, finding)
    request = CureRequest(
        pid=pid,
        choice=choice,
        pairs=pairs,
        window_s=window,
        seed=seed,
        max_p95_percent=max_p95,
        precision_percent=percent_of("--precision", precision),
        server_url=given.server,
        socket=given.socket,
        defaults_file=given.defaults_file,
        energy=energy.request,
    )
    if choice is None:
        if saving.json is not None or saving.label or html is not None:
            raise UsageError(
                "without a remedy there is nothing to save", "--thread NAME --slack TIME, --set or --finding"
            )
        refuse_without_effect(context, "without --thread and --slack, --set or --finding", _OF_A_TRIAL)
        from powerprof.cure.candidates import candidates
        from powerprof.report.cure import candidate_lines

        for line in candidate_lines(candidates(request, say_to(saving)), pid):
            say(line)
        return
    files = {"html": html}
    saving = check(saving, files)
    from powerprof.cure import session
    from powerprof.cure.candidates import resolved

    def consent(plan: PlannedChange, target: Target, lasts_s: float, predicted: CurePrediction | None) -> None:
        from powerprof.report.cure import announce_lines

        lines = found + announce_lines(plan.remedy, target.label, target.pids[0], request, lasts_s, predicted)
        _agree(lines, yes, None if plan.connections is None else plan.remedy.name)

    request, found = resolved(request, say_to(saving))
    deliver(session.run(request, consent, say_to(saving)), "cure", saving, files)


def _agree(what: list[str], yes: bool, copied: str | None) -> None:
    """Print on stderr what is touched, and ask on a terminal. Raise UsageError if the user does not agree.

    `copied` is a variable that connections copy and keep. --yes does not cover that, since it cannot be put back.
    """
    for line in what:
        say(line, error=True)
    if yes and copied is not None:
        raise UsageError(
            f"--yes does not cover {copied}: connections that open during the cure copy it and keep it afterwards",
            "run it on a terminal without --yes, or try a variable without session scope",
        )
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        hint = "add --yes" if copied is None else f"run it on a terminal: --yes does not cover {copied}"
        raise UsageError("confirmation needs a terminal", hint)
    try:
        agreed = typer.confirm("Try it?", err=True)
    except typer.Abort:  # end of input
        agreed = False
    if not agreed:
        raise UsageError("not agreed: nothing was changed", "add --yes to be not asked")
