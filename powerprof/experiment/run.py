# SPDX-License-Identifier: Apache-2.0
"""One condition alone, in repeated windows: `powerprof run`."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from powerprof import __version__
from powerprof.energy.domains import unmetered
from powerprof.experiment.bench.plans import BenchOptions
from powerprof.experiment.bench.servers import Bench
from powerprof.experiment.judge import cost as phases
from powerprof.experiment.judge.answer import headline
from powerprof.experiment.judge.metrics import baseline_of, blocks_system, figures_of, measured_names, with_mean
from powerprof.experiment.judge.threats import crowded
from powerprof.experiment.measure.block import Apparatus, measure_block
from powerprof.experiment.measure.plan import Offer, calibrate, check_asked
from powerprof.experiment.measure.traced import trace_condition
from powerprof.experiment.options import ExperimentOptions, condition_record
from powerprof.experiment.records import Block, LoadOptions, LoadRun, TraceSummary
from powerprof.measure.sampling import now_text
from powerprof.model.records import EnergySource, Note, Phase, ServerInfo, ToolCost, Window
from powerprof.model.text import Say, counting_down
from powerprof.system.errors import Interrupted, PowerprofError
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.energy.windows import WindowEnergy


class _Single:
    """The state of one run; `run` may be ended early and keeps what there is."""

    def __init__(self, case: Case, options: ExperimentOptions, say: Say) -> None:
        self._case = case
        self._options = options
        self._say = say
        self.offer: Offer | None = None
        self.baseline: list[Window] = []
        self.blocks: list[Block] = []
        self.energy_source: EnergySource | None = None
        self.notes: list[str | Note] = []
        self.failure: str | None = None
        self.server: ServerInfo | None = None
        self.traced: TraceSummary | None = None

    def run(self, bench: Bench, energy: WindowEnergy) -> None:
        """Calibrate, measure the idle server, then the windows under load."""
        case, options = self._case, self._options
        server = bench.server(case)
        self.server = ServerInfo(version=server.version, private=server.private, pid=server.pid)
        self.offer = offer = calibrate(bench, [case], options, self._say)
        self.notes += offer.notes
        apparatus = Apparatus(bench, options, offer, energy.meters, energy.complete, self._say, self.notes)
        self.baseline += apparatus.baseline("idle server")
        for slot in apparatus.slots():
            number = slot.pair - options.warm_up_pairs + 1
            self._say("warm-up" if slot.dropped else f"{case.name}: {number} of {options.pairs}")
            measure = partial(measure_block, apparatus, case, slot)
            self.blocks.append(apparatus.repeated(measure, [case], slot))
        if options.attribute_s is not None:
            self.traced = trace_condition(bench, case, "a", options.attribute_s, self._say, offer.easy_rate_hz)


def run_condition(case: Case, bench_options: BenchOptions, options: ExperimentOptions, say: Say) -> LoadRun:
    """Measure one condition. Raises PowerprofError where not one window could be measured."""
    from powerprof.energy.windows import WindowEnergy

    check_asked([case], options)
    started_at, started_s, started_cpu_s = now_text(), time.monotonic(), time.process_time()
    say(options.plan(1))
    single = _Single(case, options, counting_down(say, options.seconds(1)))
    interrupted = False
    try:
        with WindowEnergy(options.energy) as energy:
            single.energy_source = energy.source
            with Bench([case], bench_options, single.notes.append) as bench:
                single.run(bench, energy)
    except Interrupted:
        interrupted = True
        if not single.blocks:
            raise
    except PowerprofError as error:
        if not any(not block.dropped for block in single.blocks):
            raise
        interrupted = True
        single.failure = error.message
    elapsed_s = time.monotonic() - started_s
    cpu_s = time.process_time() - started_cpu_s
    cost = ToolCost(version=__version__, cpu_s=cpu_s, wakeups_hz=None, cpu_percent=100 * cpu_s / elapsed_s)
    return _record(single, case, options, started_at, cost, interrupted)


def _record(
    single: _Single, case: Case, options: ExperimentOptions, started_at: str, cost: ToolCost, interrupted: bool
) -> LoadRun:
    from powerprof.host.describe import host_record

    blocks = [block for block in single.blocks if not block.dropped] or single.blocks
    phases_of_run: list[Phase] = []
    if single.baseline:
        phases_of_run.append(phases.combine("server", single.baseline))
    phases_of_run.append(phases.combine(case.name, [block.window for block in blocks]))
    baseline = baseline_of(single.baseline, single.blocks)
    metered = [window.energy for window in (*single.baseline, *(block.window for block in single.blocks))]
    metrics = [with_mean(figures) for figures in figures_of(blocks, baseline)]
    primary = headline(case.workload.definition.primary_metric, measured_names(metrics))
    metrics.sort(key=lambda metric: metric.name != primary)
    offer = single.offer
    return LoadRun(
        id=None,
        command="run",
        started_at=started_at,
        host=host_record(),
        tool=cost,
        phases=phases_of_run,
        server=single.server,
        condition=condition_record(case),
        metrics=metrics,
        system=blocks_system([metric for metric in metrics if metric.name == "queries_hz"], blocks),
        options=LoadOptions(
            primary_metric=primary,
            window_s=options.window_s,
            windows_count=len(blocks),
            design=offer.design if offer else None,
            offered_hz=offer.rate_hz if offer else None,
            queries_per_block=offer.queries if offer else None,
            energy_source=options.energy.source,
            residency_source=options.residency_source,
        ),
        traced=single.traced,
        blocks=[block for block in blocks if block.members or block.storm or block.slices],
        energy_source=single.energy_source,
        notes=[*dict.fromkeys(single.notes), *crowded(blocks), *unmetered(metered, baseline.meters)],
        interrupted=interrupted,
        failure=single.failure,
    )
