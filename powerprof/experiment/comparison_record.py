# SPDX-License-Identifier: Apache-2.0
"""From what was collected to the record that is saved: judged, with its threats, its control and its host."""

from __future__ import annotations

from typing import Any

from powerprof import __version__
from powerprof.energy.domains import unmetered
from powerprof.experiment.collected import Collected
from powerprof.experiment.judge.answer import answer
from powerprof.experiment.judge.functionchanges import function_changes
from powerprof.experiment.judge.metrics import compared
from powerprof.experiment.judge.modelrange import other_models
from powerprof.experiment.judge.system import blocks_system
from powerprof.experiment.judge.threats import find_threats
from powerprof.experiment.judge.verdict import judge, judge_saved, own_control, run_control
from powerprof.experiment.records import Comparison, ControlRecord, Metric
from powerprof.figures import Figures


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
