# SPDX-License-Identifier: Apache-2.0
"""Check the abilities of this host, and how to enable what is missing.

It tests every capability that powerprof can use, for example by loading a BPF program. It needs no root, changes
nothing, and exits with 0 if the check itself worked.

ok: works. missing: the command after the arrow provides it. none: this host lacks the hardware. limited: works in part,
or only as root.

--pid shows instead which binaries of a process lack debug symbols, and the command that installs them: the
distribution's debug package, or debuginfod. --duration shows which symbols matter. --fetch asks for confirmation. For a
database server it also checks whether queries, thread names and digests work on its release; --self-test tries it with
known statements.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from powerprof.cli.options import CommandOptions, top
from powerprof.cli.output import write_json
from powerprof.cli.outputs import check_targets, json_file, json_output
from powerprof.cli.parameters import Mode, flag, group, option, program_value, time_span
from powerprof.cli.targets import ServerOptions, TargetOptions
from powerprof.cli.terminal import ask_consent, print_progress, print_report, print_text, terminal_width


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `doctor`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("--pid", "--cgroup", "--system", "--from"), is_without=True, allows=("--json",)),
    )

    target: TargetOptions = group(TargetOptions)
    duration: float | None = time_span(
        "--duration", "Trace wake-ups for this time.", low=0.3, high=3600, excludes=("--from",)
    )
    from_run: str | None = option("--from", "RUN", "Check the symbols of a saved run of attribute.")
    fetch: bool = flag("--fetch", "Download debug files from the servers in DEBUGINFOD_URLS.")
    self_test: bool = flag(
        "--self-test",
        "With --pid: execute known statements for 10 s and count them by probes (as root).",
        needs=("--pid",),
        excludes=("--from",),
    )
    yes: bool = flag("--yes", "Do not ask for confirmation.", needs=("--fetch",))
    top: int = top()
    server: ServerOptions = group(ServerOptions)
    runs_dir: Path | None = program_value("runs_dir")
    json: str | None = json_file()
    quiet: bool = program_value("quiet", False)


def command(options: Options) -> None:
    """Print the capabilities of the host, or the names of a process. Raises UsageError."""
    target, json, from_run = options.target, options.json, options.from_run
    check_targets(json_output(json))
    if from_run is None and not (target.pid or target.cgroup or target.system):
        from powerprof.host.describe import describe_host
        from powerprof.host.idle_limits import read_idle_limits
        from powerprof.host.survey import survey_host
        from powerprof.report.doctor import capability_text

        capabilities = survey_host()
        host = {"host": describe_host(), "idle": read_idle_limits(), "capabilities": capabilities}
        write_json({"schema": "powerprof.doctor/1"} | host, json)
        if json != "-":
            print_text(capability_text(capabilities, terminal_width()))
        return
    from powerprof.attribution.symbols import SymbolsRequest, find_symbols
    from powerprof.report.doctor import symbols_lines

    request = SymbolsRequest(run=from_run, runs_dir=options.runs_dir, duration_s=options.duration, fetch=options.fetch)

    def say(text: str) -> None:
        print_progress(text, options.quiet)

    record = find_symbols(target, request, say, lambda question: ask_consent(question, options.yes))
    if options.from_run is None and record.pids and not target.system:
        from powerprof.queries.release import check_release

        checked = check_release(record.pids[0], options.server, say, self_test=options.self_test)
        record = replace(record, server=checked)
    write_json(record, json)
    if json != "-" and not options.quiet:
        print_report(symbols_lines(record, terminal_width(), top=options.top))
