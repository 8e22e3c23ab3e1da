# SPDX-License-Identifier: Apache-2.0
"""The three tiles above the fold: what it costs, how fast it is, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

from powerprof import text
from powerprof.experiment.judge.answer import direction
from powerprof.experiment.judge.cost import Finding, claims, delta_of
from powerprof.experiment.records import Comparison, LoadRun, Metric
from powerprof.records import IdleRun, RunMetric
from powerprof.report.html.figures import figure
from powerprof.report.tables import labels
from powerprof.report.tables.phases import shown_phases
from powerprof.report.tables.table import Places

_COST = ("joules_per_query", "joules_per_execution", "watts", "c0_ms_per_query_server", "cpu_s_per_execution")
_SPEED = ("latency_p95_ms", "time_s_per_execution", "time_to_solution_s")
_ADDED = {"wakeups_hz": ("wake-ups", "/s", 1), "c0_percent": ("C0", "points", 2)}
_FINDINGS: dict[Finding, str] = {
    "costs": "beyond the host's own drift",
    "nothing": "which may be nothing",
    "drift": "but the host itself drifted as far",
    "single": "one window a phase: no interval",
}


@dataclass(frozen=True)
class Tile:
    """A figure with what it is, and a line about it; `look` colours a verdict."""

    heading: str
    value: Markup
    note: str
    look: str = ""


def tiles_of(record: object, places: Places) -> list[Tile]:
    """The tiles of a record; none for those whose answer is no figure."""
    if isinstance(record, Comparison):
        return _comparison(record, places)
    if isinstance(record, LoadRun):
        return _load(record, places)
    if isinstance(record, IdleRun):
        return _idle(record, places)
    return []


M = TypeVar("M", Metric, RunMetric)


def _chosen(metrics: Sequence[M]) -> Iterator[tuple[int, M, str]]:
    """Of cost and of speed the figure that says most, with its place and its heading."""
    known = {metric.name: index for index, metric in enumerate(metrics)}
    for names in (_COST, _SPEED):
        index = next((known[name] for name in names if name in known), None)
        if index is not None:
            metric = metrics[index]
            yield index, metric, f"{labels.metric(metric.name)}{_kind(metric)}"


def _kind(metric: Metric | RunMetric) -> str:
    return f", {metric.kind}" if metric.unit in ("J", "W", "J·s") else ""


def _comparison(record: Comparison, places: Places) -> list[Tile]:
    tiles = []
    for index, metric, heading in _chosen(record.metrics):
        verdict = direction(metric.name, metric.verdict)
        value = figure(places.figure(f"/metrics/{index}/difference/percent", 1, "%", sign=True))
        said = verdict if metric.verdict != "inconclusive" else "no difference is sure"
        tiles.append(Tile(heading, value, f"B beside A: {said}", verdict))
    pairs = record.blocks_count // 2
    doubts = len(record.verdict.doubts)
    note = f"{doubts} reason{'s' if doubts > 1 else ''} to doubt it, below" if doubts else "no serious threat was found"
    count = Markup("{} pairs").format(pairs) if pairs else Markup("not in pairs")
    return [*tiles, Tile("Confidence, 95 % interval", count, note, "worse" if doubts else "")]


def _load(record: LoadRun, places: Places) -> list[Tile]:
    tiles = []
    for index, metric, heading in _chosen(record.metrics):
        shown = labels.shown(metric.unit, [metric.estimate.mean])
        at = f"/metrics/{index}/estimate"
        value = figure(places.figure(f"{at}/mean", shown.decimals, shown.unit, scale=shown.factor))
        half = text.half_width(metric.estimate)
        note = "one window: no interval" if half is None else f"± {text.number(half * shown.factor, shown.decimals)}"
        tiles.append(Tile(heading, value, note))
    if not tiles:
        return []
    count = record.options.windows_count
    return [
        *tiles,
        Tile("Confidence, 95 % interval", Markup("{} windows").format(text.count(count)), "by their scatter"),
    ]


def _idle(record: IdleRun, places: Places) -> list[Tile]:
    """What the last phase adds to the first, and whether that is sure."""
    shown = shown_phases(record)
    if len(shown) < 2:
        return []
    first, last = record.phases[shown[0]], record.phases[shown[-1]]
    tiles = []
    for claim in claims(record, first, last):
        heading, unit, digits = _ADDED[claim.metric]
        delta = delta_of(record, first.name, last.name, claim.metric)
        index = record.deltas.index(delta) if delta is not None else 0
        value = figure(places.figure(f"/deltas/{index}/difference/mean", digits, unit, sign=True))
        half = text.half_width(claim.difference)
        spread = "" if half is None else f"± {text.number(half, digits)}, "
        tiles.append(Tile(f"{heading}, added", value, f"{spread}{_FINDINGS[claim.finding]}"))
    windows = max((len(phase.windows) for phase in record.phases), default=0)
    if not tiles:
        return []
    return [*tiles, Tile("Confidence, 95 % interval", Markup("{} windows").format(windows), "in each phase")]
