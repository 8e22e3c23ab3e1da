# SPDX-License-Identifier: Apache-2.0
"""Repeat a published study and compare its findings with today's figures.

Without a name, powerprof lists the studies. With one, it measures the steps of the study (idle, run, compare, sweep)
one after another. Each finished step is saved as a separate run; Ctrl-C keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from powerprof.cli.meter_options import MeterOptions
from powerprof.cli.options import CommandOptions
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import EXPERT_HEADING, Mode, argument, flag, group, option
from powerprof.cli.terminal import print_report, progress_printer, terminal_width
from powerprof.cli.window_options import seed
from powerprof.system.errors import UnknownNameError

if TYPE_CHECKING:
    from powerprof.experiment.study import StepRecord, StudyOptions


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `study`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("[STUDY]",), circumstance="on the list of studies", is_without=True, allows=("--quick",)),
    )

    name: str | None = argument("[STUDY]", "Study to measure (default: list the studies).")
    quick: bool = flag("--quick", "Few, short windows for a trial.")
    only: list[str] | None = option(
        "--only", "STEP", "Measure only this step; repeatable.", is_repeatable=True, heading=EXPERT_HEADING
    )
    seed: int = seed()
    meters: MeterOptions = group(MeterOptions)
    outputs: Outputs = output_files(*TABLES)
    saving: Saving = group(Saving)


def estimate_s(options: Options) -> float:
    """Return the approximate duration of a named study in s."""
    from powerprof.experiment.study import estimate_study_seconds
    from powerprof.workloads.studies import find_study

    return estimate_study_seconds(find_study(str(options.name)), _plan(options, options.saving))


def _plan(options: Options, saving: Saving) -> StudyOptions:
    from powerprof.experiment.study import StudyOptions

    return StudyOptions(
        quick=options.quick,
        seed=options.seed,
        energy=options.meters.energy.request,
        residency_source=options.meters.residency_source,
        only=tuple(options.only or ()),
        runs_dir=saving.runs_dir,
        keeps=not saving.no_save,
    )


def command(options: Options) -> None:
    """List the studies; or measure one, save and print it."""
    name, only = options.name, options.only or []
    from powerprof.workloads.studies import find_study

    if name is None:
        _list(quick=options.quick)
        return
    saving = check_saving(options.saving, options.outputs)
    study = find_study(name)
    steps = [step.name for step in study.steps]
    unknown = next((step for step in only if step not in steps), None)
    if unknown is not None:
        raise UnknownNameError(f"--only {unknown}: {name} has no such step", unknown, steps)
    from powerprof.experiment.study import measure_study

    record = measure_study(
        name, study, _plan(options, saving), lambda kind, step: _keep(kind, step, saving), progress_printer(saving)
    )
    deliver(record, "study", saving)


def _keep(verb: str, record: StepRecord, saving: Saving) -> StepRecord:
    """Save the record of a step with its sentences."""
    from powerprof.model.runs import RunStore
    from powerprof.report.history import about
    from powerprof.report.wording import word_record

    record = word_record(record)
    if not saving.no_save:
        store, described = RunStore(saving.runs_dir), about(record, saving.label or ())
        if record.id is not None:  # a sweep is saved since its first round
            store.describe(record.id, described)
        else:
            record = store.save(verb, record, None, described)
    return record


def _list(*, quick: bool) -> None:
    from powerprof.experiment.study import StudyOptions, describe_plan
    from powerprof.report.study import listing
    from powerprof.workloads.studies import find_study, list_studies

    studies = {name: find_study(name) for name in list_studies()}
    plans = {name: describe_plan(study, StudyOptions(quick=quick)) for name, study in studies.items()}
    print_report(listing(plans, terminal_width()))
