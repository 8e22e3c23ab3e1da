# SPDX-License-Identifier: Apache-2.0
"""One measured condition, and the comparison of two: alternating ones, or two that were read from saved runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from powerprof import __version__
from powerprof.energy.total import note_unmetered_windows
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.claims import answer_for, choose_primary_metric
from powerprof.experiment.ending import Ending
from powerprof.experiment.metrics import (
    Baseline,
    Compared,
    list_measured,
    mean_baseline,
    note_below_idle,
    pair_figures,
    read_figures,
    system_of_blocks,
)
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import Offer
from powerprof.experiment.records import (
    Arm,
    Block,
    BlockPair,
    Comparison,
    ConditionRecord,
    ControlRecord,
    Design,
    Plan,
    Threat,
    TraceSummary,
    list_pairs,
)
from powerprof.experiment.threats import apply_other_models, find_threats
from powerprof.experiment.verdict import SampledWindow, judge_metrics, judge_saved, match_figures
from powerprof.measure.clock import format_now
from powerprof.model.records import Ended, EnergySource, Figures, Note, Notes, ServerInfo, ToolCost, Window


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One condition: its metrics with a value per window, its plans, and how the measurement ended.

    Attributes:
        run: the saved run that it was read from; empty if it is new.
        series: equal for two conditions that alternated: their n-th values are a pair.
        system: figures of the system, judged as a separate family.
        by_model: the metrics by every other possible model of the estimate.
        steps: resolution of a count, by metric.
    """

    condition: ConditionRecord
    started_at: str
    primary: str
    metrics: Sequence[Figures]
    run: str = ""
    series: str | Path | None = None
    system: Sequence[Figures] = ()
    by_model: Sequence[Sequence[Figures]] = ()
    steps: Mapping[str, float] = {}
    plans: Sequence[Plan] = ()
    host: dict[str, Any] = {}
    server: ServerInfo | None = None
    options: dict[str, Any] = {}
    ended: Ended | None = None
    threats: Sequence[Threat] = ()
    control: ControlRecord | None = None


def judge(a: Measurement, b: Measurement, seed: int) -> Comparison:
    """Compare two measurements of equal work, in pairs if they alternated. Host and server are those of B."""
    paired = a.series is not None and a.series == b.series
    both = match_figures(a.metrics, b.metrics, a.steps)
    # If one run had a meter, its answer is in joules. Choose a primary metric that both have.
    names = {each.a.name for each in both}
    primary = next((side.primary for side in (a, b) if side.primary in names), a.primary)
    by_model = [match_figures(*model, a.steps) for model in zip(a.by_model, b.by_model, strict=False)]
    metrics = judge_metrics(both, primary, seed, paired=paired, by_model=by_model)
    return Comparison(
        command="compare",
        started_at=max(a.started_at, b.started_at),
        a=a.condition,
        b=b.condition,
        design="rate",
        order=[],
        blocks_count=0,
        metrics=metrics,
        system=judge_saved(a.system, b.system, "", seed, paired=paired),
        verdict=answer_for(metrics, primary),
        control=a.control if paired else None,
        seed=seed,
        plans=[*a.plans, *b.plans],
        threats=list(a.threats) if paired else _find_unpaired_threats(a, b),
        host=b.host,
        server=b.server,
    )


def _find_unpaired_threats(first: Measurement, second: Measurement) -> list[Threat]:
    """Return the threats to runs of different times: the missing pairing, and the serious threats of each run."""
    threats = [Threat(name="unpaired")]
    for side in (first, second):
        if side.ended is not None:
            threats.append(Threat(name="interrupted", serious=True, values={"run": side.run}))
        threats += [
            msgspec.structs.replace(
                threat, text="", values={**({"text": threat.text} if threat.text else threat.values), "run": side.run}
            )
            for threat in side.threats
            if threat.serious
        ]
    return threats


# A measurement in progress.


