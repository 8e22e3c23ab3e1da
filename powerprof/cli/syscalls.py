# SPDX-License-Identifier: Apache-2.0
"""What does a process ask of the kernel, which files does it read and write, and how long does it wait for locks?

Counted in the kernel: system calls by kind with their errors and times; reads, writes and syncs in operations and bytes
by file and thread (the page cleaner, the log writer); and waits in futex by thread.
"""

from __future__ import annotations

from functools import partial

from powerprof.cli.options import Duration, Given, Saving, TargetOptions, Top
from powerprof.cli.output import check, deliver, say_to


def command(*, target: TargetOptions, duration: Duration = 10.0, top: Top = 20, given: Given, saving: Saving) -> None:
    """Count, save, print."""
    saving = check(saving)
    from powerprof.attribution.requests import SyscallRequest
    from powerprof.attribution.syscalls import count_syscalls
    from powerprof.report.offcpu import render_syscalls_terminal

    request = SyscallRequest(duration_s=duration, settle=True)
    record = count_syscalls(target, given, request, say_to(saving))
    deliver(record, "syscalls", saving, lines=partial(render_syscalls_terminal, top=top))
