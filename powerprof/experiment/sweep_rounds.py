# SPDX-License-Identifier: Apache-2.0
"""The points of a sweep measured in rounds: each once a round, in another order each time.

What comes and goes meanwhile (a neighbour, a clock's frequency, a backup) must not look like a point's own, as it would
if one point came after the other. Servers that are not asked are stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_data import schema_of
from powerprof.experiment.block import Apparatus, Slot, measure_block
from powerprof.experiment.metrics import Baseline, accounted, cpu_ms, figures_of, with_mean
from powerprof.experiment.plan import round_order
from powerprof.experiment.records import Block, ConditionRecord, Range
from powerprof.experiment.traced import (
    WAKINGS,
    Pace,
    PaceWindow,
    pace_metrics,
    pace_window,
    paces,
    sample_window,
    settings_in_force,
    trace_condition,
)
from powerprof.experiment.verdict import ENERGY, FunctionWindow, function_window
from powerprof.measure.window import wait_and_read
from powerprof.model.records import Figures, Note, Notes, OsRates, RunMetric, Window
from powerprof.model.text import approximate_time
from powerprof.statistics import compare_points, which_differ
from powerprof.system.errors import CapabilityError, Interrupted, PowerprofError, UsageError
from powerprof.workloads.definition import Value
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    pass


# Statistics are recomputed ten seconds after tables were filled; a stopped server would do that in its own window.
START_S = 12.0
# PostgreSQL's background writer wakes five times a second until it has been once around its buffers, which it lets take
# two minutes (scan_whole_pool_milliseconds, bufmgr.c); then it sleeps for ten seconds at a time.
POSTGRESQL_START_S = 130.0
# Timers that ran out while it was stopped fire at once.
_WOKEN_S = 1.5
_READY_S = 0.5


@dataclass
class Gathered:
    """What there is of one point so far. `first_round`: the number of its first round.

    A point that failed and is tried again later shares no round with those that were measured before.
    """

    blocks: list[Block] = field(default_factory=list)
    rates: list[OsRates] = field(default_factory=list)
    traced: list[PaceWindow] = field(default_factory=list)
    sampled: list[FunctionWindow] = field(default_factory=list)
    version: str | None = None
    error: str | None = None
    first_round: int = 0

    def cut(self, rounds: int) -> None:
        """Keep so many rounds."""
        for kept in (self.blocks, self.rates, self.traced, self.sampled):
            del kept[rounds:]


def complete_rounds(gathered: Mapping[Value, Gathered]) -> None:
    """Take away what was measured of a round that was cut short: its other points would be of another time.

    Points that are rounds behind, which failed, go on in rounds of their own.
    """
    most = max((len(had.blocks) for had in gathered.values()), default=0)
    abreast = [had for had in gathered.values() if len(had.blocks) >= most - 1 and had.error is None]
    rounds = min((len(had.blocks) for had in abreast), default=0)
    last = max((block.pair for had in gathered.values() for block in had.blocks), default=-1)
    for had in gathered.values():
        if any(had is one for one in abreast):
            had.cut(rounds)
        else:
            had.first_round = last + 1
        had.error = None


def measure_rounds(
    apparatus: Mapping[Value, Apparatus],
    cases: Mapping[Value, Case],
    gathered: Mapping[Value, Gathered],
    baseline: list[Window] | None,
    save: Callable[[], object],
) -> None:
    """The rounds that are missing, saving after each. A point that fails is noted and the others go on.

    `baseline`: each round begins with a window in which all servers are stopped, which goes there. Raises UsageError,
    CapabilityError, and PowerprofError where the one server of all points is lost.
    """
    one = next(iter(apparatus.values()))
    bench, options, say = one.bench, one.options, one.say
    values, shared = list(cases), baseline is None and bench.shared(list(cases.values()))
    start_s = _settle_s(cases, shared=shared)
    say(f"letting {'the server' if shared else f'{len(cases)} servers'} settle for {start_s:g} s")
    wait_and_read((), start_s)
    started_s, first = time.monotonic(), None
    for number, order in enumerate(round_order(len(values), options.pairs, options.seed)):
        missing = [
            value
            for value in (values[place] for place in order)
            if len(gathered[value].blocks) <= number and gathered[value].error is None
        ]
        if not missing:
            continue
        first = number if first is None else first
        left = time_left(number - first, options.pairs - first, time.monotonic() - started_s)
        label = f"round {number + 1} of {options.pairs}{left}"
        if baseline is not None:
            say(f"{label}: no server")
            baseline.append(_without(one))
        for value in missing:
            say(f"{label}: {value}")
            try:
                _measure_point(apparatus[value], cases[value], gathered[value], number, woken=not shared)
            except (UsageError, CapabilityError):
                raise
            except PowerprofError as error:
                gathered[value].error = error.message
                if shared:
                    bench.revive(cases[value])
        save()


def _settle_s(cases: Mapping[Value, Case], *, shared: bool) -> float:
    if all(case.server.kind == "postgresql" and case.load.is_silent for case in cases.values()):
        return POSTGRESQL_START_S
    filled = any(schema_of(case.workload) is not None for case in cases.values())
    return START_S if filled or not shared else _READY_S


def time_left(measured: int, of: int, passed_s: float) -> str:
    """How long the rest takes, where its rounds are as long as those that are measured. Empty before the first."""
    return f", {approximate_time(passed_s / measured * (of - measured))} to go" if measured else ""


def _without(apparatus: Apparatus) -> Window:
    """A window in which all servers are stopped."""
    apparatus.bench.hush()
    time.sleep(_READY_S)
    with apparatus.meter(()) as meter:
        return apparatus.complete(meter.measure(apparatus.options.window_s))


def _measure_point(apparatus: Apparatus, case: Case, gathered: Gathered, number: int, *, woken: bool) -> None:
    bench, options = apparatus.bench, apparatus.options
    server = bench.server(case)
    gathered.version = server.version
    bench.enter(case)
    if woken:
        time.sleep(_WOKEN_S)
    slot = Slot(gathered.first_round + number, "a", False, 1 + 1000 * options.seed + number)
    block = apparatus.repeated(partial(measure_block, apparatus, case, slot), [case], slot)
    if options.attribute_s is not None:
        in_force = settings_in_force(server)
        window = trace_condition(bench, case, "a", options.attribute_s, apparatus.say, apparatus.offer.rate_hz)
        if window.attribution.interrupted:
            # A trace that is cut short is kept by who shows it; here it would be one of several, and not as long.
            raise Interrupted("interrupted")
        family = "mariadb" if "mariadb" in server.version.lower() else server.login.family
        gathered.traced.append(pace_window(window, family, in_force))
    if options.on_cpu:
        profile = sample_window(bench, case, apparatus.offer.rate_hz, slot.seed, apparatus.say)
        gathered.sampled.append(function_window(profile.functions, profile.window_s))
    gathered.blocks.append(block)
    gathered.rates.append(block.window.system or OsRates())


# Pure: which points of a sweep differ, over the rounds in which they were measured.


class PointsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """A metric at two values of the parameter: `percent` is how much more it is at `b` than at `a`, with its interval.

    `differ`: significantly, of all pairs and metrics of a sweep together. Unknown is None.
    """

    metric: str
    a: Value
    b: Value
    percent: float | None
    ci95: Range | None
    differ: bool

    @property
    def less_than_percent(self) -> float | None:
        """Of a difference that was not found the most that it may be, either way."""
        return None if self.ci95 is None or self.differ else max(abs(end) for end in self.ci95)


def compare_metrics(
    metrics: Mapping[str, Mapping[Value, Mapping[int, float]]], *, in_rounds: bool
) -> list[PointsCompared]:
    """Every two points by each metric, whose values are by point and round: one family, since one answer names them."""
    pairs = [
        (name, list(points), pair)
        for name, points in metrics.items()
        for pair in compare_points(list(points.values()), in_rounds=in_rounds)
    ]
    sure = which_differ([pair.p_value for _, _, pair in pairs])
    return [
        PointsCompared(
            metric=name,
            a=values[pair.first],
            b=values[pair.second],
            percent=pair.percent,
            ci95=None if pair.interval is None else (pair.interval.low, pair.interval.high),
            differ=differ,
        )
        for (name, values, pair), differ in zip(pairs, sure, strict=True)
    ]


def alike(compared: Sequence[PointsCompared], metric: str, value: Value) -> dict[Value, float | None]:
    """The points that do not differ significantly from this one, and less than how many percent each; None: unknown."""
    return {
        pair.b if pair.a == value else pair.a: pair.less_than_percent
        for pair in compared
        if pair.metric == metric and value in (pair.a, pair.b) and not pair.differ
    }


SERVER = "server"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the parameter: metrics over its windows, and what the system beneath did. `error`: it failed.

    `on_cpu`: what functions the server ran, a window a round. Where the parameter is the server: which one it was, and
    how often its threads woke in the `traced` windows.
    """

    value: Value
    metrics: list[RunMetric] = []
    os: list[OsRates] = []
    blocks: list[Block] = []
    error: str | None = None
    server: str | None = None
    paces: list[Pace] = []
    traced: list[PaceWindow] = []
    on_cpu: list[FunctionWindow] = []


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep, finished or not: `powerprof.sweep/1`. `baseline`: windows in which no server ran.

    `compared`: every two points by what the answer is about.
    """

    id: str | None
    command: str
    started_at: str
    workload: str
    condition: ConditionRecord
    parameter: str
    key: str
    values: list[Value]
    points: list[Point]
    host: dict[str, Any] = {}
    server: dict[str, Any] = {}
    options: dict[str, Any] = {}
    baseline: list[Window] = []
    compared: list[PointsCompared] = []
    notes: Notes = []
    interrupted: bool = False
    schema: Literal["powerprof.sweep/1"] = "powerprof.sweep/1"


class Progress:
    """What there is of a sweep, and the record of it. `kept`: points of which only the figures were saved."""

    def __init__(self, sweep: Sweep) -> None:
        saved = {_same(point.value): point for point in sweep.points}
        of_value = {value: saved.get(_same(value)) for value in sweep.values}
        self.gathered = {value: _gathered(point) for value, point in of_value.items()}
        self.kept = {
            value: point
            for value, point in of_value.items()
            if point is not None and point.error is None and not point.blocks
        }
        if in_rounds(sweep):
            complete_rounds(self.gathered)
        for had in self.gathered.values():
            had.error = None
        self.baseline = list(sweep.baseline)
        self.notes: list[str | Note] = list(sweep.notes)
        self._sweep, self._server = sweep, sweep.server

    def began(self, bench: Bench, cases: Mapping[Value, Case]) -> None:
        """The servers are up, but for some."""
        for value, case in cases.items():
            if (error := bench.failure(case)) is not None:
                self.gathered[value].error = error.message
        first = next(case for case in cases.values() if bench.failure(case) is None)
        server = bench.server(first)
        self._server = (
            {"private": True}
            if self._sweep.parameter == SERVER
            else {"version": server.version, "private": server.private}
        )

    def note(self, text: str) -> None:
        """Keep a remark once."""
        if text not in self.notes:
            self.notes.append(text)

    def failed(self, cases: Iterable[Value], rounds: int, error: PowerprofError) -> None:
        """Nothing more can be had of these, as far as their rounds are not complete."""
        for had in (self.gathered[value] for value in cases):
            if len(had.blocks) < rounds:
                had.error = had.error or error.message

    def record(self, *, interrupted: bool = True) -> Sweep:
        """The sweep as it is now."""
        points = [
            self.kept.get(value) or _gathered_point(value, had)
            for value, had in self.gathered.items()
            if had.blocks or had.error or value in self.kept
        ]
        early = [
            f"{value}: ended early: {had.error}" for value, had in self.gathered.items() if had.error and had.blocks
        ]
        sweep = msgspec.structs.replace(
            self._sweep,
            points=points,
            server=self._server,
            baseline=self.baseline,
            notes=[*dict.fromkeys([*self.notes, *early])],
            interrupted=interrupted,
        )
        return msgspec.structs.replace(sweep, compared=compare_sweep_points(sweep))


def in_rounds(sweep: Sweep) -> bool:
    """Whether its points were measured in rounds; of sweeps that older versions saved only those over servers were."""
    return sweep.parameter == SERVER or bool(sweep.options.get("in_rounds"))


def compare_sweep_points(sweep: Sweep) -> list[PointsCompared]:
    """Every two points by what the answer is about: energy and what was done, of idle servers how often they wake."""
    good = [point for point in sweep.points if point.error is None]
    names = {metric.name for point in good for metric in point.metrics}
    wanted = [ENERGY] if ENERGY in names else []
    # At a rate that is given there is nothing to win.
    if "queries_hz" in names and sweep.options.get("rate_hz") is None and sweep.key != "load.rate_hz":
        wanted.append("queries_hz")
    elif "queries_hz" not in names and WAKINGS in names:
        wanted = [WAKINGS]
    return compare_metrics(
        {name: {point.value: _by_round(point, name) for point in good} for name in wanted}, in_rounds=in_rounds(sweep)
    )


def _by_round(point: Point, name: str) -> dict[int, float]:
    values = next((metric.values for metric in point.metrics if metric.name == name), [])
    rounds = [block.pair for block in point.blocks] or list(range(len(values)))
    return {number: value for number, value in zip(rounds, values, strict=False) if value is not None}


def _gathered(point: Point | None) -> Gathered:
    if point is None:
        return Gathered()
    kept = (list(point.blocks), list(point.os), list(point.traced), list(point.on_cpu))
    return Gathered(*kept, point.server, point.error)


def _gathered_point(value: Value, had: Gathered) -> Point:
    blocks = had.blocks
    if not blocks:
        return Point(value=value, error=had.error, server=had.version)
    every = [*figures_of(blocks, Baseline(None, None, None)), *accounted(blocks)]
    if all(block.queries is None for block in blocks):
        used = [_server_cpu(block) for block in blocks]
        every.append(Figures(name="server_cpu_ms_per_s", unit="ms/s", kind="measured", values=used))
    return Point(
        value=value,
        metrics=[*map(with_mean, every), *pace_metrics(had.traced)],
        os=had.rates,
        blocks=blocks,
        server=had.version,
        paces=paces(had.traced),
        traced=had.traced,
        on_cpu=had.sampled,
    )


def _server_cpu(block: Block) -> float | None:
    used = cpu_ms(block, "server")
    return None if used is None or not block.window.window_s else used / block.window.window_s


def _same(value: Value) -> str:
    return repr(value)
