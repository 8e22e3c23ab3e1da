# SPDX-License-Identifier: Apache-2.0
"""The three tiles above the fold: what it costs, how fast it is, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

from powerprof import text
from powerprof.attribution.records import Attribution
from powerprof.experiment.judge.answer import direction
from powerprof.experiment.judge.cost import Finding, claims, delta_of
from powerprof.experiment.judge.servercost import busy_before, busy_while_counted
from powerprof.experiment.records import Comparison, LoadRun, Metric
from powerprof.figures import RunMetric
from powerprof.idle_records import IdleRun
from powerprof.report.html.figures import clean, figure
from powerprof.report.tables import labels
from powerprof.report.tables.blamed import most
from powerprof.report.tables.phases import shown_phases
from powerprof.report.tables.table import Places
from powerprof.report.wording.answers import NO_BOUND_PERCENT

_COST = ("joules_per_query", "joules_per_execution", "watts", "c0_ms_per_query_server", "cpu_s_per_execution")
_SPEED = ("latency_p95_ms", "time_s_per_execution", "time_to_solution_s")
_ADDED = {"wakeups_hz": ("wake-ups", "/s", 1), "c0_percent": ("C0", "points", 2)}
_FINDINGS: dict[Finding, str] = {
    "costs": "beyond the host's own drift",
    "nothing": "which may be nothing",
    "drift": "but the host itself drifted as far",
    "single": "one window a phase: no interval",
}


# From here on the headline has a ratio, and so has its tile.
_TIMES = 1.5


@dataclass(frozen=True)
class Tile:
    """A figure with what it is, and a line about it; `look` colours a verdict, and greys what is inconclusive."""

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
    if isinstance(record, Attribution):
        return _attribution(record, places)
    return []


def _attribution(record: Attribution, places: Places) -> list[Tile]:
    """How often it wakes the CPUs, who does most of it, its energy, and whether all exits are accounted for."""
    if not record.wakeups or not record.window_s:
        return []
    mine, counts = sum(row.count for row in record.wakeups), record.conservation
    share = 100.0 * mine / counts.idle_exits_count if counts.idle_exits_count else None
    name, function, most_hz = most(record)
    place = name if function is None else f"{name} in {text.without_parameters(function)}"
    tiles = [
        Tile(
            "wake-ups from idle, its own",
            Markup("{}/s").format(text.number(mine / record.window_s, 1)),
            f"{text.number(share, 1)} % of all idle exits",
        ),
        Tile("Most of them", Markup("{}/s").format(text.number(most_hz, 1)), clean(place, 80)),
    ]
    for number, part in enumerate(record.energy_split.parts if record.energy_split else []):
        if part.name == record.target.label and record.energy_split is not None:
            value = figure(places.figure(f"/energy_split/parts/{number}/joules", 3, "J"))
            kind = record.energy_split.kind
            tiles.append(Tile(f"energy above the idle floor, {kind}", value, f"in {record.window_s:.0f} s"))
    named = figure(places.figure("/conservation/coverage_percent", 1, "%"))
    left = f"{text.count(counts.unknown_count)} unknown, {text.count(counts.lost_count)} lost"
    return [*tiles, Tile("Idle exits with a cause", named, left)]


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


def _not_found(metric: Metric) -> str:
    """An effect that was not found is its bound."""
    most, base = metric.difference.less_than, metric.a.mean
    none = "no measurable difference"
    if most is not None and base and 100 * most / abs(base) > NO_BOUND_PERCENT:
        return "inconclusive: the interval is too wide for a bound"
    return f"{none}: less than {text.number(100 * most / abs(base), 1)} %" if most is not None and base else none


def _headline(record: Comparison) -> list[tuple[int, Metric, str]]:
    """The metric that the headline is about."""
    return [
        (index, metric, f"{labels.metric(metric.name)}{_kind(metric)}")
        for index, metric in enumerate(record.metrics)
        if metric.name == record.verdict.metric
    ]


def _comparison(record: Comparison, places: Places) -> list[Tile]:
    tiles = []
    first = _headline(record)
    known = {index for index, _, _ in first}
    for index, metric, heading in [*first, *(each for each in _chosen(record.metrics) if each[0] not in known)]:
        verdict = direction(metric.name, metric.verdict)
        inconclusive = metric.verdict == "inconclusive"
        value = figure(places.figure(f"/metrics/{index}/difference/percent", 1, "%", sign=True))
        if not inconclusive and metric.ratio is not None and metric.ratio.b_over_a >= _TIMES:
            digits = 1 if metric.ratio.b_over_a < 100 else 0
            value = Markup("× {}").format(figure(places.figure(f"/metrics/{index}/ratio/b_over_a", digits)))
        outcome = _not_found(metric) if inconclusive else verdict
        tiles.append(Tile(heading, value, f"B compared with A: {outcome}", verdict))
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


def _server(record: IdleRun, places: Places) -> list[Tile]:
    """What the server itself ended, as the trace counted it: the answer's own figure."""
    for index, phase in enumerate(record.phases):
        if phase.server_exits is not None:
            at = f"/phases/{index}/server_exits/wakeups_hz"
            half = text.half_width(phase.server_exits.wakeups_hz)
            note = "" if half is None else f"± {text.number(half, 1)}, counted in {phase.server_exits.window_s:.0f} s"
            value = figure(places.figure(f"{at}/mean", 1, "/s"))
            # Where the headline is that there is no answer, the count is none either.
            look = "inconclusive" if busy_before(record) or busy_while_counted(record) else ""
            return [Tile("Idle periods ended by the server", value, note, look)]
    return []


def _idle(record: IdleRun, places: Places) -> list[Tile]:
    """What the last phase adds to the first, and whether that is sure."""
    shown = shown_phases(record)
    if len(shown) < 2:
        return []
    first, last = record.phases[shown[0]], record.phases[shown[-1]]
    tiles = _server(record, places)
    for claim in claims(record, first, last):
        heading, unit, digits = _ADDED[claim.metric]
        delta = delta_of(record, first.name, last.name, claim.metric)
        index = record.deltas.index(delta) if delta is not None else 0
        value = figure(places.figure(f"/deltas/{index}/difference/mean", digits, unit, sign=True))
        half = text.half_width(claim.difference)
        spread = "" if half is None else f"± {text.number(half, digits)}, "
        look = "" if claim.finding == "costs" else "inconclusive"
        tiles.append(Tile(f"{heading}, whole host, added", value, f"{spread}{_FINDINGS[claim.finding]}", look))
    windows = max((len(phase.windows) for phase in record.phases), default=0)
    if not tiles:
        return []
    return [*tiles, Tile("Confidence, 95 % interval", Markup("{} windows").format(windows), "in each phase")]
