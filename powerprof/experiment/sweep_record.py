# SPDX-License-Identifier: Apache-2.0
"""What a sweep is: its points over the rounds that are measured, which of them differ, and what is saved of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from powerprof.experiment.bench.servers import Bench
from powerprof.experiment.judge.answer import ENERGY, PointsCompared, compare_metrics
from powerprof.experiment.judge.functions import FunctionWindow
from powerprof.experiment.judge.metrics import Baseline, accounted, cpu_ms, figures_of, with_mean
from powerprof.experiment.measure.rounds import (
    WAKINGS,
    Gathered,
    Pace,
    PaceWindow,
    complete_rounds,
    pace_metrics,
    paces,
)
from powerprof.experiment.records import Block, ConditionRecord
from powerprof.model.records import Figures, Note, Notes, OsRates, RunMetric, Window
from powerprof.system.errors import PowerprofError
from powerprof.workloads.definition import Value
from powerprof.workloads.reading import Case

SERVER = "server"
"""The parameter whose values are servers."""


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
        return msgspec.structs.replace(sweep, compared=compare(sweep))


def in_rounds(sweep: Sweep) -> bool:
    """Whether its points were measured in rounds; of sweeps that older versions saved only those over servers were."""
    return sweep.parameter == SERVER or bool(sweep.options.get("in_rounds"))


def compare(sweep: Sweep) -> list[PointsCompared]:
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
