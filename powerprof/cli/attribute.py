# SPDX-License-Identifier: Apache-2.0
"""Find the function and thread that wake the CPUs. Every idle exit of a process has a stack.

--pid takes process ids and names (mysqld also finds mariadbd). --from needs no root. Related commands: profile (CPU
time by function), functions (calls and self time), offcpu (sleeps, and the wakers that end them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from powerprof.cli.options import (
    ENERGY,
    CommandOptions,
    EnergyOptions,
    ProfileOptions,
    Saving,
    check_by,
    duration,
    files_of,
    html_file,
    source_lines,
    top,
)
from powerprof.cli.output import check_saving, deliver, progress_printer
from powerprof.cli.parameters import group, option, whole_number
from powerprof.cli.targets import ServerOptions, TargetOptions
from powerprof.system.errors import UsageError

_MEASURING = (*("duration", "stack_buffer", *ENERGY), *("server", "socket", "defaults_file", "no_save"))


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """The content of the report, and its capture."""

    HEADING: ClassVar[str] = "Report"

    by: str | None = option(
        "--by", "WHAT", "Group rows by stack, function, thread, device or unit (service, container, pod)."
    )
    top: int = top()
    lines: bool = source_lines()
    from_run: str | None = option("--from", "RUN", "Analyse a saved capture again.")


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of `attribute`."""

    target: TargetOptions = group(TargetOptions)
    duration: float = duration(10.0)
    view: ViewOptions = group(ViewOptions)
    server: ServerOptions = group(ServerOptions)
    energy: EnergyOptions = group(EnergyOptions)
    stack_buffer: int = whole_number(
        "--stack-buffer", "KIB", "Ring buffer for stacks in KiB, a power of two.", default=4096, low=4, high=1 << 20
    )
    html: str | None = html_file()
    profiles: ProfileOptions = group(ProfileOptions)
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Trace the wake-ups, or read a saved capture; then save and print them."""
    target, view, saving = options.target, options.view, options.saving
    files = files_of(options.profiles, html=options.html)
    if view.from_run is not None:
        options.refuse_without_effect("with --from", _MEASURING)
        saving = replace(saving, no_save=True)
    saving = check_saving(saving, files, reads_runs=True)
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    if view.by is not None or view.lines:
        from powerprof.report.attribution import BY

        check_by(view.by, BY, lines=view.lines)
    if view.from_run is None:
        request = AttributeRequest(
            duration_s=options.duration,
            stack_buffer_kib=options.stack_buffer,
            energy=options.energy.request,
            settle=True,
        )
        result = attribute.attribute(target, options.server, request, progress_printer(saving))
    elif target.pid or target.cgroup or target.system:
        raise UsageError("--pid, --cgroup and --system have no effect with --from", "leave them out")
    else:
        result = attribute.replay(view.from_run, saving.runs_dir)
    # These imports come after the window, which they would delay.
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
