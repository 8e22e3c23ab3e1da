# SPDX-License-Identifier: Apache-2.0
"""The steps of a published study one after the other, each saved when it is done: `powerprof study`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from powerprof.database.fetched import historical
from powerprof.energy.domains import AS_SEEN, EnergyRequest
from powerprof.experiment import sweep
from powerprof.experiment.bench.plans import BenchOptions
from powerprof.experiment.compare import compare_conditions
from powerprof.experiment.idle import QUICK_REPEAT, QUICK_WINDOW_S, IdlePlan, measure_idle
from powerprof.experiment.options import QUICK_BASELINES, QUICK_PAIRS, ExperimentOptions
from powerprof.experiment.options import QUICK_WINDOW_S as QUICK_BLOCK_S
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.experiment.run import run_condition
from powerprof.experiment.study_record import Measured, StudyRun, StudyStep, rows_of
from powerprof.experiment.sweep import find_key, seconds_of
from powerprof.experiment.sweep_record import SERVER
from powerprof.measure.sampling import now_text
from powerprof.model.text import Say, about
from powerprof.system import signals
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.workloads.catalogue import Study, StudyCommand, find_one
from powerprof.workloads.reading import resolve

# Of idle, of a sweep, and the windows of one condition.
_IDLE_WINDOW_S, _IDLE_REPEAT = 8.0, 5
_SWEEP_WINDOW_S, _SWEEP_ROUNDS, _QUICK_ROUNDS = 5.0, 5, 3
# A topology's servers start one after the other.
_TOPOLOGY_START_S = 10.0


class Keep(Protocol):
    """Words and saves what a step measured; the record with its id, if it is saved."""

    def __call__(self, command: str, record: Measured) -> Measured: ...


@dataclass(frozen=True)
class StudyOptions:
    """How a study is measured. `runs_dir`: where sweeps are kept as they go, unless `keeps` is False."""

    quick: bool = False
    seed: int = 1
    energy: EnergyRequest = AS_SEEN
    residency_source: str = "cpuidle"
    only: Sequence[str] = ()
    runs_dir: Path | None = None
    keeps: bool = True

    def loaded(self, step: StudyCommand) -> ExperimentOptions:
        """The windows of a run, a comparison or a sweep."""
        if step.command == "sweep":
            pairs, window_s = (_QUICK_ROUNDS if self.quick else _SWEEP_ROUNDS), _SWEEP_WINDOW_S
        else:
            pairs, window_s = (QUICK_PAIRS if self.quick else 10), 6.4
        options = ExperimentOptions(
            pairs=pairs,
            window_s=QUICK_BLOCK_S if self.quick else window_s,
            seed=self.seed,
            rate_hz=step.rate_hz,
            attribute_s=step.attribute_s,
            on_cpu=step.on_cpu,
            energy=self.energy,
            residency_source=self.residency_source,
            quick=self.quick and step.command == "compare",
        )
        if self.quick and step.command != "sweep":
            options = replace(options, baseline_windows=QUICK_BASELINES)
        return replace(options, warm_up_pairs=0) if step.command == "sweep" else options

    def idle(self, step: StudyCommand) -> IdlePlan:
        """The windows of silent servers."""
        return IdlePlan(
            clients=step.clients,
            duration_s=QUICK_WINDOW_S if self.quick else _IDLE_WINDOW_S,
            repeat=QUICK_REPEAT if self.quick else _IDLE_REPEAT,
            quick=self.quick,
            residency_source=self.residency_source,
            energy=self.energy,
        )


def seconds(study: Study, options: StudyOptions) -> float:
    """How long it takes, roughly."""
    return sum(_seconds(step, options) for step in study.steps if not options.only or step.name in options.only)


def _seconds(step: StudyCommand, options: StudyOptions) -> float:
    if step.command == "idle":
        return options.idle(step).seconds
    if step.command == "sweep":
        workload, _ = find_one(step.conditions[0])
        values = step.values or find_key(workload, step.parameter)[1]
        return seconds_of(len(values), options.loaded(step), baseline=step.parameter == SERVER)
    cases = [resolve(*find_one(name)) for name in step.conditions]
    more = sum(_TOPOLOGY_START_S for case in cases if case.topology.kind != "standalone")
    return options.loaded(step).seconds(len(cases)) + more


def plan(study: Study, options: StudyOptions) -> str:
    """What is going to be measured and how long that takes, to be printed before it begins."""
    steps = len([step for step in study.steps if not options.only or step.name in options.only])
    return f"{study.title}: {steps} step{'s' if steps != 1 else ''}, {about(seconds(study, options))}"


def measure_study(
    name: str,
    study: Study,
    options: StudyOptions,
    keep: Keep,
    say: Say,
    measure: Callable[[StudyCommand, StudyOptions, Say], Measured] | None = None,
) -> StudyRun:
    """Measure step by step. What cannot be measured here is noted with its step, and the next one begins.

    `measure` measures a step otherwise than by its command. Interrupted, it returns the steps that are done, so marked.
    Raises Interrupted before the first, PowerprofError where no step could be measured.
    """
    started_at, interrupted = now_text(), False
    measured: dict[str, Measured] = {}
    steps: list[StudyStep] = []
    first: PowerprofError | None = None
    say(plan(study, options))
    chosen = [step for step in study.steps if not options.only or step.name in options.only]
    for number, step in enumerate(chosen):
        left = sum(_seconds(later, options) for later in chosen[number:])
        say(f"step {number + 1} of {len(chosen)}: {step.typed} ({about(left)} left)")
        began = time.monotonic()
        try:
            made = (measure or measure_step)(step, options, say)
            signals.hold()
            record = keep(step.command, made)
        except Interrupted:
            interrupted = True
            if not measured:
                raise
            break
        except PowerprofError as error:
            first = first or error
            hint = f" ({error.hint})" if error.hint else ""
            steps.append(StudyStep(name=step.name, typed=step.typed, problem=f"{error.message}{hint}"))
            continue
        measured[step.name] = record
        problem = getattr(record, "failure", None)
        steps.append(
            StudyStep(
                name=step.name,
                typed=step.typed,
                run=record.id,
                seconds_s=time.monotonic() - began,
                problem=f"ended early: {problem}" if problem else None,
                doubts=_doubts(record),
            )
        )
        try:
            # A step that a failure ended is no end of the others; one that a signal ended is.
            if signals.came():
                raise Interrupted("interrupted")
            signals.release()
        except Interrupted:
            interrupted = True
            break
    if not measured and first is not None:
        raise first
    return record_of(name, study, measured, steps, options, started_at, interrupted=interrupted)


def _doubts(record: Measured) -> list[str]:
    """What its report says against believing it; worded by then."""
    if isinstance(record, Comparison):
        return list(record.verdict.doubts)
    return [str(note) for note in record.notes] if isinstance(record, LoadRun) else []


def record_of(
    name: str,
    study: Study,
    measured: Mapping[str, Measured],
    steps: list[StudyStep],
    options: StudyOptions,
    started_at: str,
    *,
    interrupted: bool,
) -> StudyRun:
    """The record of these steps."""
    one = next(iter(measured.values()), None)
    server: Any = getattr(one, "server", None)
    notes = ["--quick: few and short windows; for narrower intervals, leave it out"] if options.quick else []
    return StudyRun(
        id=None,
        command="study",
        started_at=started_at,
        study=name,
        title=study.title,
        published=study.published,
        page=study.page,
        steps=steps,
        rows=rows_of(study, measured, options.seed),
        host={} if one is None else one.host,
        server=server if isinstance(server, dict) else {} if server is None else msgspec.to_builtins(server),
        options={"quick": options.quick, "seed": options.seed, "only": list(options.only)},
        notes=notes,
        interrupted=interrupted,
    )


def measure_step(step: StudyCommand, options: StudyOptions, say: Say) -> Measured:
    """One step. Raises PowerprofError where nothing of it can be measured here."""
    if step.command == "idle":
        return measure_idle(options.idle(step), say)
    loaded = options.loaded(step)
    where = BenchOptions(server_build=None if step.build is None else historical.build(step.build))
    if step.command == "compare":
        a, b = step.conditions
        return compare_conditions(a, b, where, loaded, extra=(), say=say)
    if step.command == "run":
        return run_condition(resolve(*find_one(step.conditions[0])), where, loaded, say)
    request = sweep.SweepRequest(step.conditions[0], step.parameter, step.values)
    store = sweep.SweepStore(options.runs_dir, keep=options.keeps)
    return sweep.sweep(request, lambda: nullcontext(where), loaded, store, extra=(), say=say)
