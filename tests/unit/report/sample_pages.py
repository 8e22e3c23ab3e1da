# SPDX-License-Identifier: Apache-2.0
"""A page of every kind of report, and how a figure on it finds its place in the record."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from powerprof.experiment.records import Arm, Comparison, TraceSummary
from powerprof.model.attribution import Attribution, StackFrame
from powerprof.report.document import Extras
from powerprof.report.exports import render_html
from tests.unit.report.sample_records import (
    attribution,
    comparison,
    diagnosis,
    idle_run,
    load_run,
    on_cpu,
    sweep,
    sweep_comparison,
    timeline,
)


def at(record: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        record = record[int(name)] if isinstance(record, list) else record[name]
    return record


def traced_comparison() -> Comparison:
    """A comparison in which B has another stack, fewer wake-ups of the first stack, and more of all others."""
    a = attribution()
    rows = [replace(row, rate_hz=row.rate_hz * (0.4 if number == 0 else 1.6)) for number, row in enumerate(a.wakeups)]
    new = replace(rows[0], rate_hz=0.5, stack=[StackFrame(function="new", module="mariadbd", address="0x1")])
    b = replace(a, wakeups=[*rows, new])
    sides: tuple[tuple[Arm, Attribution], ...] = (("a", a), ("b", b))
    traced = [TraceSummary(arm=arm, members={"server": 4711}, attribution=side) for arm, side in sides]
    return replace(comparison(), traced=traced)


PAGES: dict[str, Callable[[], tuple[msgspec.Struct, Extras]]] = {
    "comparison": lambda: (traced_comparison(), Extras()),
    "idle": lambda: (idle_run(), Extras()),
    "load": lambda: (load_run(), Extras()),
    "sweep": lambda: (sweep(), Extras()),
    "sweepcomparison": lambda: (sweep_comparison(), Extras()),
    "attribution": lambda: (attribution(), Extras(timeline=timeline())),
    "diagnosis": lambda: (diagnosis(), Extras()),
    "oncpu": lambda: (on_cpu(), Extras()),
}


@cache
def html_of(kind: str) -> str:
    record, extras = PAGES[kind]()
    return render_html(record, extras=extras)
