# SPDX-License-Identifier: Apache-2.0
"""Where does a process's CPU time go? Every CPU is sampled; with --event page-faults, who takes them is counted.

Each row is a function's share of all CPU time of this host, with the interval that sampling leaves. Sampling wakes the
CPUs: no energy figure comes from such a window.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from powerprof.cli.options import (
    Csv,
    CsvBom,
    Duration,
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

Event = Annotated[str, typer.Option("--event", metavar="NAME", help="What is counted: cpu-clock or page-faults.")]
Frequency = Annotated[
    int, typer.Option("--frequency", metavar="HZ", min=1, max=10_000, help="Samples a second and CPU.")
]
By = Annotated[str | None, typer.Option("--by", metavar="WHAT", help="Rows by function, stack or thread.")]


def command(
    *,
    context: typer.Context,
    target: TargetOptions,
    duration: Duration = 10.0,
    event: Event = "cpu-clock",
    frequency: Frequency = 99,
    by: By = None,
    top: Top = 20,
    lines: Lines = False,
    given: Given,
    html: Html = None,
    csv: Csv = None,
    csv_bom: CsvBom = None,
    profiles: ProfileOptions,
    saving: Saving,
) -> None:
    """Sample, save, print."""
    files = {**files_of(profiles, html=html, csv=csv), "csv-bom": csv_bom}
    saving = check(saving, files)
    from powerprof.attribution.profile import profile_target
    from powerprof.attribution.requests import ProfileRequest
    from powerprof.report import profile
    from powerprof.report.kinds import check_files

    check_files("powerprof.oncpu/1", [kind for kind, place in files.items() if place is not None])
    check_by(by, profile.BY, sources=lines, default="function")
    if event == "page-faults":
        refuse_without_effect(context, "with --event page-faults, which counts each", ("frequency",))
    request = ProfileRequest(duration_s=duration, event=event, frequency_hz=frequency, settle=True)
    record = profile_target(target, given, request, say_to(saving))
    deliver(
        record,
        "profile",
        saving,
        files,
        lines=partial(profile.render_terminal, by=by or "function", top=top, sources=lines),
    )
