# SPDX-License-Identifier: Apache-2.0
"""What a comparison measured, before anything is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from powerprof.experiment.judge.answer import headline
from powerprof.experiment.judge.functionchanges import SampledWindow
from powerprof.experiment.judge.metrics import Baseline, baseline_of, figures_of, measured_names
from powerprof.experiment.measure.calibration import Offer
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Arm, Block, BlockPair, ConditionRecord, Plan, TraceSummary, pairs_of
from powerprof.records import EnergySource, Note, Window


@dataclass
class Collected:
    """All that a comparison measured, judged by nobody yet."""

    conditions: tuple[ConditionRecord, ConditionRecord]
    asked: str
    options: ExperimentOptions
    started_at: str
    offer: Offer | None = None
    before: list[Window] = field(default_factory=list)
    after: list[Window] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    control: list[Block] = field(default_factory=list)
    turn_s: float | None = None
    traced: list[TraceSummary] = field(default_factory=list)
    sampled: list[SampledWindow] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    server: dict[str, object] = field(default_factory=dict)
    energy_source: EnergySource | None = None
    notes: list[str | Note] = field(default_factory=list)
    interrupted: bool = False
    failure: str | None = None
    own_cpu_s: float = 0.0
    own_wall_s: float = 0.0

    @property
    def pairs(self) -> list[BlockPair]:
        """The complete pairs that count."""
        return pairs_of(self.blocks)

    @property
    def control_pairs(self) -> list[BlockPair]:
        """A against itself."""
        return pairs_of(self.control)

    @property
    def baseline(self) -> Baseline:
        """What the idle host does."""
        return baseline_of([*self.before, *self.after], self.blocks)

    @property
    def primary(self) -> str:
        """The metric of the answer."""
        return headline(self.asked, measured_names(figures_of(self.blocks, self.baseline)))

    @property
    def order(self) -> list[Arm]:
        """The order in which the blocks that count were run."""
        return [block.arm for block in self.blocks if not block.dropped and not block.disturbed]
