# SPDX-License-Identifier: Apache-2.0
"""From what was collected to the record that is saved: judged, with its threats, its control and its host."""

from __future__ import annotations

from typing import Any

from powerprof import __version__
from powerprof.energy.domains import unmetered
from powerprof.experiment.collected import Collected
from powerprof.experiment.judge.answer import answer
from powerprof.experiment.judge.functionchanges import function_changes
from powerprof.experiment.judge.metrics import metrics_for, run_metrics
from powerprof.experiment.judge.modelrange import with_model_range
from powerprof.experiment.judge.threats import find_threats
from powerprof.experiment.judge.verdict import judge, judge_system, own_control, pairs_of
from powerprof.experiment.measure.withqueries import blocks_system
from powerprof.experiment.records import Comparison, ControlRecord, Metric
from powerprof.statistics import compare_pairs, judge_control


def comparison(collected: Collected) -> Comparison:
    """The record of a comparison. Pure but for the description of this host."""
    from powerprof.host.describe import host_record

    a, b = collected.conditions
    offer = collected.offer
    design = offer.design if offer else "rate"
    windows = [
        window.energy for window in (*collected.before, *collected.after, *(block.window for block in collected.blocks))
    ]
    sampled = judge(collected.blocks, collected.baseline, collected.primary, collected.options.seed)
    metrics = with_model_range(sampled, collected.blocks, collected.baseline, collected.options.seed)
    threats = find_threats(collected.blocks, collected.before, collected.after, design)
    control = _control(collected, metrics)
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
        system=_system(collected),
        verdict=answer(metrics, collected.primary),
        seed=collected.options.seed,
        offered_hz=offer.rate_hz if offer else None,
        queries_per_block=offer.queries if offer else None,
        plans=collected.plans,
        threats=threats,
        control=control,
        baseline=collected.before,
        baseline_after=collected.after,
        blocks=collected.blocks,
        traced=collected.traced,
        on_cpu=function_changes(collected.sampled, collected.options.seed) if collected.sampled else None,
        host=host_record(),
        server=collected.server,
        tool={"version": __version__, "cpu_s": collected.own_cpu_s, "cpu_percent": cpu_percent},
        options=_options(collected),
        energy_source=collected.energy_source,
        notes=[*dict.fromkeys(collected.notes), *unmetered(windows, collected.baseline.meters)],
        interrupted=collected.interrupted,
        failure=collected.failure,
    )


def _system(collected: Collected) -> list[Metric]:
    pairs = pairs_of(collected.blocks)
    sides = []
    for arm in (0, 1):
        blocks = [pair[arm] for pair in pairs]
        queries = [values for values in metrics_for(blocks, collected.baseline) if values.name == "queries_hz"]
        sides.append(blocks_system(run_metrics(queries, blocks), blocks))
    return judge_system(sides[0], sides[1], collected.options.seed, paired=True)


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


def _control(collected: Collected, metrics: list[Metric]) -> ControlRecord | None:
    primary = next((metric for metric in metrics if metric.name == collected.primary), None)
    if not collected.control:
        # Where the conditions took turns, A's windows in a row scatter far more than A and B of the same moments.
        return own_control(primary, collected.options.seed) if primary and collected.turn_s is None else None
    again = judge(collected.control, collected.baseline, collected.primary, collected.options.seed)
    chosen = next((metric for metric in again if metric.name == collected.primary), None)
    if chosen is None:
        return None
    both = [(x, y) for x, y in zip(chosen.a.values, chosen.b.values, strict=True) if x is not None and y is not None]
    judged = judge_control(compare_pairs([x for x, _ in both], [y for _, y in both], seed=collected.options.seed))
    return ControlRecord(
        kind="run",
        pairs_count=len(both),
        sound=judged.sound,
        half_width_percent=judged.half_width_percent,
        difference_percent=judged.difference_percent,
    )
