# SPDX-License-Identifier: Apache-2.0
"""Does a remedy save wake-ups on this live server? Try it in turns, measure it, put it back.

--thread NAME --slack 50ms lets the kernel wake one thread later, so that its timeouts fall together; --set
VARIABLE=VALUE is SET GLOBAL, as root by the server's own socket, or as an account that you name; --finding RULE is the
first remedy of a finding of diagnose, such as an event of the server, which is disabled. Without a choice it lists what
can be tried. It is put back whatever happens, and read back.
"""

from __future__ import annotations

from dataclasses import dataclass
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
_OF_A_TRIAL = ("pairs", "precision", "window", "max_p95", "seed", "yes", *ENERGY, "no_save", "runs_dir")


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
    yes: bool = flag("--yes", "Do not ask before something is changed.")
    server: ServerOptions = group(ServerOptions)
    energy: EnergyOptions = group(EnergyOptions)
    saving: Saving = group(Saving)
    html: str | None = html_file()


def command(options: Options) -> None:
    """Try a remedy, judge it, save and print; or list the remedies."""
    server, saving = options.server, options.saving
    from powerprof.cure.remedies import CureRequest, choice_of

    choice = choice_of(options.thread, options.slack, options.variable, options.finding)
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
        options.refuse_without_effect("without --thread and --slack, --set or --finding", _OF_A_TRIAL)
        from powerprof.cure.candidates import candidates
        from powerprof.report.cure import candidate_lines

        for line in candidate_lines(candidates(request, progress_printer(saving)), options.pid):
            print_text(line)
        return
    files = {"html": options.html}
    saving = check_saving(saving, files)
    from powerprof.cure import session
    from powerprof.cure.candidates import resolved

    def consent(plan: PlannedChange, target: Target, lasts_s: float, predicted: CurePrediction | None) -> None:
        from powerprof.report.cure import announce_lines

        lines = found + announce_lines(plan.remedy, target.label, target.pids[0], request, lasts_s, predicted)
        _agree(lines, options.yes, None if plan.connections is None else plan.remedy.name)

    request, found = resolved(request, progress_printer(saving))
    deliver(session.run(request, consent, progress_printer(saving)), "cure", saving, files)


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
