# SPDX-License-Identifier: Apache-2.0
"""Which function, on which thread, wakes the CPUs? Stacks to blame for every idle exit of a process.

--pid takes process ids and names (mysqld finds mariadbd too); --system looks at every process; --from analyses a
saved capture again, without root. Other questions have commands of their own: profile (where CPU time goes), functions
(calls and self time), offcpu (sleeps, and who ends them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer

from powerprof.cli.options import (
    ENERGY,
    Duration,
    EnergyOptions,
    Given,
    Html,
    Lines,
    ProfileOptions,
    Saving,
    TargetOptions,
    Top,
    check_by,
    files_of,
    refuse_without_effect,
)
from powerprof.cli.output import check, deliver, say_to
from powerprof.system.errors import UsageError

RingKib = Annotated[
    int,
    typer.Option("--stack-buffer", metavar="KIB", min=4, max=1 << 20, help="Ring buffer for stacks, a power of two."),
]
_MEASURING = (*("duration", "stack_buffer", *ENERGY), *("server", "socket", "defaults_file", "no_save"))


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """What the report shows, and of which capture."""

    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="WHAT", help="Rows by stack, function, thread, device or unit (service, container, pod)."
        ),
    ] = None
    top: Top = 20
    lines: Lines = False
    from_run: Annotated[str | None, typer.Option("--from", metavar="RUN", help="Analyse a saved capture again.")] = None


def command(
    *,
    context: typer.Context,
    target: TargetOptions,
    duration: Duration = 10.0,
    view: ViewOptions,
    given: Given,
    energy: EnergyOptions,
    stack_buffer: RingKib = 4096,
    html: Html = None,
    profiles: ProfileOptions,
    saving: Saving,
) -> None:
    """Trace, save, analyse, print."""
    files = files_of(profiles, html=html)
    if view.from_run is not None:
        refuse_without_effect(context, "with --from, which measures nothing", _MEASURING)
        saving = replace(saving, no_save=True)
    saving = check(saving, files, reads_runs=True)
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    if view.by is not None or view.lines:
        from powerprof.report.attribution import BY

        check_by(view.by, BY, sources=view.lines)
    if view.from_run is None:
        request = AttributeRequest(
            duration_s=duration, stack_buffer_kib=stack_buffer, energy=energy.request, settle=True
        )
        result = attribute.attribute(target, given, request, say_to(saving))
    elif target.pid or target.cgroup or target.system:
        raise UsageError("--from analyses a saved capture: it takes no target", "leave out all but --from and outputs")
    else:
        result = attribute.replay(view.from_run, saving.runs_dir)
    # What is imported here does not delay the window.
    from powerprof.report import attribution
    from powerprof.report.exports import extras_of_capture

    deliver(
        result.record,
        "attribute",
        saving,
        files,
        lines=partial(attribution.render_terminal, by=view.by or "stack", top=view.top, sources=view.lines),
        raw=None if saving.no_save else result.files(),
        extras=partial(extras_of_capture, result.capture),
    )
