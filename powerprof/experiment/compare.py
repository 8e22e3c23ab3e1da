# SPDX-License-Identifier: Apache-2.0
"""From two names to a comparison: of saved runs as they are, of conditions by measuring."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from powerprof import __version__
from powerprof.energy.domains import unmetered
from powerprof.energy.windows import WindowEnergy
from powerprof.experiment.bench.plans import BenchOptions
from powerprof.experiment.judge import cost
from powerprof.experiment.judge.answer import answer, headline
from powerprof.experiment.judge.functions import function_changes
from powerprof.experiment.judge.metrics import (
    baseline_of,
    blocks_system,
    compared,
    figures_of,
    measured_names,
    with_mean,
)
from powerprof.experiment.judge.threats import crowded, differences, find_threats, leave_out, other_models
from powerprof.experiment.judge.verdict import judge, judge_saved, own_control, run_control
from powerprof.experiment.measure.plan import block_order, check_comparable
from powerprof.experiment.measure.traced import Command, exit_codes, fit, measure_executions
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import (
    Arm,
    Block,
    Comparison,
    ConditionRecord,
    ControlRecord,
    LoadOptions,
    LoadRun,
    Metric,
    Threat,
)
from powerprof.experiment.runner import Collected, collect, control_case
from powerprof.experiment.saved import Half, are_runs, read_half
from powerprof.experiment.sweep_comparison import SweepComparison, are_sweeps, compare_sweeps
from powerprof.measure.sampling import WindowMeter, now_text
from powerprof.model import text
from powerprof.model.records import EnergySource, Figures, ToolCost, Window
from powerprof.model.text import Say, counting_down
from powerprof.system.errors import Interrupted, PowerprofError, UsageError
from powerprof.workloads.catalogue import find_condition
from powerprof.workloads.reading import resolve

# From what was collected to the record that is saved: judged, with its threats, its control and its host.


def comparison(collected: Collected) -> Comparison:
    """The record of a comparison. Pure but for the description of this host."""
    from powerprof.host.describe import host_record

    a, b = collected.conditions
    offer = collected.offer
    design = offer.design if offer else "rate"
    windows = [
        window.energy for window in (*collected.before, *collected.after, *(block.window for block in collected.blocks))
    ]
    pairs, baseline, primary, seed = collected.pairs, collected.baseline, collected.primary, collected.options.seed
    by_model = [compared(*model) for model in other_models(pairs, baseline)]
    metrics = judge(compared(pairs, baseline), primary, seed, by_model=by_model)
    cpu_percent = 100 * collected.own_cpu_s / collected.own_wall_s if collected.own_wall_s else None
    return Comparison(
        id=None,
        command="compare",
        started_at=collected.started_at,
        a=a,
        b=b,
        design=design,
        order=collected.order,
        blocks_count=len(collected.order),
        metrics=metrics,
        system=_system(collected, metrics),
        verdict=answer(metrics, primary),
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
        on_cpu=function_changes(collected.sampled, seed) if collected.sampled else None,
        host=host_record(),
        server=collected.server,
        tool={"version": __version__, "cpu_s": collected.own_cpu_s, "cpu_percent": cpu_percent},
        options=_options(collected),
        energy_source=collected.energy_source,
        notes=[*dict.fromkeys(collected.notes), *unmetered(windows, baseline.meters)],
        interrupted=collected.interrupted,
        failure=collected.failure,
    )


def _system(collected: Collected, metrics: list[Metric]) -> list[Metric]:
    """What the system did in either condition, a family of its own: many figures that nobody asked for must not hide
    those of the conditions."""
    queries = next((metric for metric in metrics if metric.name == "queries_hz"), None)
    sides = []
    for arm in (0, 1):
        values = [(queries.a, queries.b)[arm].values] if queries else []
        done = [Figures(name="queries_hz", unit="1/s", kind="measured", values=each) for each in values]
        sides.append(blocks_system(done, [pair[arm] for pair in collected.pairs]))
    return judge_saved(sides[0], sides[1], "", collected.options.seed, paired=True)


def _options(collected: Collected) -> dict[str, Any]:
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


def _control(collected: Collected, metrics: list[Metric], primary: str) -> ControlRecord | None:
    seed = collected.options.seed
    if not collected.control:
        answering = next((metric for metric in metrics if metric.name == primary), None)
        # Where the conditions took turns, A's windows in a row scatter far more than A and B of the same moments.
        return own_control(answering, seed) if answering and collected.turn_s is None else None
    return run_control(compared(collected.control_pairs, collected.baseline), primary, seed)


# Two saved runs compared: refused where they did other work, judged as what was measured in pairs or apart.


def compare_saved(a: str, b: str, runs_dir: Path | None, seed: int) -> Comparison:
    """Compare two saved runs. Raises UsageError for different work, DataError for damaged runs."""
    first, second = read_half(a, runs_dir), read_half(b, runs_dir)
    if (first.run_id, first.name) == (second.run_id, second.name):
        raise UsageError(
            f"{a} and {b} are the same measurement", "name another run, or compare a condition with itself"
        )
    _refuse_different_work(first, second)
    names_in_both = {metric.name for metric in first.metrics} & {metric.name for metric in second.metrics}
    # One of them may have had a meter, and its answer be in joules; the other's is what both can answer by then.
    primary = next((half.primary for half in (first, second) if half.primary in names_in_both), first.primary)
    # The two conditions of one comparison were measured in pairs, and still are.
    paired = first.comparison is not None and first.comparison == second.comparison and first.name != second.name
    metrics = judge_saved(first.metrics, second.metrics, primary, seed, paired=paired)
    if not metrics:
        raise UsageError(f"{a} and {b} have no metric in common", "were they measured by the same kind of meter?")
    names = _names(first, second)
    listed = differences(first, second)
    threats = first.threats if paired else _apart(first, second)
    control = first.control if paired else None
    return Comparison(
        id=None,
        command="compare",
        started_at=max(first.started_at, second.started_at),
        a=msgspec.structs.replace(first.condition, name=names[0]),
        b=msgspec.structs.replace(second.condition, name=names[1]),
        design="rate",
        order=[],
        blocks_count=0,
        metrics=metrics,
        system=judge_saved(first.system, second.system, "", seed, paired=paired),
        verdict=answer(metrics, primary),
        control=control,
        seed=seed,
        threats=threats,
        differences=listed,
        host=second.host,
        server=second.server,
        options={"a": first.run_id, "b": second.run_id},
    )


def _apart(first: Half, second: Half) -> list[Threat]:
    """What threatens two runs of different times: that, and what was serious in either."""
    threats = [Threat(name="unpaired")]
    for half in (first, second):
        if half.interrupted:
            threats.append(Threat(name="interrupted", serious=True, values={"run": half.run_id}))
        threats += [
            msgspec.structs.replace(threat, text="", values={**_known(threat), "run": half.run_id})
            for threat in half.threats
            if threat.serious
        ]
    return threats


def _known(threat: Threat) -> dict[str, float | str]:
    return {"text": threat.text} if threat.text else threat.values


def _names(first: Half, second: Half) -> tuple[str, str]:
    if first.run_id != second.run_id:
        return first.run_id, second.run_id
    return first.name, second.name


def _refuse_different_work(first: Half, second: Half) -> None:
    if first.condition.workload != second.condition.workload:
        raise UsageError(
            f"{first.run_id} ran {first.condition.workload} and {second.run_id} ran {second.condition.workload}: "
            "different work cannot be compared",
            "compare runs of one workload",
        )
    same_condition = first.condition.name == second.condition.name
    if same_condition and first.condition.work != second.condition.work:
        raise UsageError(
            f"{first.run_id} and {second.run_id} ran different statements or data under the name "
            f"{first.condition.name}",
            "different work cannot be compared: run one of them again",
        )


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
    """Two saved runs or sweeps where both names are some, else two conditions on `bench`.

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
    """Measure two conditions by name. Raises UsageError where a name is unknown, ambiguous or fits not the other."""
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
        case_b = control_case(case_b)
    collected = collect(case_a, case_b, bench, options, say)
    return comparison(collected)


