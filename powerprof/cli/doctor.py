# SPDX-License-Identifier: Apache-2.0
"""What can this host do, and what fixes the rest?

Looks at every capability that powerprof can use and really tries the ones that often fail, such as loading a
BPF program. Needs no privileges, changes nothing and always ends with 0 when it could look.

ok: works. missing: the command after the arrow provides it. none: this host has no such hardware. limited:
works in part, or for root.

With --pid it shows instead which programs and libraries of a process have names for their functions, and the one
command that gets the missing names: the distribution's debug package, else debuginfod. --duration traces wake-ups to
show which names matter. --from uses a saved run of attribute. --fetch downloads debug files after a question.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from powerprof.cli.options import CommandOptions, TargetOptions, json_file, quiet, runs_dir, top
from powerprof.cli.output import (
    ask_consent,
    check_targets,
    print_progress,
    print_report,
    print_text,
    terminal_width,
    write_json,
)
from powerprof.cli.parameters import flag, group, number, option
from powerprof.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of `doctor`."""

    target: TargetOptions = group(TargetOptions)
    duration: float | None = number("--duration", "S", "Trace wake-ups for so long.", low=0.3, high=3600)
    from_run: str | None = option("--from", "RUN", "Show the names in a saved run of attribute.")
    fetch: bool = flag("--fetch", "Download debug files from the servers in DEBUGINFOD_URLS.")
    yes: bool = flag("--yes", "Agree to the download; for scripts.")
    top: int = top()
    runs_dir: Path | None = runs_dir()
    json: str | None = json_file()
    quiet: bool = quiet()


def command(options: Options) -> None:
    """Print the capabilities of the host, or the names of a process. Raises UsageError."""
    target, json, from_run = options.target, options.json, options.from_run
    check_targets(json)
    if from_run is None and not (target.pid or target.cgroup or target.system):
        options.refuse_without_effect("without --pid, --cgroup, --system or --from", but=("json",))
        from powerprof.host.describe import describe_host
        from powerprof.host.survey import survey_host
        from powerprof.report.catalogue import capability_text

        capabilities = survey_host()
        write_json({"schema": "powerprof.doctor/1", "host": describe_host(), "capabilities": capabilities}, json)
        if json != "-":
            print_text(capability_text(capabilities))
        return
    if from_run is not None and options.duration is not None:
        raise UsageError("--duration has no effect with a saved run, which measures nothing", "leave it out")
    if from_run is None and options.runs_dir is not None:
        raise UsageError("--runs-dir has no effect without a saved run: doctor saves none", "leave it out")
    if options.yes and not options.fetch:
        raise UsageError("--yes agrees to a download, and there is none without --fetch", "add --fetch")
    from powerprof.attribution.symbols import SymbolsRequest, find_symbols
    from powerprof.report.catalogue import symbols_lines

    request = SymbolsRequest(run=from_run, runs_dir=options.runs_dir, duration_s=options.duration, fetch=options.fetch)
    record = find_symbols(
        target,
        request,
        lambda text: print_progress(text, options.quiet),
        lambda question: ask_consent(question, options.yes),
    )
    write_json(record, json)
    if json != "-" and not options.quiet:
        print_report(symbols_lines(record, terminal_width(), top=options.top))
