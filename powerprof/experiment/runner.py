# SPDX-License-Identifier: Apache-2.0
"""Running a comparison: servers, calibration, baselines, blocks in their order; ended early it keeps what it has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from powerprof.experiment.bench.plans import BenchOptions
from powerprof.experiment.bench.servers import Bench
from powerprof.experiment.judge.answer import headline
from powerprof.experiment.judge.functions import SampledWindow
from powerprof.experiment.judge.metrics import Baseline, baseline_of, compared, figures_of, measured_names
from powerprof.experiment.judge.threats import disturbed_pairs, leave_out
from powerprof.experiment.judge.verdict import half_width_percent, judge
from powerprof.experiment.measure.block import Apparatus, Slot, measure_alternating, measure_block, turn_length_s
from powerprof.experiment.measure.plan import Offer, block_order, calibrate, check_asked
from powerprof.experiment.measure.rounds import sample_functions
from powerprof.experiment.measure.traced import trace_condition
from powerprof.experiment.options import MINIMUM_PAIRS, REPLACED_SHARE, ExperimentOptions, condition_record
from powerprof.experiment.records import Arm, Block, BlockPair, ConditionRecord, Plan, TraceSummary, pairs_of
from powerprof.measure.sampling import now_text
from powerprof.model.records import EnergySource, Note, Window
from powerprof.model.text import Say, counting_down
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.workloads.definition import Explain
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.energy.windows import WindowEnergy


# What a comparison measured, before anything is made of it.


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


def collect(case_a: Case, case_b: Case, bench_options: BenchOptions, options: ExperimentOptions, say: Say) -> Collected:
    """Measure. Raises PowerprofError where nothing could be measured; after the first pair it keeps what there is."""
    from powerprof.energy.windows import WindowEnergy

    check_asked([case_a, case_b], options)
    asked = case_a.workload.definition.primary_metric
    collected = Collected((condition_record(case_a), condition_record(case_b)), asked, options, now_text())
    started_cpu_s, started_s = time.process_time(), time.monotonic()
    say(options.plan(2))
    say = counting_down(say, options.seconds(2))
    try:
        with WindowEnergy(options.energy) as energy:
            collected.energy_source = energy.source
            collected.notes += options.notes
            say("starting the server and loading its tables")
            with Bench([case_a, case_b], bench_options, collected.notes.append) as bench:
                collected.plans = [*_plans(bench, case_a, "a"), *_plans(bench, case_b, "b")]
                server = bench.server(case_a)
                collected.server = {"version": server.version, "private": server.private}
                _PairRun(bench, (case_a, case_b), collected, energy, say).run()
    except Interrupted:
        collected.interrupted = True
        if not collected.blocks:
            raise
    except PowerprofError as error:
        if not collected.pairs:
            raise
        collected.failure = collected.failure or error.message
        collected.interrupted = True
    finally:
        collected.own_cpu_s, collected.own_wall_s = time.process_time() - started_cpu_s, time.monotonic() - started_s
    return collected


class _PairRun:
    """One comparison on a bench that is up."""

    def __init__(
        self, bench: Bench, cases: tuple[Case, Case], collected: Collected, energy: WindowEnergy, say: Say
    ) -> None:
        self._collected, self._cases = collected, cases
        self._options = options = collected.options
        self._say = say
        self._next = options.warm_up_pairs + options.pairs
        collected.offer = offer = calibrate(bench, cases, options, say)
        collected.notes += offer.notes
        meters = energy.meters
        collected.turn_s = turn_length_s(bench, cases, offer, options, meters is None or meters.quick)
        self._apparatus = Apparatus(
            bench, options, offer, meters, energy.complete, say, collected.notes, horizon_s=self._horizon(offer)
        )

    def run(self) -> None:
        collected, options = self._collected, self._options
        collected.before += self._apparatus.baseline("idle baseline before")
        if options.on_cpu:
            # First: where this host cannot sample, it fails before minutes of measuring.
            rate_hz = self._apparatus.offer.easy_rate_hz
            collected.sampled += sample_functions(self._apparatus.bench, self._cases, rate_hz, options.seed, self._say)
        try:
            self._pairs(self._cases, collected.blocks, options.pairs, options.warm_up_pairs, options.seed)
            self._replace_disturbed()
            if options.precision_percent is not None:
                self._go_on()
            if options.control:
                self._control()
            if options.attribute_s is not None:
                self._trace(options.attribute_s)
        except PowerprofError as error:
            if not collected.pairs:
                raise
            collected.failure = error.message
            collected.interrupted = True
        collected.blocks, left_out = leave_out(collected.blocks, options.pairs)
        collected.notes += left_out
        # Also where blocks failed in the end: a drift of the host is then still seen.
        collected.after += self._apparatus.baseline("idle baseline after")

    def _trace(self, duration_s: float) -> None:
        """A traced window of each condition, in no headline figure."""
        rate_hz = self._apparatus.offer.easy_rate_hz
        arms_of: tuple[Arm, Arm] = ("a", "b")
        for arm, case in zip(arms_of, self._cases, strict=True):
            self._collected.traced.append(
                trace_condition(self._apparatus.bench, case, arm, duration_s, self._say, rate_hz)
            )

    def _horizon(self, offer: Offer) -> float | None:
        """How long a window of equal work lasts: a little more than the slower one took in the calibration."""
        known = [capacity for capacity in offer.capacities_hz if capacity]
        if offer.design != "work" or offer.queries is None or not known:
            return None
        return 1.1 * offer.queries / min(known)

    def _pairs(
        self, cases: Sequence[Case], blocks: list[Block], pairs: int, warm_up: int, seed: int, first: int = 0
    ) -> None:
        warming = block_order(warm_up, seed + 1_000_003) if warm_up else []
        order = [*((pair, True) for pair in warming), *((pair, False) for pair in block_order(pairs, seed))]
        for number, (pair, dropped) in enumerate(order, first):
            label = "warm-up" if dropped else f"pair {number - self._options.warm_up_pairs + 1}"
            # Both halves of a pair draw the same random numbers.
            slots = [Slot(number, arm, dropped, seed=1 + 1000 * seed + number) for arm in pair]
            if self._collected.turn_s is not None:
                self._say(f"{label}: {cases[0].name} and {cases[1].name} take turns")
                blocks += self._taking_turns(cases, slots, self._collected.turn_s)
                continue
            for slot in slots:
                case = cases[0 if slot.arm == "a" else 1]
                self._say(f"{label}: {case.name}")
                blocks.append(self._block(case, slot))

    def _taking_turns(self, cases: Sequence[Case], slots: Sequence[Slot], turn_s: float) -> list[Block]:
        apparatus = self._apparatus
        return apparatus.repeated(
            lambda attempt: measure_alternating(apparatus, cases, slots, attempt, turn_s), cases, slots[0]
        )

    def _block(self, case: Case, slot: Slot) -> Block:
        apparatus = self._apparatus
        return apparatus.repeated(lambda attempt: measure_block(apparatus, case, slot, attempt), [case], slot)

    def _replace_disturbed(self) -> None:
        """Two pairs more, a balanced block, for every two that other programs disturbed; not without an end."""
        collected, options = self._collected, self._options
        left = int(options.pairs * REPLACED_SHARE)
        while left >= 2 and disturbed_pairs(collected.blocks):
            good = len(
                {block.pair for block in collected.blocks if not block.dropped} - disturbed_pairs(collected.blocks)
            )
            if good >= options.pairs:
                return
            self._say("other programs ran: two pairs more")
            self._pairs(self._cases, collected.blocks, 2, 0, options.seed + self._next, self._next)
            self._next += 2
            left -= 2

    def _go_on(self) -> None:
        """More pairs until the interval is as narrow as asked, in fours, so that the blocks stay balanced."""
        collected, options = self._collected, self._options
        wanted = options.precision_percent or 0.0
        done = options.pairs
        while True:
            every, primary = compared(collected.pairs, collected.baseline), collected.primary
            answering = judge([each for each in every if each.a.name == primary], primary, options.seed)
            width = half_width_percent(answering[0]) if answering else None
            if width is not None and width <= wanted:
                collected.notes.append(f"±{width:.2g} % reached after {done} pairs")
                return
            if done + 4 > options.most_pairs:
                interval = "unknown" if width is None else f"±{width:.2g} %"
                needed = "" if width is None else f"; about {round(done * (width / wanted) ** 2)} pairs would do"
                collected.notes.append(
                    f"±{wanted:g} % was not reached in {done} pairs: the interval is {interval}{needed}"
                )
                return
            self._pairs(self._cases, collected.blocks, 4, 0, options.seed + self._next, self._next)
            self._next += 4
            done += 4

    def _control(self) -> None:
        collected, options = self._collected, self._options
        pairs = max(MINIMUM_PAIRS, 6, options.pairs // 2)
        self._say("control: A against itself")
        self._pairs((self._cases[0], self._cases[0]), collected.control, pairs, 0, options.seed + 77)


def _plans(bench: Bench, case: Case, arm: Arm) -> list[Plan]:
    return [
        Plan(arm=arm, statement=wanted.statement, rows=msgspec.to_builtins(rows), asserted=bool(wanted.plan))
        for wanted, rows in bench.plans.get(case.qualified, [])
        if isinstance(wanted, Explain)
    ]


def control_case(case: Case) -> Case:
    """The same condition under a second name, for `compare X X`."""
    return replace(case, name=f"{case.name} (again)")
