# SPDX-License-Identifier: Apache-2.0
"""Show which SQL statements use the most CPU time, wake the CPUs and cost energy. The rows add up to the whole server.

--pid takes a process id or a name: mysqld also finds mariadbd, postgres finds a whole server. powerprof connects
through the server's own socket; for PostgreSQL only for pg_stat_statements and --explain. A probe on the server's
command dispatcher separates the statements. The server is not changed, and its performance_schema may be off. Values in
statement texts are replaced by ?.

If probes would cost more than --max-cost, they are placed for random slices of the window. --method samples reads
statement texts from the server's memory; it is used if slices show too little, or if probes are impossible. In both
cases shares have 95 % intervals. --explain and --save-workload use the literal values of the clients and ask for
confirmation first.

--watch repeats windows of --duration and shows them on a screen with keys. Unless you gave a process id, a restarted
server is followed. Nothing is saved, except a window with the key w.
"""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import ClassVar

import msgspec

from powerprof.cli.live import LiveView, has_screen, line_width, print_lines, save_run
from powerprof.cli.meter_options import EnergyOptions
from powerprof.cli.options import CommandOptions, cost_bound, max_cost, top
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import STACKS, TABLES, Outputs, Saving, check_kinds, output_files
from powerprof.cli.parameters import Mode, flag, group, option, readable_file, whole_number
from powerprof.cli.targets import ServerOptions, only, server_pid
from powerprof.cli.terminal import confirm, print_progress, print_text, progress_printer
from powerprof.cli.window_options import duration
from powerprof.live.statements import StatementHistory, StatementMonitor
from powerprof.queries.session import QueriesRequest
from powerprof.report.queries_watch import QUERIES_PLAIN_HEAD, QUERIES_SORTS, draw_queries_screen, queries_plain_line
from powerprof.system.errors import PowerprofError, UsageError, reason_of
from powerprof.system.next_steps import command_line


class MethodOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The method that distinguishes statements."""

    HEADING: ClassVar[str] = "Method"

    method: str = option(
        "--method", "NAME", "probes, samples (lower overhead), or auto (probes if cheap enough).", default="auto"
    )
    stacks: bool = flag("--stacks", "Also sample call stacks (99 Hz) for one flame graph per statement.")


class SampleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The use of statements with the values of clients."""

    HEADING: ClassVar[str] = "Plans and workloads (use the literal values of the clients)"

    explain: bool = flag("--explain", "Run EXPLAIN on the most expensive statements.")
    explain_as: Path | None = option(
        "--explain-as",
        "FILE",
        "Option file of an account with SELECT only, for EXPLAIN (default: a temporary account).",
        convert=readable_file,
    )
    save_workload: Path | None = option(
        "--save-workload", "DIR", "Save the most expensive statements as a workload.", convert=Path
    )
    yes: bool = flag("--yes", "Do not ask for confirmation.", needs=("--explain", "--explain-as", "--save-workload"))


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Repeated windows."""

    HEADING: ClassVar[str] = "Live view"

    watch: bool = flag("--watch", "Repeat the measurement and show it live.")
    plain: bool = flag("--plain", "With --watch: print one line per window.", needs=("--watch",))
    json_lines: bool = flag(
        "--json-lines", "With --watch: print one JSON document per window.", needs=("--watch",), excludes=("--plain",)
    )
    count: int | None = whole_number(
        "--count", "N", "With --watch: end after N windows.", low=1, high=1_000_000, needs=("--watch",)
    )


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `queries`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(
            words=("--watch",),
            refuses=(
                *("--columns", "--by", "--stacks", "--explain", "--explain-as", "--save-workload", "-o", "--json"),
                *("--no-save", "--label"),
            ),
        ),
    )

    pid: str | None = server_pid()
    only: bool = only()
    duration: float = duration(10.0)
    max_cost: float | None = max_cost("the server")
    top: int = top("Statements to print.")
    columns: str | None = option(
        "--columns", "NAMES", "Columns to print, such as cpu,p50,p99,run-queue,row-lock,disk; waits: all waits."
    )
    by: str | None = option(
        "--by", "WHAT", "Print one row per user, host, account or database.", excludes=("--columns",)
    )
    method: MethodOptions = group(MethodOptions)
    samples: SampleOptions = group(SampleOptions)
    server: ServerOptions = group(ServerOptions)
    energy: EnergyOptions = group(EnergyOptions)
    watching: WatchOptions = group(WatchOptions)
    outputs: Outputs = output_files(*TABLES, *STACKS)
    saving: Saving = group(Saving)


def _agree(note: str, yes: bool) -> None:
    """Print the note on stderr and ask on a terminal. Raise UsageError without a terminal, Declined after a no."""
    print_text(f"note: {note}", error=True)
    if not yes:
        remedy = "add --yes, or leave out --explain, --explain-as and --save-workload"
        confirm("Continue?", without_terminal=remedy, declined="nothing was measured")


def command(options: Options) -> None:
    """Trace the statements of a server, save and print."""
    columns, by, server = options.columns, options.by, options.server
    method, samples, watching = options.method, options.samples, options.watching
    if watching.watch and method.method == "samples":
        raise UsageError("--watch supports only probes", "leave out --method samples")
    if method.method == "samples":
        options.refuse_without_effect("with --method samples", ("--max-cost",))
    if not method.stacks:
        check_kinds(options.outputs, TABLES, "a run without --stacks")
    saving = options.saving if watching.watch else check_saving(options.saving, options.outputs)
    folder = None
    if samples.save_workload is not None:
        folder = Path(os.path.realpath(samples.save_workload))  # Path.resolve raises on circular links
        _check_folder(folder, samples.save_workload)
    from powerprof.queries import askers, session
    from powerprof.report.document import View
    from powerprof.report.statement_tables import columns_of

    if columns is not None:
        columns_of(columns)
    if by is not None:
        askers.parse_grouping(by)

    request = session.QueriesRequest(
        pid=options.pid,
        only=options.only,
        server_url=server.server,
        socket=server.socket,
        defaults_file=server.defaults_file,
        duration_s=options.duration,
        energy=options.energy.request,
        method=method.method,
        stacks=method.stacks,
        explain=samples.explain or samples.explain_as is not None,
        explain_as=samples.explain_as,
        workload=folder,
        max_cost=cost_bound(options.max_cost),
    )
    if watching.watch:
        _watch(request, watching, saving.runs_dir)
        return
    result = session.run(request, progress_printer(saving), lambda note: _agree(note, samples.yes))
    next_step, unwritten = None, None
    if folder is not None and result.workload is not None:
        try:
            _write(folder, result.workload)
        except PowerprofError as error:
            unwritten = error  # raised after the run is saved
        else:
            compare = command_line("compare as-is changed --workloads {}", folder.parent)
            next_step = f"The workload is in {folder}/workload.toml. Compare it with a change: {compare}"
    deliver(result.record, "queries", saving, view=View(top=options.top, columns=columns, by=by), next_step=next_step)
    if unwritten is not None:
        raise unwritten


def _check_folder(place: Path, folder: Path) -> None:
    """Raise UsageError if a folder cannot hold a new workload, PowerprofError if it cannot be written."""
    from powerprof.queries.workload_file import check_workload_name
    from powerprof.report.files import check_output

    check_workload_name(place.name)
    if os.path.lexists(folder) and not place.is_dir():
        raise UsageError(f"--save-workload {folder} is not a folder", "name another one")
    if place.is_dir():
        _check_empty(place, folder)
    if not place.parent.is_dir():
        raise UsageError(f"--save-workload {folder}: no such directory {place.parent}", "create it first")
    try:
        check_output(str((place if place.is_dir() else place.parent) / "workload.toml"))
    except PowerprofError as error:
        raise PowerprofError(f"--save-workload {folder}: {error.message}", error.hint) from error


def _check_empty(place: Path, folder: Path) -> None:
    """Raise UsageError unless a folder is empty and belongs to the caller."""
    from powerprof.system.caller import caller
    from powerprof.system.folders import Folder

    try:
        with Folder.open(place) as existing:
            is_own, names = existing.stat().st_uid == caller().uid, existing.names()
    except OSError as error:
        raise PowerprofError(f"--save-workload {folder}: {reason_of(error)}", "name a new folder") from error
    if names or not is_own:
        reason = "is not empty" if names else "belongs to another account"
        raise UsageError(f"--save-workload: {folder} {reason}", "name a new folder")


def _write(folder: Path, text: str) -> None:
    """Write workload.toml as the caller. Raises PowerprofError.

    Only the caller may read it, since it contains values of clients.
    """
    from powerprof.system.acting import as_caller
    from powerprof.system.folders import Folder

    try:
        with as_caller(), Folder.open(folder, make=True) as place:
            place.write("workload.toml", text.encode())
    except OSError as error:
        raise PowerprofError(
            f"cannot write {folder}/workload.toml ({reason_of(error)})",
            "measure again with --save-workload in another place",
        ) from error


def _watch(request: QueriesRequest, watching: WatchOptions, runs_dir: Path | None) -> None:
    """Measure and show until q, an interrupt or the last window."""
    with StatementMonitor(request, print_progress) as monitor:
        windows = islice(monitor.intervals(), watching.count)
        if watching.json_lines:
            print_lines(
                (window for window in windows if window is not None),
                None,
                lambda window: json.dumps(msgspec.to_builtins(window), ensure_ascii=True),
            )
        elif not has_screen(watching.plain, watching.json_lines):
            print_lines(windows, QUERIES_PLAIN_HEAD, lambda window: queries_plain_line(window, line_width()))
        else:
            history, title = StatementHistory(), "powerprof · queries"
            LiveView(
                history,
                lambda kept, view, wide, high: draw_queries_screen(kept, view, title, wide, high),
                QUERIES_SORTS,
                lambda: save_run(runs_dir, "queries", history.last) if history.last else "nothing to save yet",
            ).run(windows)
