# SPDX-License-Identifier: Apache-2.0
"""The terminal report of whatever `powerprof attribute` found."""

from __future__ import annotations

from typing import Any

from powerprof.attribution.functions import FunctionProfile
from powerprof.attribution.oncpu import OnCpuProfile
from powerprof.attribution.sleepers import SleepsProfile, WakersProfile
from powerprof.errors import UsageError
from powerprof.report.terminal import attribution, functions, oncpu, sleepers

_ON_CPU = ("function", "stack", "thread")


def check_by(by: str | None, *, on_cpu: bool, functions: bool, dtrace: bool = False) -> None:
    """Refuse a `--by` that this kind of report does not have. Raises UsageError."""
    if by is not None and dtrace:
        raise UsageError("--by has no effect with --wakers and --sleeps", "leave it out")
    choices = _ON_CPU if on_cpu else ("function",) if functions else attribution.BY
    if by is not None and by not in choices:
        raise UsageError(f"--by {by} is not a choice here", f"one of {', '.join(choices)}")


def lines_of(record: Any, width: int, *, by: str | None, top: int) -> list[str]:
    """Lines for a terminal of `width` columns."""
    if isinstance(record, OnCpuProfile):
        return oncpu.lines(record, width, by=by or "function", top=top)
    if isinstance(record, FunctionProfile):
        return functions.lines(record, width, top=top)
    if isinstance(record, WakersProfile):
        return sleepers.wakers_lines(record, width, top=top)
    if isinstance(record, SleepsProfile):
        return sleepers.sleeps_lines(record, width, top=top)
    return attribution.lines(record, width, by=by or "stack", top=top)