# Any command as a workload: what an execution costs, and which of two costs less.

ASKED = "cpu_s_per_execution"
_NAME_LIMIT = 60
_SOURCES = ("cpuidle", "procfs")
_BASELINE_S = (0.5, 4.0)


def condition_of(argv: Sequence[str]) -> ConditionRecord:
    """A command as a condition: its words are the work."""
    shown = [_as_text(word) for word in argv]
    digest = hashlib.sha256(json.dumps(list(argv)).encode()).hexdigest()[:16]
    return ConditionRecord(
        name=text.cut(shlex.join(shown), _NAME_LIMIT),
        workload="command",
        title="",
        load={"kind": "command", "argv": shown, "directory": _as_text(str(Path.cwd()))},
        settings={},
        work=digest,
    )


def _as_text(word: str) -> str:
    """A word of a command line or a path as it can be saved: they may hold any byte, a record holds UTF-8."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _check(options: ExperimentOptions) -> None:
    if options.residency_source not in _SOURCES:
        raise UsageError(
            f"--residency-source {options.residency_source} must know in advance how long a window is",
            "for a command: cpuidle or procfs",
        )


def _baseline(energy: WindowEnergy, options: ExperimentOptions, what: str, say: Say) -> Iterator[Window]:
    shortest_s, longest_s = _BASELINE_S
    length_s = max(shortest_s, min(options.window_s, longest_s))
    groups = {"powerprof": [os.getpid()]}
    with WindowMeter(meters=energy.meters, groups=groups, residency_source=options.residency_source) as meter:
        for window in meter.repeat(options.baseline_windows, length_s, what, say):
            yield energy.complete(window)


def _end_notes(commands: Sequence[Command], blocks: Sequence[Block]) -> list[str]:
    """What a reader has to know of the commands' ends."""
    failed = [code for code in exit_codes(blocks) if code]
    left = sum(command.leftovers_count for command in commands)
    notes = []
    if failed:
        notes.append(f"ended with exit code {text.listed([str(code) for code in failed])} in some executions or all")
    if left:
        notes.append(f"{left} executions left processes running in the background, which were ended")
    return notes


