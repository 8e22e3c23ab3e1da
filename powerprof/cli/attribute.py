# SPDX-License-Identifier: Apache-2.0
"""Which function, on which thread, wakes the CPUs? Stacks to blame for every idle exit of a process.

--pid takes process ids and names (mysqld finds mariadbd too); --system looks at every process; --from analyses a
saved capture again, without root. Instead of wake-ups, --on-cpu samples where the running time goes (or, with
--event page-faults, who takes them), and --functions 'handle_slave*' counts calls and self time by probes. Where
exceptions can pass, these are placed where a function is left, which harms nothing; --allow-unwinding-risk takes the
cheaper return probes, and then an exception that passes one ends the process. With DTrace, --wakers tells who wakes the
target's threads, and --sleeps how long they sleep and wait for a CPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer

from powerprof.cli.options import Duration, EnergyOptions, Given, Html, ProfileOptions, Saving, files_of
from powerprof.cli.output import check, deliver, say_to
from powerprof.cli.typed import refuse_without_effect
from powerprof.errors import UsageError

RingKib = Annotated[
    int,
    typer.Option("--stack-buffer", metavar="KIB", min=4, max=1 << 20, help="Ring buffer for stacks, a power of two."),
]


_MEASURING = (
    *("duration", "stack_buffer", "energy_source", "meter_log"),
    *("server", "socket", "defaults_file", "no_save"),
)


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Whose idle exits."""

    pid: Annotated[
        list[str] | None, typer.Option("--pid", metavar="ID|NAME", help="Process ids or names, with commas between.")
    ] = None
    cgroup: Annotated[
        str | None, typer.Option("--cgroup", metavar="PATH|UNIT", help="All processes of a cgroup or unit.")
    ] = None
    system: Annotated[bool, typer.Option("--system", help="Every process of this host.")] = False


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """What the report shows, and of which capture."""

    by: Annotated[
        str | None, typer.Option("--by", metavar="WHAT", help="Rows by stack, function, thread or device.")
    ] = None
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, max=100_000, help="Rows to print.")] = 20
    from_run: Annotated[str | None, typer.Option("--from", metavar="RUN", help="Analyse a saved capture again.")] = None


@dataclass(frozen=True, kw_only=True)
class Instead:
    """Other questions than who wakes the CPUs."""

    on_cpu: Annotated[bool, typer.Option("--on-cpu", help="Sample where the target runs instead.")] = False
    event: Annotated[
        str, typer.Option("--event", metavar="NAME", help="What --on-cpu counts: cpu-clock (default) or page-faults.")
    ] = "cpu-clock"
    frequency: Annotated[
        int, typer.Option("--frequency", metavar="HZ", min=1, max=10_000, help="Samples a second and CPU of --on-cpu.")
    ] = 99
    functions: Annotated[
        str | None,
        typer.Option(
            "--functions", metavar="GLOB", help="Count calls of these functions instead: GLOB or MODULE:GLOB."
        ),
    ] = None
    max_functions: Annotated[
        int,
        typer.Option("--max-functions", metavar="N", min=1, max=1022, help="Most functions that --functions probes."),
    ] = 200
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="Of --functions: auto (BPF, else DTrace), bpf or dtrace.")
    ] = "auto"
    allow_unwinding_risk: Annotated[
        bool,
        typer.Option(
            "--allow-unwinding-risk",
            help="Return probes for --functions: cheaper, but an exception that passes one ENDS THE PROCESS.",
        ),
    ] = False
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before what --allow-unwinding-risk allows.")] = False
    wakers: Annotated[bool, typer.Option("--wakers", help="Who wakes the target's threads, from where (DTrace).")] = (
        False
    )
    sleeps: Annotated[
        bool, typer.Option("--sleeps", help="How long its threads sleep, and wait for a CPU once woken (DTrace).")
    ] = False


def agree(danger: str, yes: bool) -> None:
    """Say on stderr what can happen to the target, and ask on a terminal. Raises UsageError where it is not agreed."""
    typer.echo(f"warning: {danger}", err=True)
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("nobody is there to agree to that", "add --yes, or leave out --allow-unwinding-risk")
    try:
        agreed = typer.confirm("Place these probes?", err=True)
    except typer.Abort:  # end of input
        agreed = False
    if not agreed:
        raise UsageError("not agreed: nothing was probed", "leave out --allow-unwinding-risk")


def command(
    *,
    context: typer.Context,
    target: TargetOptions,
    duration: Duration = 10.0,
    view: ViewOptions,
    instead: Instead,
    given: Given,
    energy: EnergyOptions,
    stack_buffer: RingKib = 4096,
    html: Html = None,
    profiles: ProfileOptions,
    saving: Saving,
) -> None:
    """Trace, save, analyse, print."""
    files = files_of(profiles, html=html)
    _refuse(context, view, instead)
    if view.from_run is not None:
        saving = replace(saving, no_save=True)
    saving = check(saving, files, reads_runs=True)
    from powerprof.attribution import session
    from powerprof.report.documents.kinds import check_files
    from powerprof.report.exports.beside import extras_of_capture
    from powerprof.report.terminal.targets import check_by, lines_of

    on_cpu, functions = instead.on_cpu, instead.functions is not None
    dtrace = instead.wakers or instead.sleeps
    if not dtrace:
        schema = "oncpu" if on_cpu else "functions" if functions else "attribution"
        check_files(f"powerprof.{schema}/1", [kind for kind, target in files.items() if target is not None])
    check_by(view.by, on_cpu=on_cpu, functions=functions, dtrace=dtrace)
    request = session.AttributionRequest(
        words=tuple(target.pid or ()),
        cgroup=target.cgroup,
        system=target.system,
        duration_s=duration,
        stack_buffer_kib=stack_buffer,
        server_url=given.server,
        socket=given.socket,
        defaults_file=given.defaults_file,
        energy_source=energy.energy_source,
        meter_log=energy.meter_log,
        from_run=view.from_run,
        runs_dir=saving.runs_dir,
        on_cpu=instead.on_cpu,
        event=instead.event,
        frequency_hz=instead.frequency,
        functions=instead.functions,
        max_functions=instead.max_functions,
        backend=instead.backend,
        unwinding_risk=instead.allow_unwinding_risk,
        wakers=instead.wakers,
        sleeps=instead.sleeps,
        settle=True,
    )
    result = session.run(request, say_to(saving), lambda danger: agree(danger, instead.yes))
    deliver(
        result.record,
        result.kind,
        saving,
        files,
        lines=partial(lines_of, by=view.by, top=view.top),
        raw=result.files,
        extras=partial(extras_of_capture, result.capture),
    )


def _refuse(context: typer.Context, view: ViewOptions, instead: Instead) -> None:
    """Options of another question than the one that is asked. Raises UsageError."""
    if view.from_run is not None:
        refuse_without_effect(context, "with --from, which measures nothing", _MEASURING)
    if not instead.on_cpu:
        refuse_without_effect(context, "without --on-cpu", ("event", "frequency"))
    if instead.functions is None:
        refuse_without_effect(context, "without --functions", ("max_functions",))
    if instead.on_cpu or instead.functions is not None:
        other = "--on-cpu" if instead.on_cpu else "--functions"
        refuse_without_effect(context, f"with {other}", ("stack_buffer", "energy_source", "meter_log"))
    if instead.functions is not None:
        refuse_without_effect(context, "with --functions", ("server", "socket", "defaults_file"))
