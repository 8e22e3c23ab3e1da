# SPDX-License-Identifier: Apache-2.0
"""A measurement in progress: the windows and blocks of one condition, or of two that alternate."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from powerprof import __version__
from powerprof.energy.total import note_unmetered_windows
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.claims import are_starts_repeated, choose_primary_metric
from powerprof.experiment.ending import Ending
from powerprof.experiment.measurement import Measurement
from powerprof.experiment.metrics import (
    Baseline,
    Compared,
    list_measured,
    mean_baseline,
    note_below_idle,
    pair_figures,
    read_figures,
)
from powerprof.experiment.model_uncertainty import apply_other_models
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.plan import Offer
from powerprof.experiment.records import (
    Arm,
    Block,
    BlockPair,
    ConditionRecord,
    Design,
    Plan,
    Threat,
    TraceSummary,
    list_pairs,
)
from powerprof.experiment.system_metrics import system_of_blocks
from powerprof.experiment.threats import find_threats
from powerprof.experiment.verdict import SampledWindow
from powerprof.measure.clock import format_now
from powerprof.model.records import EnergySource, Figures, Note, Notes, ServerInfo, ToolCost, Window


class Session(msgspec.Struct):
    """One condition, or two that alternate, while they are measured. `asked`: the metric of the workload's answer.

    `starts` counts the starts of the servers of each condition; 0 if both conditions share their servers.
    """

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
    starts: int = 0
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
    def are_starts_repeated(self) -> bool:
        """Whether the pairs show how far starts of one setting differ."""
        return are_starts_repeated(self.starts, len(self.pairs))

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
        if not self.are_starts_repeated:
            threats.append(Threat(name="one_start"))

        def measurement(side: int) -> Measurement:
            def figures(of: Sequence[Compared]) -> list[Figures]:
                return [(each.a, each.b)[side] for each in of]

            return msgspec.structs.replace(
                self._measurement(side, figures(compared), [pair[side] for pair in pairs], host),
                series=self.started_at,
                starts=self.starts,
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
