# SPDX-License-Identifier: Apache-2.0
"""CSV for spreadsheets, one table a record. Text that a spreadsheet would run as a formula is disarmed.

A cell of text that begins with = + - @ or a control character gets an apostrophe before it (OWASP, CSV Injection):
process and function names come from outside. Figures are exact and never changed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from powerprof.attribution.functions import FunctionProfile, FunctionRow
from powerprof.attribution.offcpu import OffCpuProfile, OffCpuThread
from powerprof.attribution.syscalls import SyscallProfile, SyscallRow
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.experiment.sweep_comparison import SweepComparison
from powerprof.experiment.sweep_rounds import Sweep
from powerprof.experiment.sweep_until import Saturation, Trial
from powerprof.model.attribution import Attribution
from powerprof.model.records import Run
from powerprof.report.metrics import comparison_table, load_system_table, load_table, sweep_table, system_table
from powerprof.report.phases import phases_table
from powerprof.report.stacks import frames_of
from powerprof.report.table import Figure, JudgedCell, Places, Table, TableRow
from powerprof.system.files import disarmed

Cell = str | float | int | None
Line = Sequence[Cell]
_WAKEUP = "mechanism origin count rate_hz wakings_count period_ms c0_ms pid tid thread detail waker_pid waker stack"


def _safe(cell: Cell) -> str | float | int:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return disarmed(cell)
    return cell


def written(lines: Iterable[Line]) -> str:
    """The lines as RFC 4180 asks, each as long as the head, unknown cells empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    columns = 0
    for line in lines:
        columns = columns or len(line)
        cells = [*line, *[None] * (columns - len(line))]
        writer.writerow([_safe(cell) for cell in cells])
    return out.getvalue()


def _exact(row: TableRow, *keys: str) -> Iterator[Cell]:
    """The figures of a row, each with the ends of its interval."""
    for key in keys:
        shown = row.cells.get(key)
        yield from shown.exact if isinstance(shown, Figure) else (None, None, None)


def _column(table: Table, key: str) -> Iterator[Line]:
    """A line a row of one column: name, unit, kind, value, low, high."""
    for row in table.of("csv").rows:
        if isinstance(row.cells.get(key), Figure):
            yield [row.key, row.exact_unit, row.kind, *_exact(row, key)]


def comparison(record: Comparison) -> Iterator[Line]:
    """A line a metric, with the values of each pair."""
    pairs = max((len(side.values) for metric in record.metrics for side in (metric.a, metric.b)), default=0)
    yield [
        *("metric", "unit", "kind", "a", "b", "a_mean", "a_low", "a_high", "b_mean", "b_low", "b_high"),
        *("b_minus_a", "low", "high", "percent", "verdict"),
        "minimum_detectable_percent",
        *(f"{arm}_{number}" for arm in "ab" for number in range(1, pairs + 1)),
    ]
    places = Places(record)
    rows = [*comparison_table(record, places).rows, *system_table(record, places).rows]
    for row, metric in zip(rows, [*record.metrics, *record.system], strict=True):
        judged = row.cells["verdict"]
        yield [
            *(row.key, row.exact_unit, row.kind, record.a.name, record.b.name),
            *_exact(row, "a", "b", "difference"),
            next(_exact(row, "percent")),
            *((judged.verdict, judged.detectable.value) if isinstance(judged, JudgedCell) else ()),
            *(value for side in (metric.a, metric.b) for value in [*side.values, *[None] * (pairs - len(side.values))]),
        ]


