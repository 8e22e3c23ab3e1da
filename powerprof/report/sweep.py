# SPDX-License-Identifier: Apache-2.0
"""`powerprof sweep` for a terminal: one line a point."""

from __future__ import annotations

from collections.abc import Callable

from powerprof import text
from powerprof.experiment.sweep import Point, Sweep
from powerprof.report.labels import significant


def _metric(point: Point, name: str) -> float | None:
    return next((metric.estimate.mean for metric in point.metrics if metric.name == name), None)


def _os(point: Point, name: str) -> float | None:
    known = [value for rates in point.os if (value := getattr(rates, name)) is not None]
    return sum(known) / len(known) if known else None


_COLUMNS: tuple[tuple[str, Callable[[Point], float | None]], ...] = (
    ("queries/s", lambda p: _metric(p, "queries_hz")),
    ("p95 ms", lambda p: _metric(p, "latency_p95_ms")),
    ("C0 %", lambda p: _metric(p, "c0_percent")),
    ("usr", lambda p: _metric(p, "user_percent")),
    ("sys", lambda p: _metric(p, "system_percent")),
    ("irq", lambda p: _metric(p, "irq_percent")),
    ("wake/s", lambda p: _metric(p, "wakeups_hz")),
    ("csw/s", lambda p: _metric(p, "context_switches_hz")),
    ("wait %", lambda p: _os(p, "cpu_pressure_percent")),
    ("disk/s", lambda p: None if (r := _os(p, "disk_reads_hz")) is None else r + (_os(p, "disk_writes_hz") or 0.0)),
)


def lines(sweep: Sweep, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    name = f"{sweep.workload}:{sweep.condition.name}"
    good = [point for point in sweep.points if point.error is None]
    best = max(good, key=lambda point: _metric(point, "queries_hz") or 0.0, default=None)
    found = [f"{name} was measured at no point."]
    if best is not None:
        rate = significant(_metric(best, "queries_hz"))
        found = text.wrap(f"{name} does most at {sweep.parameter} {best.value}: {rate} queries/s.", width)
    done = f"{len(good)} of {len(sweep.values)} points"
    version = sweep.server.get("version")
    found += text.wrap(" · ".join(part for part in (done, str(version) if version else "") if part), width)
    found.append("")
    rows = [[sweep.parameter, *(title for title, _ in _COLUMNS)]]
    for point in sweep.points:
        cells = [point.error] if point.error else [_short(value(point)) for _, value in _COLUMNS]
        rows.append([str(point.value), *cells])
    plain = [row for row in rows if len(row) > 2]
    found += [text.cut(line, width) for line in text.columns(plain, left=1, gap=1)]
    found += [line for row in rows if len(row) == 2 for line in text.wrap(f"{row[0]}: {row[1]}", width)]
    if any(_os(point, "cpu_pressure_percent") is not None for point in good):
        found += ["", "wait: share of time in which a task was runnable and had no CPU."]
    if sweep.interrupted:
        said = f" {sweep.id}" if sweep.id else ""
        found += ["", f"Not finished: go on with powerprof sweep --resume{said or ' RUN'}"]
    return found


def _short(value: float | None) -> str:
    if value is None:
        return text.UNKNOWN
    return text.number(value, 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2)
