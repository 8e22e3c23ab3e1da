# SPDX-License-Identifier: Apache-2.0
"""From what was collected to the record that is saved: judged, with its threats, its control and its host."""

from __future__ import annotations

from typing import Any

import msgspec

from powerprof import __version__
from powerprof.energy.domains import unmetered
from powerprof.experiment.collected import Collected
from powerprof.experiment.judge.answer import answer
from powerprof.experiment.judge.functionchanges import function_changes
from powerprof.experiment.judge.modelrange import with_model_range
from powerprof.experiment.judge.threats import doubts_of, find_threats
from powerprof.experiment.judge.verdict import judge, own_control, pairs_of
from powerprof.experiment.records import Answer, Comparison, Control, Metric, Threat
from powerprof.statistics import compare_pairs, judge_control


def comparison(found: Collected) -> Comparison:
    """The record of a comparison. Pure but for the description of this host."""
    from powerprof.host.describe import host_record

    a, b = found.conditions
    offer = found.offer
    design = offer.design if offer else "rate"
    windows = [window.energy for window in (*found.before, *found.after, *(block.window for block in found.blocks))]
    sampled = judge(found.blocks, found.baseline, found.primary, found.options.seed)
    metrics = with_model_range(sampled, found.blocks, found.baseline, found.options.seed)
    threats = find_threats(found.blocks, found.before, found.after, design)
    control = _control(found, metrics)
    cpu_percent = 100 * found.own_cpu_s / found.own_wall_s if found.own_wall_s else None
    return Comparison(
        id=None,
        command="compare",
        started_at=found.started_at,
        a=a,
        b=b,
        design=design,
        order=found.order,
        blocks_count=len(found.order),
        metrics=metrics,
        verdict=_answer(found, metrics, threats, control),
        seed=found.options.seed,
        offered_hz=offer.rate_hz if offer else None,
        queries_per_block=offer.queries if offer else None,
        plans=found.plans,
        threats=threats,
        control=control,
        baseline=found.before,
        baseline_after=found.after,
        blocks=found.blocks,
        traced=found.traced,
        on_cpu=function_changes(found.sampled, found.options.seed) if found.sampled else None,
        host=host_record(),
        server=found.server,
        tool={"version": __version__, "cpu_s": found.own_cpu_s, "cpu_percent": cpu_percent},
        options=_options(found),
        energy_source=found.energy_source,
        notes=[*dict.fromkeys(found.notes), *unmetered(windows, found.baseline.meters)],
        interrupted=found.interrupted,
        failure=found.failure,
    )


def _options(found: Collected) -> dict[str, Any]:
    options = found.options
    return {
        "pairs_count": options.pairs,
        "window_s": options.window_s,
        "turn_s": found.turn_s,
        "design": options.design,
        "precision_percent": options.precision_percent,
        "control": options.control,
        "warm_up_pairs_count": options.warm_up_pairs,
        "energy_source": options.energy_source,
        "residency_source": options.residency_source,
    }


def _control(found: Collected, metrics: list[Metric]) -> Control | None:
    primary = next((metric for metric in metrics if metric.name == found.primary), None)
    if not found.control:
        # Where the conditions took turns, A's windows in a row scatter far more than A and B of the same moments.
        return own_control(primary, found.options.seed) if primary and found.turn_s is None else None
    again = judge(found.control, found.baseline, found.primary, found.options.seed)
    chosen = next((metric for metric in again if metric.name == found.primary), None)
    if chosen is None:
        return None
    both = [(x, y) for x, y in zip(chosen.a.values, chosen.b.values, strict=True) if x is not None and y is not None]
    judged = judge_control(compare_pairs([x for x, _ in both], [y for _, y in both], seed=found.options.seed))
    return Control(
        kind="run",
        pairs_count=len(both),
        sound=judged.sound,
        half_width_percent=judged.half_width_percent,
        text=judged.text,
    )


def _answer(found: Collected, metrics: list[Metric], threats: list[Threat], control: Control | None) -> Answer:
    a, b = found.conditions
    said = answer(metrics, found.primary, a.name, b.name)
    if not pairs_of(found.blocks):
        return msgspec.structs.replace(said, doubts=["no complete pair was measured"])
    return msgspec.structs.replace(said, doubts=doubts_of(threats, control, metrics, found.primary))