def run_command(argv: Sequence[str], options: ExperimentOptions, say: Say, *, may_fail: bool) -> LoadRun:
    """Measure one command. Raises PowerprofError where not one window could be measured."""
    from powerprof.host.describe import host_record

    _check(options)
    started_at, started_s, started_cpu_s = now_text(), time.monotonic(), time.process_time()
    command = Command(tuple(argv), may_fail)
    baseline: list[Window] = []
    blocks: list[Block] = []
    failure: str | None = None
    source: EnergySource | None = None
    interrupted = False
    say(options.plan(1))
    say = counting_down(say, options.seconds(1))
    try:
        with WindowEnergy(options.energy) as energy:
            source = energy.source
            say(f"{argv[0]}: the first execution")
            fit(command, options.window_s)
            baseline += _baseline(energy, options, "idle host", say)
            for number in range(options.pairs):
                say(f"{argv[0]}: window {number + 1} of {options.pairs}")
                blocks.append(measure_executions(command, number, "a", False, energy, options.residency_source))
    except Interrupted:
        interrupted = True
        if not blocks:
            raise
    except PowerprofError as error:
        if not blocks:
            raise
        interrupted = True
        failure = error.message
    cpu_s = time.process_time() - started_cpu_s
    idle = baseline_of(baseline, blocks)
    metrics = [with_mean(figures) for figures in figures_of(blocks, idle)]
    primary = headline(ASKED, measured_names(metrics))
    metrics.sort(key=lambda metric: metric.name != primary)
    condition = condition_of(argv)
    windows = [block.window for block in blocks]
    return LoadRun(
        id=None,
        command="run",
        started_at=started_at,
        host=host_record(),
        tool=ToolCost(
            version=__version__, cpu_s=cpu_s, wakeups_hz=None, cpu_percent=100 * cpu_s / (time.monotonic() - started_s)
        ),
        phases=[cost.combine(name, of) for name, of in (("baseline", baseline), ("command", windows)) if of],
        condition=condition,
        metrics=metrics,
        options=LoadOptions(
            primary_metric=primary,
            window_s=options.window_s,
            windows_count=len(blocks),
            design="work",
            energy_source=options.energy.source,
            residency_source=options.residency_source,
        ),
        blocks=blocks,
        energy_source=source,
        notes=[
            *_end_notes([command], blocks),
            *crowded(blocks),
            *unmetered([window.energy for window in [*baseline, *windows]], idle.meters),
        ],
        interrupted=interrupted,
        failure=failure,
    )


def compare_commands(
    argv_a: Sequence[str], argv_b: Sequence[str], options: ExperimentOptions, say: Say, *, may_fail: bool
) -> Comparison:
    """Measure two commands in turns. Raises PowerprofError where not one pair could be measured."""
    _check(options)
    a, b = condition_of(argv_a), condition_of(argv_b)
    if a.name == b.name:
        b = msgspec.structs.replace(b, name=f"{b.name} (again)")
    commands: dict[Arm, Command] = {"a": Command(tuple(argv_a), may_fail), "b": Command(tuple(argv_b), may_fail)}
    collected = Collected((a, b), ASKED, options, now_text())
    started_cpu_s, started_s = time.process_time(), time.monotonic()
    say(options.plan(2))
    say = counting_down(say, options.seconds(2))
    try:
        with WindowEnergy(options.energy) as energy:
            collected.energy_source = energy.source
            collected.notes += options.notes
            for command in commands.values():
                say(f"{command.argv[0]}: the first execution")
                fit(command, options.window_s)
            collected.before += _baseline(energy, options, "idle baseline before", say)
            for number, pair in enumerate(block_order(options.pairs, options.seed)):
                for arm in pair:
                    say(f"pair {number + 1} of {options.pairs}: {commands[arm].argv[0]}")
                    collected.blocks.append(
                        measure_executions(commands[arm], number, arm, False, energy, options.residency_source)
                    )
            collected.blocks, left_out = leave_out(collected.blocks, options.pairs)
            collected.notes += left_out
            collected.after += _baseline(energy, options, "idle baseline after", say)
    except Interrupted:
        collected.interrupted = True
        if not collected.pairs:
            raise
    except PowerprofError as error:
        if not collected.pairs:
            raise
        collected.interrupted = True
        collected.failure = error.message
    collected.notes += _end_notes(list(commands.values()), collected.blocks)
    collected.own_cpu_s, collected.own_wall_s = time.process_time() - started_cpu_s, time.monotonic() - started_s
    return msgspec.structs.replace(comparison(collected), design="work")