def run(record: Run) -> Iterator[Line]:
    """A line a figure of each phase, its energy and what woke the CPUs."""
    places = Places(record)
    yield ["phase", "figure", "unit", "kind", "value", "low", "high", "mechanism", "process", "thread"]
    if isinstance(record, LoadRun):
        for table in (load_table(record, places), load_system_table(record, places)):
            yield from (["", *line] for line in _column(table, "mean"))
    table = phases_table(record, places, range(len(record.phases))) if record.phases else Table([], [])
    for number, phase in enumerate(record.phases):
        yield from ([phase.name, *line] for line in _column(table, str(number)))
        for reading in phase.energy:
            where = f"{reading.source} {reading.domain}"
            yield [phase.name, where, "W", reading.kind, reading.watts, reading.low_watts, reading.high_watts]
            yield [phase.name, where, "J", reading.kind, reading.joules]
        for cause in phase.causes:
            figure: Line = (f"wakeups {cause.name or ''}".rstrip(), "1/s", "measured", cause.wakeups_hz, None, None)
            yield [phase.name, *figure, cause.mechanism, cause.process, cause.thread]


def sweep(record: Sweep) -> Iterator[Line]:
    """A line a metric of each point."""
    yield [record.parameter, "metric", "unit", "kind", "mean", "low", "high", "error"]
    table = sweep_table(record, Places(record))
    for number, point in enumerate(record.points):
        value = point.value if isinstance(point.value, int | float | str) else str(point.value)
        if point.error is not None:
            yield [value, *[None] * 6, point.error]
        yield from ([value, *line] for line in _column(table, str(number)) if line[3] is not None)


def sweep_comparison(record: SweepComparison) -> Iterator[Line]:
    """A line a metric of each value that both sweeps measured."""
    yield [
        *(record.parameter, "parted", "metric", "unit", "kind", "a", "b", "a_mean", "a_low", "a_high"),
        *("b_mean", "b_low", "b_high", "b_minus_a", "low", "high", "percent", "verdict"),
    ]
    for point in record.points:
        for metric in point.metrics:
            yield [
                *(str(point.value), str(point.parted), metric.name, metric.unit, metric.kind),
                *(record.a.name, record.b.name),
                *(metric.a.mean, *(metric.a.ci95 or (None, None))),
                *(metric.b.mean, *(metric.b.ci95 or (None, None))),
                *(metric.difference.b_minus_a, *(metric.difference.ci95 or (None, None))),
                *(metric.difference.percent, metric.verdict),
            ]


def attribution(record: Attribution) -> Iterator[Line]:
    """A line a thread, stack, origin and mechanism."""
    yield _WAKEUP.split()
    for row in record.wakeups:
        who = (row.thread.pid, row.thread.tid, row.thread.label, row.detail)
        waker = (row.waker.pid, row.waker.comm) if row.waker else (None, None)
        figures = (row.count, row.rate_hz, row.wakings_count, row.period_ms, row.c0_ms)
        yield [row.mechanism, row.origin, *figures, *who, *waker, " < ".join(reversed(frames_of(row)[1:]))]


def _fields(rows: Iterable[msgspec.Struct], names: Sequence[str]) -> Iterator[Line]:
    """A line a row: what the record has under these names."""
    yield names
    for row in rows:
        yield [getattr(row, name) for name in names]


def functions(record: FunctionProfile) -> Iterator[Line]:
    """A line a probed function."""
    return _fields(record.functions, FunctionRow.__struct_fields__)


def off_cpu(record: OffCpuProfile) -> Iterator[Line]:
    """A line a thread; states of the kernel are in the JSON alone."""
    return _fields(record.threads, [name for name in OffCpuThread.__struct_fields__ if name != "states"])


def system_calls(record: SyscallProfile) -> Iterator[Line]:
    """A line a thread and kind of call."""
    return _fields(record.calls, SyscallRow.__struct_fields__)


def saturation(record: Saturation) -> Iterator[Line]:
    """A line a window: what was offered, what came of it, and whether the limit held."""
    yield ["condition", *Trial.__struct_fields__, "limit", "at_most", "unit"]
    limit = (record.limit.metric, record.limit.at_most, record.limit.unit)
    for one in (record.a, record.b):
        if one is not None:
            yield from ([one.name, *msgspec.structs.astuple(trial), *limit] for trial in one.trials)
