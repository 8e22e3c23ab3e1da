# SPDX-License-Identifier: Apache-2.0
"""A page of every kind of report, and how a figure on it finds its place in the record."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from powerprof.report.exports import render_html
from powerprof.report.html.page import Extras
from powerprof.report.stacks import modules_of, stacks_of
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


def compare_extras() -> Extras:
    rows = attribution().wakeups
    a = stacks_of(rows, "rate_hz")
    b = [(frames, value * (0.4 if number == 0 else 1.6)) for number, (frames, value) in enumerate(a)]
    return Extras(stacks=a, stacks_b=[*b, (("sql/main", "new"), 0.5)], unit="idle exits/s", modules=modules_of(rows))


PAGES: dict[str, Callable[[], tuple[msgspec.Struct, Extras]]] = {
    "comparison": lambda: (comparison(), compare_extras()),
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
