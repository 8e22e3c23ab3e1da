# SPDX-License-Identifier: Apache-2.0
"""Compare two conditions, commands, saved runs or sweeps: start servers, calibrate, measure pairs, judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from powerprof import __version__
from powerprof.energy.domains import note_unmetered_windows
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_data import BenchOptions
from powerprof.experiment.block import Apparatus, Slot, choose_turn_length, measure_alternating, measure_block
from powerprof.experiment.claims import answer_for, choose_primary_metric, metric_named
from powerprof.experiment.metrics import (
    Baseline,
    list_measured,
    mean_baseline,
    note_below_idle,
    pair_figures,
    read_figures,
    system_of_blocks,
)
from powerprof.experiment.options import AROUND_S, MINIMUM_PAIRS, REPLACED_SHARE, ExperimentOptions, condition_record
from powerprof.experiment.plan import Offer, block_order, calibrate, check_comparable, check_options
from powerprof.experiment.records import (
    Arm,
    Block,
    BlockPair,
    Comparison,
    ConditionRecord,
    ControlRecord,
    Metric,
    Plan,
    TraceSummary,
    list_pairs,
)
from powerprof.experiment.run import (
    COMMAND_METRIC,
    Command,
    _baseline,
    _check_source,
    _end_notes,
    build_command_condition,
    fit_executions,
    measure_executions,
)
from powerprof.experiment.saved import are_runs, compare_saved
from powerprof.experiment.sweep_comparison import SweepComparison, are_sweeps, compare_sweeps
from powerprof.experiment.threats import (
    apply_other_models,
    disturbed_pairs,
    find_threats,
    mark_disturbed_pairs,
    undisturbed_pairs,
)
from powerprof.experiment.traced import sample_functions, trace_condition
from powerprof.experiment.verdict import (
    SampledWindow,
    compare_functions,
    control_from_blocks,
    control_from_run,
    count_missing_pairs,
    judge_metrics,
    judge_saved,
)
from powerprof.measure.progress import Countdown
from powerprof.measure.window import format_now
from powerprof.model.records import EnergySource, Figures, Note, ServerInfo, ToolCost, Window
from powerprof.model.text import Say
from powerprof.system import signals
from powerprof.system.errors import Interrupted, PowerprofError, UsageError
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.definition import Explain
from powerprof.workloads.reading import Case, resolve

# The record of a comparison: metrics, verdicts, threats, control and host.


def build_comparison(collected: MeasuredPairs) -> Comparison:
    """Judge the collected pairs and return the record. Only the description of the host is read from outside."""
    from powerprof.host.describe import host_record

    a, b = collected.conditions
    offer = collected.offer
    design = offer.design if offer else "rate"
    windows = [
        window.energy for window in (*collected.before, *collected.after, *(block.window for block in collected.blocks))
    ]
    pairs, baseline, primary, seed = collected.pairs, collected.baseline, collected.primary, collected.options.seed
    by_model = [pair_figures(*model) for model in apply_other_models(pairs, baseline)]
    metrics = judge_metrics(pair_figures(pairs, baseline), primary, seed, by_model=by_model)
    cpu_percent = 100 * collected.own_cpu_s / collected.own_wall_s if collected.own_wall_s else None
    return Comparison(
        command="compare",
        started_at=collected.started_at,
        a=a,
        b=b,
        design=design,
        order=collected.order,
        blocks_count=len(collected.order),
        metrics=metrics,
        system=_system(collected, metrics),
        verdict=answer_for(metrics, primary),
        seed=seed,
        offered_hz=offer.rate_hz if offer else None,
        queries_per_block=offer.queries if offer else None,
        plans=collected.plans,
        threats=find_threats(collected.blocks, pairs, collected.before, collected.after, design),
        control=_control(collected, metrics, primary),
        baseline=collected.before,
        baseline_after=collected.after,
        blocks=collected.blocks,
        traced=collected.traced,
        on_cpu=compare_functions(collected.sampled, seed) if collected.sampled else None,
        host=host_record(),
        server=collected.server,
        tool=ToolCost(version=__version__, cpu_s=collected.own_cpu_s, cpu_percent=cpu_percent),
        options=_options(collected),
        energy_source=collected.energy_source,
        notes=[
            *dict.fromkeys(collected.notes),
            *note_below_idle(
                (metric.name, side.ci95[0]) for metric in metrics for side in (metric.a, metric.b) if side.ci95
            ),
            *note_unmetered_windows(windows, baseline.meters),
        ],
        interrupted=collected.interrupted,
        failure=collected.failure,
    )


def _system(collected: MeasuredPairs, metrics: list[Metric]) -> list[Metric]:
    """Judge the figures of the system as a separate family, so that they do not hide those of the conditions."""
    queries = metric_named(metrics, "queries_hz")
    sides = []
    for arm in (0, 1):
        values = [(queries.a, queries.b)[arm].values] if queries else []
        done = [Figures(name="queries_hz", unit="1/s", kind="measured", values=each) for each in values]
        sides.append(system_of_blocks(done, [pair[arm] for pair in collected.pairs]))
    return judge_saved(sides[0], sides[1], "", collected.options.seed, paired=True)


def _options(collected: MeasuredPairs) -> dict[str, Any]:
    options = collected.options
    return {
        "pairs_count": options.pairs,
        "window_s": options.window_s,
        "turn_s": collected.turn_s,
        "design": options.design,
        "precision_percent": options.precision_percent,
        "control": options.control,
        "warm_up_pairs_count": options.warm_up_pairs,
        "energy_source": options.energy.source,
        "residency_source": options.residency_source,
    }


def _control(collected: MeasuredPairs, metrics: list[Metric], primary: str) -> ControlRecord | None:
    seed = collected.options.seed
    if not collected.control:
        answering = metric_named(metrics, primary)
        # In alternating pairs, consecutive windows of A scatter far more than A and B of the same moments.
        return control_from_blocks(answering, seed) if answering and collected.turn_s is None else None
    return control_from_run(pair_figures(collected.control_pairs, collected.baseline), primary, seed)


def compare(
    a: str,
    b: str,
    bench: Callable[[], AbstractContextManager[BenchOptions]],
    options: ExperimentOptions,
    *,
    runs_dir: Path | None,
    extra: Sequence[Path],
    say: Say,
) -> Comparison | SweepComparison:
    """Compare two saved runs or sweeps if both names are saved; otherwise measure two conditions on `bench`.

    Raises UsageError, DataError.
    """
    if are_runs(a, b, runs_dir):
        if are_sweeps(a, b, runs_dir):
            return compare_sweeps(a, b, runs_dir, options.seed)
        return compare_saved(a, b, runs_dir, options.seed)
    with bench() as where:
        return compare_conditions(a, b, where, options, extra=extra, say=say)


def compare_conditions(
    a: str, b: str, bench: BenchOptions, options: ExperimentOptions, *, extra: Sequence[Path], say: Say
) -> Comparison:
    """Measure two conditions by name.

    Raises UsageError if a name is unknown or ambiguous, or the conditions cannot be compared.
    """
    workload_a, name_a = find_condition(a, extra, beside=b)
    workload_b, name_b = find_condition(b, extra, beside=a)
    case_a, case_b = resolve(workload_a, name_a), resolve(workload_b, name_b)
    check_comparable([case_a, case_b])
    if workload_a.definition.primary_metric != workload_b.definition.primary_metric:
        raise UsageError(
            f"{case_a.qualified} and {case_b.qualified} have different primary metrics",
            "compare conditions of one workload",
        )
    if case_a.qualified == case_b.qualified:
        case_b = replace(case_b, name=_name_again(case_b.name))
    collected = measure_pairs(case_a, case_b, bench, options, say)
    return build_comparison(collected)


def compare_commands(
    argv_a: Sequence[str], argv_b: Sequence[str], options: ExperimentOptions, say: Say, *, may_fail: bool
) -> Comparison:
    """Measure two commands in alternating order. Raise PowerprofError if no pair could be measured."""
    _check_source(options)
    a, b = build_command_condition(argv_a), build_command_condition(argv_b)
    if a.name == b.name:
        b = msgspec.structs.replace(b, name=_name_again(b.name))
    commands: dict[Arm, Command] = {"a": Command(tuple(argv_a), may_fail), "b": Command(tuple(argv_b), may_fail)}
    collected = MeasuredPairs((a, b), COMMAND_METRIC, options, format_now())
    say(options.plan(2))
    progress = Countdown(say, options.command_seconds(2))
    with collected.measuring(needs_pairs=True) as energy:
        for command in commands.values():
            progress(f"{command.argv[0]}: the first execution")
            fit_executions(command, options.window_s)
        collected.before += _baseline(energy, options, "idle baseline before", progress)
        for number, pair in enumerate(block_order(options.pairs, options.seed)):
            for arm in pair:
                label = f"pair {number + 1} of {options.pairs} · {format_so_far(collected) or commands[arm].argv[0]}"
                done = len(collected.blocks)
                progress.step(label, done, 2 * options.pairs, options.window_s, options.rest_s)
                collected.blocks.append(
                    measure_executions(commands[arm], number, arm, energy, options.residency_source)
                )
        collected.blocks, left_out = mark_disturbed_pairs(collected.blocks, options.pairs)
        collected.notes += left_out
        collected.after += _baseline(energy, options, "idle baseline after", progress)
    collected.notes += _end_notes(list(commands.values()), collected.blocks)
    return msgspec.structs.replace(build_comparison(collected), design="work")


# The measured pairs.


class MeasuredPairs(msgspec.Struct):
    """The measured pairs and windows of a comparison, not yet judged."""

    conditions: tuple[ConditionRecord, ConditionRecord]
    asked: str
    options: ExperimentOptions
    started_at: str
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
    interrupted: bool = False
    failure: str | None = None
    own_cpu_s: float = 0.0
    own_wall_s: float = 0.0

    @contextmanager
    def measuring(self, *, needs_pairs: bool) -> Iterator[WindowEnergy]:
        """Open the meters. Keep the measured pairs if an interrupt or a failure ends the measurement early.

        An interrupt without a complete pair is raised if `needs_pairs`, else one without a block.
        """
        started_cpu_s, started_s = time.process_time(), time.monotonic()
        try:
            with WindowEnergy(self.options.energy) as energy:
                self.energy_source = energy.source
                self.notes += self.options.notes
                yield energy
        except Interrupted:
            if not (self.pairs if needs_pairs else self.blocks):
                raise
            self.interrupted = True
        except PowerprofError as error:
            if not self.pairs:
                raise
            self.failure = self.failure or error.message
            self.interrupted = True
        finally:
            self.own_cpu_s, self.own_wall_s = time.process_time() - started_cpu_s, time.monotonic() - started_s

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


def measure_pairs(
    case_a: Case, case_b: Case, bench_options: BenchOptions, options: ExperimentOptions, say: Say
) -> MeasuredPairs:
    """Measure the pairs of two conditions.

    After the first pair, a failure or an interrupt ends the measurement early and keeps the pairs. Raises
    PowerprofError if no pair was measured.
    """
    check_options([case_a, case_b], options)
    asked = case_a.workload.definition.primary_metric
    collected = MeasuredPairs((condition_record(case_a), condition_record(case_b)), asked, options, format_now())
    say(options.plan(2))
    progress = Countdown(say, options.seconds(2))
    with collected.measuring(needs_pairs=False) as energy:
        progress("starting the server and loading its tables")
        with Bench([case_a, case_b], bench_options, collected.notes.append) as bench:
            collected.plans = [*_plans(bench, case_a, "a"), *_plans(bench, case_b, "b")]
            server = bench.server(case_a)
            collected.server = ServerInfo(version=server.version, private=server.private, pid=server.pid)
            _PairRun(bench, (case_a, case_b), collected, energy, progress).run()
    return collected


class _PairRun:
    """One comparison on running servers."""

    def __init__(
        self, bench: Bench, cases: tuple[Case, Case], collected: MeasuredPairs, energy: WindowEnergy, say: Countdown
    ) -> None:
        self._collected, self._cases = collected, cases
        self._options = options = collected.options
        self._say = say
        self._next = options.warm_up_pairs + options.pairs
        collected.offer = offer = calibrate(bench, cases, options, say)
        collected.notes += offer.notes
        meters = energy.meters
        collected.turn_s = choose_turn_length(bench, cases, offer, options, meters is None or meters.quick)
        self._apparatus = Apparatus(
            bench, options, offer, meters, energy.complete, say, collected.notes, horizon_s=self._horizon(offer)
        )

    def run(self) -> None:
        collected, options = self._collected, self._options
        collected.before += self._apparatus.baseline("idle baseline before")
        if options.on_cpu:
            # Sample first: if this host cannot, fail before minutes of measuring.
            rate_hz = self._apparatus.offer.easy_rate_hz
            collected.sampled += sample_functions(self._apparatus.bench, self._cases, rate_hz, options.seed, self._say)
        try:
            self._pairs(self._cases, collected.blocks, options.pairs, options.warm_up_pairs, options.seed)
            self._replace_disturbed()
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
        collected.blocks, left_out = mark_disturbed_pairs(collected.blocks, options.pairs)
        collected.notes += left_out
        # Measure the baseline after failed blocks too: it shows a drift of the host. After a signal there is no time.
        if not signals.has_arrived():
            collected.after += self._apparatus.baseline("idle baseline after")

    def _trace(self, duration_s: float) -> None:
        """Trace a window of each condition; it is in no headline figure."""
        rate_hz = self._apparatus.offer.easy_rate_hz
        arms_of: tuple[Arm, Arm] = ("a", "b")
        for arm, case in zip(arms_of, self._cases, strict=True):
            self._collected.traced.append(
                trace_condition(self._apparatus.bench, case, arm, duration_s, self._say, rate_hz)
            )

    def _horizon(self, offer: Offer) -> float | None:
        """Return the length of a window of equal work: 1.1 times that of the slower condition in the calibration."""
        known = [capacity for capacity in offer.capacities_hz if capacity]
        if offer.design != "work" or offer.queries is None or not known:
            return None
        return 1.1 * offer.queries / min(known)

    def _pairs(
        self, cases: Sequence[Case], blocks: list[Block], pairs: int, warm_up: int, seed: int, first: int = 0
    ) -> None:
        warming = block_order(warm_up, seed + 1_000_003) if warm_up else []
        order = [*((pair, True) for pair in warming), *((pair, False) for pair in block_order(pairs, seed))]
        each_s, total, rest_s = self._options.window_s + AROUND_S, 2 * len(order), self._options.rest_s
        rest_s += 2 * (self._options.attribute_s or 0.0)
        if self._options.control and blocks is not self._collected.control:
            rest_s += 2 * self._control_pairs * each_s
        for number, (pair, dropped) in enumerate(order, first):
            counted = number - (self._options.warm_up_pairs if first else warm_up) + 1
            of = "" if counted > pairs else f" of {pairs}"
            control = "control, " if blocks is self._collected.control else ""
            figures = format_so_far(self._collected) if blocks is self._collected.blocks else ""
            label = "warm-up" if dropped else f"{control}pair {counted}{of}"
            done = 2 * (number - first)
            # Both halves of a pair use the same random numbers.
            slots = [Slot(number, arm, dropped, seed=1 + 1000 * seed + number) for arm in pair]
            if self._collected.turn_s is not None:
                both = f"{cases[0].name} and {cases[1].name} alternate"
                self._say.step(f"{label} · {figures or both}", done, total, each_s, rest_s)
                blocks += self._taking_turns(cases, slots, self._collected.turn_s)
                continue
            for half, slot in enumerate(slots):
                case = cases[0 if slot.arm == "a" else 1]
                self._say.step(f"{label} · {figures or case.name}", done + half, total, each_s, rest_s)
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
        """Measure two more pairs, a balanced block, for every two disturbed pairs, up to REPLACED_SHARE."""
        collected, options = self._collected, self._options
        left = int(options.pairs * REPLACED_SHARE)
        while left >= 2 and disturbed_pairs(collected.blocks):
            if len(undisturbed_pairs(collected.blocks)) >= options.pairs:
                return
            self._say("other programs ran: two pairs more")
            self._pairs(self._cases, collected.blocks, 2, 0, options.seed + self._next, self._next)
            self._next += 2
            left -= 2

    def _go_on(self) -> None:
        """Measure more pairs at a time until the interval is narrow enough."""
        collected, options, done = self._collected, self._options, self._options.pairs
        while more := count_missing_pairs(
            judge_primary(collected), options.precision_percent, done, options.most_pairs, collected.notes
        ):
            self._pairs(self._cases, collected.blocks, more, 0, options.seed + self._next, self._next)
            self._next += more
            done += more

    @property
    def _control_pairs(self) -> int:
        return max(MINIMUM_PAIRS, 6, self._options.pairs // 2)

    def _control(self) -> None:
        collected, options = self._collected, self._options
        pairs = self._control_pairs
        self._say("control: A against itself")
        self._pairs((self._cases[0], self._cases[0]), collected.control, pairs, 0, options.seed + 77)


def judge_primary(collected: MeasuredPairs) -> Metric | None:
    """Return the metric of the answer over the pairs so far; None if it has no value."""
    every, primary = pair_figures(collected.pairs, collected.baseline), collected.primary
    return next(
        iter(judge_metrics([each for each in every if each.a.name == primary], primary, collected.options.seed)), None
    )


def format_so_far(collected: MeasuredPairs) -> str:
    """Return the ratio of the primary metric after two or more pairs: `no-index ×10.4 so far (7.9 to 13.6)`."""
    primary = judge_primary(collected) if len(collected.pairs) >= MINIMUM_PAIRS else None
    ratio = primary.ratio if primary else None
    if ratio is None:
        return ""
    ends = "" if ratio.ci95 is None else f" ({ratio.ci95[0]:.3g} to {ratio.ci95[1]:.3g})"
    return f"{collected.conditions[1].name} ×{ratio.b_over_a:.3g} so far{ends}"


def _plans(bench: Bench, case: Case, arm: Arm) -> list[Plan]:
    return [
        Plan(arm=arm, statement=wanted.statement, rows=msgspec.to_builtins(rows), asserted=bool(wanted.plan))
        for wanted, rows in bench.plans.get(case.qualified, [])
        if isinstance(wanted, Explain)
    ]


def _name_again(name: str) -> str:
    """Return the second name of a condition or command that is compared with itself."""
    return f"{name} (again)"
