# SPDX-License-Identifier: Apache-2.0
"""Compare two conditions, commands, saved runs or sweeps: start servers, calibrate, measure pairs, judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.alternating import choose_turn_length, measure_alternating
from powerprof.experiment.apparatus import Apparatus, Slot
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.block import measure_block
from powerprof.experiment.claims import metric_named
from powerprof.experiment.command_records import (
    COMMAND_METRIC,
    build_command_condition,
    check_source,
    measure_baseline,
    note_endings,
)
from powerprof.experiment.disturbed_pairs import find_disturbed_pairs, find_undisturbed_pairs, mark_disturbed_pairs
from powerprof.experiment.executions import Command, fit_executions, measure_executions
from powerprof.experiment.function_samples import sample_functions
from powerprof.experiment.measurement import judge
from powerprof.experiment.metrics import pair_figures
from powerprof.experiment.options import AROUND_S, MINIMUM_PAIRS, REPLACED_SHARE, ExperimentOptions, condition_record
from powerprof.experiment.plan import Offer, block_order, calibrate, check_comparable, check_options
from powerprof.experiment.records import Arm, Block, Comparison, ConditionRecord, ControlRecord, Metric, Plan
from powerprof.experiment.saved import are_runs, compare_saved
from powerprof.experiment.session import Session
from powerprof.experiment.starts import Starts
from powerprof.experiment.sweep_comparison import SweepComparison, are_sweeps, compare_sweeps
from powerprof.experiment.traced import trace_condition
from powerprof.experiment.verdict import (
    compare_functions,
    control_from_blocks,
    control_from_run,
    count_missing_pairs,
    judge_metrics,
)
from powerprof.measure.progress import Countdown
from powerprof.model.records import ServerInfo
from powerprof.model.text import Say
from powerprof.system import signals
from powerprof.system.errors import UsageError
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.definition import Explain
from powerprof.workloads.reading import Case, resolve


def build_comparison(session: Session) -> Comparison:
    """Judge the pairs and return the record: metrics, verdicts, threats, control and host.

    Only the description of the host is read from outside.
    """
    from powerprof.host.describe import host_record

    a, b = session.measurements(host_record())
    offer, seed = session.offer, session.options.seed
    judged = judge(a, b, seed)
    ends = [(metric.name, side.ci95[0]) for metric in judged.metrics for side in (metric.a, metric.b) if side.ci95]
    return replace(
        judged,
        design=session.design,
        order=session.order,
        blocks_count=len(session.order),
        offered_hz=offer.rate_hz if offer else None,
        queries_per_block=offer.queries if offer else None,
        control=_control(session, judged.metrics),
        baseline=session.before,
        baseline_after=session.after,
        blocks=session.blocks,
        traced=session.traced,
        on_cpu=compare_functions(session.sampled, seed, own_servers=session.starts > 0) if session.sampled else None,
        tool=session.tool,
        options=_options(session),
        energy_source=session.energy_source,
        notes=session.list_notes(ends),
        ended=a.ended,
    )


def _options(session: Session) -> dict[str, Any]:
    options = session.options
    return {
        "pairs_count": options.pairs,
        "window_s": options.window_s,
        "turn_s": session.turn_s,
        **({"starts_count": session.starts} if session.starts else {}),
        "design": options.design,
        "precision_percent": options.precision_percent,
        "control": options.control,
        "warm_up_pairs_count": options.warm_up_pairs,
        "energy_source": options.energy.source,
        "residency_source": options.residency_source,
    }


def _control(session: Session, metrics: list[Metric]) -> ControlRecord | None:
    seed = session.options.seed
    if not session.control:
        answering = metric_named(metrics, session.primary)
        # In alternating pairs, consecutive windows of A scatter far more than A and B of the same moments.
        return control_from_blocks(answering, seed) if answering and session.turn_s is None else None
    return control_from_run(pair_figures(session.control_pairs, session.baseline), session.primary, seed)


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
    return build_comparison(measure_pairs(case_a, case_b, bench, options, say))


def compare_commands(
    argv_a: Sequence[str], argv_b: Sequence[str], options: ExperimentOptions, say: Say, *, may_fail: bool
) -> Comparison:
    """Measure two commands in alternating order. Raise PowerprofError if no pair could be measured."""
    check_source(options)
    a, b = build_command_condition(argv_a), build_command_condition(argv_b)
    if a.name == b.name:
        b = msgspec.structs.replace(b, name=_name_again(b.name))
    commands: dict[Arm, Command] = {"a": Command(tuple(argv_a), may_fail), "b": Command(tuple(argv_b), may_fail)}
    session = Session((a, b), COMMAND_METRIC, options, notes=[*options.notes])
    say(options.plan(2))
    progress = Countdown(say, options.command_seconds(2))
    with session.measuring() as energy:
        for command in commands.values():
            progress(f"{command.argv[0]}: the first execution")
            fit_executions(command, options.window_s)
        session.before += measure_baseline(energy, options, "idle baseline before", progress)
        with session.ending.keeping(session.has_result):
            for number, pair in enumerate(block_order(options.pairs, options.seed)):
                for arm in pair:
                    label = f"pair {number + 1} of {options.pairs} · {format_so_far(session) or commands[arm].argv[0]}"
                    done = len(session.blocks)
                    progress.step(label, done, 2 * options.pairs, options.window_s, options.rest_s)
                    session.blocks.append(
                        measure_executions(commands[arm], number, arm, energy, options.residency_source)
                    )
        _leave_out_disturbed(session)
        if not signals.has_arrived():
            session.after += measure_baseline(energy, options, "idle baseline after", progress)
    session.notes += note_endings(list(commands.values()), session.blocks)
    return build_comparison(session)


def _leave_out_disturbed(session: Session) -> None:
    session.blocks, left_out = mark_disturbed_pairs(session.blocks, session.options.pairs)
    session.notes += left_out


def measure_pairs(
    case_a: Case, case_b: Case, bench_options: BenchOptions, options: ExperimentOptions, say: Say
) -> Session:
    """Measure the pairs of two conditions.

    After the first pair, a failure or an interrupt ends the measurement early and keeps the pairs. Raises
    PowerprofError if no pair was measured.
    """
    check_options([case_a, case_b], options)
    asked = case_a.workload.definition.primary_metric
    conditions = (condition_record(case_a), condition_record(case_b))
    session = Session(conditions, asked, options, notes=[*options.notes])
    say(options.plan(2))
    progress = Countdown(say, options.seconds(2))
    with session.measuring() as energy:
        progress("starting the server and loading its tables")
        with Bench([case_a, case_b], bench_options, session.notes.append) as bench:
            session.plans = [*_plans(bench, case_a, "a"), *_plans(bench, case_b, "b")]
            server, versions = bench.server(case_a), [bench.server(case).version for case in (case_a, case_b)]
            session.conditions = name_conditions(session.conditions, versions)
            known = " and ".join(dict.fromkeys(version for version in versions if version))
            session.server = ServerInfo(version=known or None, private=server.private, pid=server.pid)
            _PairRun(bench, (case_a, case_b), session, energy, progress).run()
    return session


class _PairRun:
    """One comparison on running servers."""

    def __init__(
        self, bench: Bench, cases: tuple[Case, Case], session: Session, energy: WindowEnergy, say: Countdown
    ) -> None:
        self._session, self._cases = session, cases
        self._options = options = session.options
        self._say = say
        self._next = options.warm_up_pairs + options.pairs
        session.offer = offer = calibrate(bench, cases, options, say)
        session.notes += offer.notes
        meters = energy.meters
        session.turn_s = choose_turn_length(bench, cases, offer, options, meters is None or meters.quick)
        self._apparatus = Apparatus(
            bench, options, offer, meters, energy.complete, say, session.notes, horizon_s=self._horizon(offer)
        )
        self._starts = Starts(bench, cases, say)

    def run(self) -> None:
        session, options = self._session, self._options
        session.before += self._apparatus.baseline("idle baseline before")
        if options.on_cpu:
            # Sample first: if this host cannot, fail before minutes of measuring.
            rate_hz = self._apparatus.offer.easy_rate_hz
            session.sampled += sample_functions(self._apparatus.bench, self._cases, rate_hz, options.seed, self._say)
        with session.ending.keeping(session.has_result):
            self._pairs(self._cases, session.blocks, options.pairs, options.warm_up_pairs, options.seed)
            self._replace_disturbed()
            self._go_on()
            if options.control:
                self._control()
            if options.attribute_s is not None:
                self._trace(options.attribute_s)
        _leave_out_disturbed(session)
        # Measure the baseline after failed blocks too: it shows a drift of the host. After a signal there is no time.
        if not signals.has_arrived():
            session.after += self._apparatus.baseline("idle baseline after")

    def _trace(self, duration_s: float) -> None:
        """Trace a window of each condition; it is in no headline figure."""
        rate_hz = self._apparatus.offer.easy_rate_hz
        arms_of: tuple[Arm, Arm] = ("a", "b")
        for arm, case in zip(arms_of, self._cases, strict=True):
            self._session.traced.append(
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
        starts = self._starts if cases is self._cases else Starts(self._apparatus.bench, cases, self._say)
        each_s += starts.seconds
        rest_s += 2 * (self._options.attribute_s or 0.0)
        if self._options.control and blocks is not self._session.control:
            rest_s += 2 * self._control_pairs * each_s
        for number, (pair, dropped) in enumerate(order, first):
            starts.begin_repetition()
            for case in cases:
                starts.renew(case, self._apparatus.offer.easy_rate_hz)
            self._session.starts = max(self._session.starts, starts.count)
            counted = number - (self._options.warm_up_pairs if first else warm_up) + 1
            of = "" if counted > pairs else f" of {pairs}"
            control = "control, " if blocks is self._session.control else ""
            figures = format_so_far(self._session) if blocks is self._session.blocks else ""
            label = "warm-up" if dropped else f"{control}pair {counted}{of}"
            done = 2 * (number - first)
            # Both halves of a pair use the same random numbers.
            slots = [Slot(number, arm, dropped, seed=1 + 1000 * seed + number) for arm in pair]
            if self._session.turn_s is not None:
                both = f"{cases[0].name} and {cases[1].name} alternate"
                self._say.step(f"{label} · {figures or both}", done, total, each_s, rest_s)
                blocks += self._taking_turns(cases, slots, self._session.turn_s)
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
        session, options = self._session, self._options
        left = int(options.pairs * REPLACED_SHARE)
        while left >= 2 and find_disturbed_pairs(session.blocks):
            if len(find_undisturbed_pairs(session.blocks)) >= options.pairs:
                return
            self._say("other programs ran: two pairs more")
            self._pairs(self._cases, session.blocks, 2, 0, options.seed + self._next, self._next)
            self._next += 2
            left -= 2

    def _go_on(self) -> None:
        """Measure more pairs at a time until the interval is narrow enough."""
        session, options, done = self._session, self._options, self._options.pairs
        while more := count_missing_pairs(
            judge_primary(session), options.precision_percent, done, options.most_pairs, session.notes
        ):
            self._pairs(self._cases, session.blocks, more, 0, options.seed + self._next, self._next)
            self._next += more
            done += more

    @property
    def _control_pairs(self) -> int:
        return max(MINIMUM_PAIRS, 6, self._options.pairs // 2)

    def _control(self) -> None:
        session, options = self._session, self._options
        pairs = self._control_pairs
        self._say("control: A against itself")
        self._pairs((self._cases[0], self._cases[0]), session.control, pairs, 0, options.seed + 77)


def judge_primary(session: Session) -> Metric | None:
    """Return the metric of the answer over the pairs so far; None if it has no value."""
    every, primary = pair_figures(session.pairs, session.baseline), session.primary
    asked = [each for each in every if each.a.name == primary]
    return next(iter(judge_metrics(asked, primary, session.options.seed, paired=session.are_starts_repeated)), None)


def format_so_far(session: Session) -> str:
    """Return the ratio of the primary metric after two or more pairs: `no-index ×10.4 so far (7.9 to 13.6)`."""
    primary = judge_primary(session) if len(session.pairs) >= MINIMUM_PAIRS else None
    ratio = primary.ratio if primary else None
    if ratio is None:
        return ""
    ends = "" if ratio.ci95 is None else f" ({ratio.ci95[0]:.3g} to {ratio.ci95[1]:.3g})"
    return f"{session.conditions[1].name} ×{ratio.b_over_a:.3g} so far{ends}"


def _plans(bench: Bench, case: Case, arm: Arm) -> list[Plan]:
    return [
        Plan(arm=arm, statement=wanted.statement, rows=msgspec.to_builtins(rows), asserted=bool(wanted.plan))
        for wanted, rows in bench.plans.get(case.qualified, [])
        if isinstance(wanted, Explain)
    ]


def name_conditions(
    conditions: tuple[ConditionRecord, ...], versions: Sequence[str | None]
) -> tuple[ConditionRecord, ...]:
    """Return the conditions with their workloads as parts of their names if these differ, and with different products.

    `versions` are those of the servers of A and B, such as `MariaDB 10.11.19`.
    """
    if len({condition.workload for condition in conditions}) == 1:
        return conditions
    names = [f"{condition.workload}:{condition.name}" for condition in conditions]
    if versions[0] != versions[1]:
        products = [version.partition(" ")[0] if version else "unknown server" for version in versions]
        shown = products if products[0] != products[1] else versions
        names = [f"{name} ({server})" for name, server in zip(names, shown, strict=True)]
    return tuple(
        msgspec.structs.replace(condition, name=name) for condition, name in zip(conditions, names, strict=True)
    )


def _name_again(name: str) -> str:
    """Return the second name of a condition or command that is compared with itself."""
    return f"{name} (again)"