class Session(msgspec.Struct):
    """One condition, or two that alternate, while they are measured. `asked`: the metric of the workload's answer."""

    conditions: tuple[ConditionRecord, ...]
    asked: str
    options: ExperimentOptions
    started_at: str = msgspec.field(default_factory=format_now)
    offer: Offer | None = None
    before: list[Window] = msgspec.field(default_factory=list)
    after: list[Window] = msgspec.field(default_factory=list)
    blocks: list[Block] = msgspec.field(default_factory=list)
    control: list[Block] = msgspec.field(default_factory=list)
    turn_s: float | None = None
    traced: list[TraceSummary] = msgspec.field(default_factory=list)
    sampled: list[SampledWindow] = msgspec.field(default_factory=list)
    plans: list[Plan] = msgspec.field(default_factory=list)
    server: ServerInfo | None = None
    energy_source: EnergySource | None = None
    notes: list[str | Note] = msgspec.field(default_factory=list)
    ending: Ending = msgspec.field(default_factory=Ending)
    own_cpu_s: float = 0.0
    own_wall_s: float = 0.0

    @contextmanager
    def measuring(self) -> Iterator[WindowEnergy]:
        """Open the meters. Keep the windows if a signal or an error ends the measurement early."""
        started_cpu_s, started_s = time.process_time(), time.monotonic()
        try:
            with self.ending.keeping(self.has_result), WindowEnergy(self.options.energy) as energy:
                self.energy_source = energy.source
                yield energy
        finally:
            self.own_cpu_s, self.own_wall_s = time.process_time() - started_cpu_s, time.monotonic() - started_s

    def has_result(self) -> bool:
        """Return whether a window of the condition, or a pair of two, is complete."""
        return bool(self.pairs if len(self.conditions) > 1 else self.counted)

    @property
    def counted(self) -> list[Block]:
        """The blocks without warm-up."""
        return [block for block in self.blocks if not block.dropped]

    @property
    def pairs(self) -> list[BlockPair]:
        """The complete counted pairs."""
        return list_pairs(self.blocks)

    @property
    def control_pairs(self) -> list[BlockPair]:
        """The pairs of A with itself."""
        return list_pairs(self.control)

    @property
    def baseline(self) -> Baseline:
        """The idle host."""
        return mean_baseline([*self.before, *self.after], self.blocks)

    @property
    def primary(self) -> str:
        """The metric of the answer."""
        return choose_primary_metric(self.asked, list_measured(read_figures(self.blocks, self.baseline)))

    @property
    def order(self) -> list[Arm]:
        """The order of the counted blocks."""
        return [block.arm for block in self.blocks if block.is_counted]

    @property
    def design(self) -> Design:
        """Equal rates or equal work; commands have no offer and do equal work."""
        return self.offer.design if self.offer else "work"

    @property
    def tool(self) -> ToolCost:
        """The cost of powerprof while the meters were open."""
        percent = 100 * self.own_cpu_s / self.own_wall_s if self.own_wall_s else None
        return ToolCost(version=__version__, cpu_s=self.own_cpu_s, cpu_percent=percent)

    def list_notes(self, lower_ends: Iterable[tuple[str, float | None]], more: Sequence[Note] = ()) -> Notes:
        """Return the notes, with `more` of the caller; `lower_ends` are the lower ends of intervals, by metric."""
        windows = [*self.before, *self.after, *(block.window for block in self.blocks)]
        return [
            *dict.fromkeys(self.notes),
            *more,
            *note_below_idle(lower_ends),
            *note_unmetered_windows([window.energy for window in windows], self.baseline.meters),
        ]

    def measurements(self, host: dict[str, Any]) -> tuple[Measurement, ...]:
        """Return each condition. Two that alternated are measured over their complete counted pairs."""
        if len(self.conditions) == 1:
            return (self._measurement(0, read_figures(self.counted, self.baseline), self.counted, host),)
        pairs, baseline = self.pairs, self.baseline
        compared = pair_figures(pairs, baseline)
        by_model = [pair_figures(*model) for model in apply_other_models(pairs, baseline)]
        steps = {each.a.name: each.step for each in compared if each.step is not None}
        threats = find_threats(self.blocks, pairs, self.before, self.after, self.design)

        def measurement(side: int) -> Measurement:
            def figures(of: Sequence[Compared]) -> list[Figures]:
                return [(each.a, each.b)[side] for each in of]

            return msgspec.structs.replace(
                self._measurement(side, figures(compared), [pair[side] for pair in pairs], host),
                series=self.started_at,
                by_model=list(map(figures, by_model)),
                steps=steps,
                plans=[plan for plan in self.plans if plan.arm == "ab"[side]],
                threats=threats,
            )

        return measurement(0), measurement(1)

    def _measurement(
        self, side: int, metrics: Sequence[Figures], blocks: Sequence[Block], host: dict[str, Any]
    ) -> Measurement:
        queries = [figures for figures in metrics if figures.name == "queries_hz"]
        return Measurement(
            condition=self.conditions[side],
            started_at=self.started_at,
            primary=self.primary,
            metrics=metrics,
            system=system_of_blocks(queries, blocks),
            host=host,
            server=self.server,
            ended=self.ending.ended,
        )
