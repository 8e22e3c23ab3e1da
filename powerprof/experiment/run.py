# SPDX-License-Identifier: Apache-2.0
"""Measure one condition or one command in repeated windows: `powerprof run`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from powerprof.experiment import phases
from powerprof.experiment.apparatus import Apparatus
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.block import measure_block
from powerprof.experiment.command_records import (
    COMMAND_METRIC,
    build_command_condition,
    check_source,
    measure_baseline,
    note_endings,
)
from powerprof.experiment.executions import Command, fit_executions, measure_executions
from powerprof.experiment.metrics import add_mean, format_cost_so_far
from powerprof.experiment.options import AROUND_S, ExperimentOptions, condition_record
from powerprof.experiment.plan import calibrate, check_options
from powerprof.experiment.records import LoadOptions, LoadRun
from powerprof.experiment.session import Session
from powerprof.experiment.system_metrics import system_of_blocks
from powerprof.experiment.threats import note_other_load
from powerprof.experiment.traced import trace_condition
from powerprof.measure.progress import Countdown, join_parts
from powerprof.model.records import ServerInfo
from powerprof.model.text import Say
from powerprof.workloads.reading import Case


def build_run(session: Session, phase_names: tuple[str, str]) -> LoadRun:
    """Return the record of a run; `phase_names` are those of the idle windows and of the blocks."""
    from powerprof.host.describe import host_record

    (measured,) = session.measurements(host_record())
    options, offer, blocks = session.options, session.offer, session.counted
    is_command = offer is None
    metrics = [add_mean(figures) for figures in measured.metrics]
    metrics.sort(key=lambda metric: metric.name != measured.primary)
    windows = (session.before, [block.window for block in blocks])
    return LoadRun(
        command="run",
        started_at=measured.started_at,
        host=measured.host,
        tool=session.tool,
        phases=[phases.combine_windows(name, of) for name, of in zip(phase_names, windows, strict=True) if of],
        server=measured.server,
        condition=measured.condition,
        metrics=metrics,
        system=[] if is_command else system_of_blocks([m for m in metrics if m.name == "queries_hz"], blocks),
        options=LoadOptions(
            primary_metric=measured.primary,
            window_s=options.window_s,
            windows_count=len(blocks),
            design=session.design,
            offered_hz=offer.rate_hz if offer else None,
            queries_per_block=offer.queries if offer else None,
            energy_source=options.energy.source,
            residency_source=options.residency_source,
        ),
        traced=session.traced[0] if session.traced else None,
        blocks=[block for block in blocks if is_command or block.members or block.storm or block.slices],
        energy_source=session.energy_source,
        notes=session.list_notes(((metric.name, metric.estimate.low) for metric in metrics), note_other_load(blocks)),
        ended=measured.ended,
    )


def run_condition(case: Case, bench_options: BenchOptions, options: ExperimentOptions, say: Say) -> LoadRun:
    """Measure one condition. Raise PowerprofError if no window could be measured."""
    check_options([case], options)
    session = Session((condition_record(case),), case.workload.definition.primary_metric, options)
    say(options.plan(1))
    progress = Countdown(say, options.seconds(1))
    with session.measuring() as energy, Bench([case], bench_options, session.notes.append) as bench:
        server = bench.server(case)
        session.server = ServerInfo(version=server.version, private=server.private, pid=server.pid)
        session.offer = offer = calibrate(bench, [case], options, progress)
        session.notes += offer.notes
        apparatus = Apparatus(bench, options, offer, energy.meters, energy.complete, progress, session.notes)
        session.before += apparatus.baseline("idle server")
        slots = list(apparatus.slots())
        for slot in slots:
            number = slot.pair - options.warm_up_pairs + 1
            label = "warm-up" if slot.dropped else f"{case.name}: window {number} of {options.pairs}"
            label = join_parts(label, format_cost_so_far(session.blocks))
            progress.step(label, slot.pair, len(slots), options.window_s + AROUND_S, options.attribute_s or 0.0)
            session.blocks.append(apparatus.repeated(partial(measure_block, apparatus, case, slot), [case], slot))
        if options.attribute_s is not None:
            session.traced.append(trace_condition(bench, case, "a", options.attribute_s, progress, offer.easy_rate_hz))
    return build_run(session, ("server", case.name))


def run_command(argv: Sequence[str], options: ExperimentOptions, say: Say, *, may_fail: bool) -> LoadRun:
    """Measure one command. Raise PowerprofError if no window could be measured."""
    check_source(options)
    command = Command(tuple(argv), may_fail)
    session = Session((build_command_condition(argv),), COMMAND_METRIC, options)
    say(options.plan(1))
    progress = Countdown(say, options.command_seconds(1))
    with session.measuring() as energy:
        progress(f"{argv[0]}: the first execution")
        fit_executions(command, options.window_s)
        session.before += measure_baseline(energy, options, "idle host", progress)
        for number in range(options.pairs):
            label = join_parts(f"{argv[0]}: window {number + 1} of {options.pairs}", format_cost_so_far(session.blocks))
            progress.step(label, number, options.pairs, options.window_s)
            session.blocks.append(measure_executions(command, number, "a", energy, options.residency_source))
    session.notes += note_endings([command], session.blocks)
    return build_run(session, ("baseline", "command"))
