"""One condition alone, in repeated windows: `powerprof run`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from powerprof import __version__
from powerprof.errors import Interrupted, PowerprofError
from powerprof.experiment.bench.servers import Bench, BenchOptions
from powerprof.experiment.condition import condition_record
from powerprof.experiment.judge import phases
from powerprof.experiment.judge.metrics import baseline_of, metrics_for
from powerprof.experiment.measure.block import Apparatus, Slot, measure_block
from powerprof.experiment.measure.calibration import Offer, calibrate
from powerprof.experiment.measure.traced import trace_condition
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Block, TracedWindow
from powerprof.records import Phase, Run, RunMetric, ServerInfo, ToolCost, Window
from powerprof.text import Say
from powerprof.windows.sampling import WindowMeter, now_text
from powerprof.windows.summary import interval
from powerprof.workloads.reading import Case

_ATTEMPTS = 3


class _Single:
    """The state of one run; `run` may be ended early and keeps what there is."""

    def __init__(self, case: Case, options: ExperimentOptions, say: Say) -> None:
        self._case = case
        self._options = options
        self._say = say
        self.offer: Offer | None = None
        self.baseline: list[Window] = []
        self.blocks: list[Block] = []
        self.notes: list[str] = []
        self.server: ServerInfo | None = None
        self.traced: TracedWindow | None = None

    def run(self, bench: Bench, meters: Any, complete: Callable[[Window], Window]) -> None:
        """Calibrate, measure the idle server, then the windows under load."""
        case, options = self._case, self._options
        server = bench.server(case)
        self.server = ServerInfo(version=server.version, private=server.private, pid=server.pid)
        self.offer = calibrate(bench, [case], options, self._say)
        self.notes += self.offer.notes
        bench.rest()
        time.sleep(0.5)
        with WindowMeter(
            meters=meters,
            groups={"server": list(bench.server_pids), "powerprof": [os.getpid()]},
            residency_source=options.residency_source,
        ) as meter:
            for number in range(options.baseline_windows):
                self._say(f"idle server, {number + 1} of {options.baseline_windows}")
                self.baseline.append(complete(meter.measure(max(0.5, min(options.window_s, 4.0)))))
        apparatus = Apparatus(bench, options, self.offer, meters, complete)
        for number in range(options.pairs + options.warm_up_pairs):
            dropped = number < options.warm_up_pairs
            self._say("warm-up" if dropped else f"{case.name}: {number - options.warm_up_pairs + 1} of {options.pairs}")
            self.blocks.append(self._block(apparatus, Slot(number, "a", dropped, 1 + 1000 * options.seed + number)))
        if options.attribute_s is not None:
            self.traced = trace_condition(bench, case, "a", options.attribute_s, self._say, self.offer.easy_rate_hz)

    def _block(self, apparatus: Apparatus, slot: Slot) -> Block:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return measure_block(apparatus, self._case, slot, attempt)
            except PowerprofError as error:
                if error.exit_code != 1 or attempt == _ATTEMPTS:
                    raise
                self.notes.append(f"window {slot.pair}, attempt {attempt}: {error.message}")
                apparatus.bench.revive(self._case)
        raise PowerprofError("a window failed too often")


def run_condition(case: Case, bench_options: BenchOptions, options: ExperimentOptions, say: Say) -> Run:
    """Measure one condition. Raises PowerprofError where not one window could be measured."""
    from powerprof.energy.windows import WindowEnergy

    started_at, started_s, started_cpu_s = now_text(), time.monotonic(), time.process_time()
    single = _Single(case, options, say)
    interrupted = False
    try:
        with WindowEnergy(options.energy_source, options.meter_log) as energy:
            single.notes += energy.notes
            with Bench([case], bench_options) as bench:
                single.notes += bench.notes
                single.run(bench, energy.meters, energy.complete)
    except Interrupted:
        interrupted = True
        if not single.blocks:
            raise
    except PowerprofError as error:
        if error.exit_code != 1 or not any(not block.dropped for block in single.blocks):
            raise
        interrupted = True
        single.notes.append(f"ended early: {error.message}")
    elapsed_s = time.monotonic() - started_s
    cpu_s = time.process_time() - started_cpu_s
    cost = ToolCost(version=__version__, cpu_s=cpu_s, wakeups_hz=None, cpu_percent=100 * cpu_s / elapsed_s)
    return _record(single, case, options, started_at, cost, interrupted)


def _record(
    single: _Single, case: Case, options: ExperimentOptions, started_at: str, cost: ToolCost, interrupted: bool
) -> Run:
    from powerprof.host.describe import host_record

    blocks = [block for block in single.blocks if not block.dropped] or single.blocks
    found: list[Phase] = []
    if single.baseline:
        found.append(phases.combine("server", single.baseline))
    found.append(phases.combine(case.name, [block.window for block in blocks]))
    primary = case.workload.definition.primary_metric
    metrics = []
    for values in metrics_for(blocks, baseline_of(single.baseline)):
        each = [values.of(block) for block in blocks]
        known = [value for value in each if value is not None]
        metrics.append(
            RunMetric(
                name=values.name,
                unit=values.unit,
                kind=values.kind,
                source=values.source,
                estimate=interval(known),
                values=each,
            )
        )
    metrics.sort(key=lambda metric: metric.name != primary)
    offer = single.offer
    return Run(
        id=None,
        command="run",
        started_at=started_at,
        host=host_record(),
        tool=cost,
        phases=found,
        server=single.server,
        condition=msgspec.to_builtins(condition_record(case)),
        metrics=metrics,
        options={
            "primary_metric": primary,
            "window_s": options.window_s,
            "windows_count": len(blocks),
            "design": offer.design if offer else None,
            "offered_hz": offer.rate_hz if offer else None,
            "queries_per_block": offer.queries if offer else None,
            "energy_source": options.energy_source,
            "residency_source": options.residency_source,
        },
        traced=None if single.traced is None else msgspec.to_builtins(single.traced),
        blocks=[msgspec.to_builtins(block) for block in blocks if block.members or block.storm],
        notes=list(dict.fromkeys(single.notes)),
        interrupted=interrupted,
    )
