# SPDX-License-Identifier: Apache-2.0
"""How long do a process's threads sleep and wait for a CPU, and who wakes them?

Sleeps are summed in the kernel by thread and by the state in which the thread waits; a timer or a device that wakes it
is an interrupt. --backend dtrace follows one process, its sleeps in one window and its wakings in a second one.
"""

from __future__ import annotations

from functools import partial

from powerprof.cli.options import Backend, Duration, Given, Saving, TargetOptions, Top
from powerprof.cli.output import check, deliver, say_to


def command(
    *,
    target: TargetOptions,
    duration: Duration = 10.0,
    backend: Backend = "auto",
    top: Top = 20,
    given: Given,
    saving: Saving,
) -> None:
    """Trace, save, print."""
    saving = check(saving)
    from powerprof.attribution.offcpu import trace_off_cpu
    from powerprof.attribution.requests import OffCpuRequest
    from powerprof.report import offcpu

    request = OffCpuRequest(duration_s=duration, backend=backend, settle=True)
    record = trace_off_cpu(target, given, request, say_to(saving))
    deliver(record, "offcpu", saving, lines=partial(offcpu.render_terminal, top=top))
