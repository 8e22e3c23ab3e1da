# SPDX-License-Identifier: Apache-2.0
"""One measured condition, and the comparison of two: alternating ones, or two that were read from saved runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from powerprof.experiment.claims import answer_for, are_starts_repeated
from powerprof.experiment.records import Comparison, ConditionRecord, ControlRecord, Plan, Threat
from powerprof.experiment.verdict import judge_metrics, judge_saved, match_figures
from powerprof.model.records import Ended, Figures, ServerInfo


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One condition: its metrics with a value per window, its plans, and how the measurement ended.

    Attributes:
        run: the saved run that it was read from; empty if it is new.
        series: equal for two conditions that alternated: their n-th values are a pair.
        starts: how often its own servers were started; 0 if both conditions share their servers.
        system: figures of the system, judged as a separate family.
        by_model: the metrics by every other possible model of the estimate.
        steps: resolution of a count, by metric.
    """

    condition: ConditionRecord
    started_at: str
    primary: str
    metrics: Sequence[Figures]
    run: str = ""
    series: str | Path | None = None
    starts: int = 0
    system: Sequence[Figures] = ()
    by_model: Sequence[Sequence[Figures]] = ()
    steps: Mapping[str, float] = {}
    plans: Sequence[Plan] = ()
    host: dict[str, Any] = {}
    server: ServerInfo | None = None
    options: dict[str, Any] = {}
    ended: Ended | None = None
    threats: Sequence[Threat] = ()
    control: ControlRecord | None = None


def judge(a: Measurement, b: Measurement, seed: int) -> Comparison:
    """Compare two measurements of equal work, in pairs if they alternated. Host and server are those of B.

    Starts of one setting differ. So two conditions with one start each are judged as two runs.
    """
    paired = a.series is not None and a.series == b.series
    windows_count = max((len(each.values) for each in a.metrics), default=0)
    in_pairs = paired and are_starts_repeated(a.starts, windows_count)
    both = match_figures(a.metrics, b.metrics, a.steps)
    # If one run had a meter, its answer is in joules. Choose a primary metric that both have.
    names = {each.a.name for each in both}
    primary = next((side.primary for side in (a, b) if side.primary in names), a.primary)
    by_model = [match_figures(*model, a.steps) for model in zip(a.by_model, b.by_model, strict=False)]
    metrics = judge_metrics(both, primary, seed, paired=in_pairs, by_model=by_model, typical=True)
    return Comparison(
        command="compare",
        started_at=max(a.started_at, b.started_at),
        a=a.condition,
        b=b.condition,
        design="rate",
        order=[],
        blocks_count=0,
        metrics=metrics,
        system=judge_saved(a.system, b.system, "", seed, paired=in_pairs),
        verdict=answer_for(metrics, primary),
        control=a.control if paired else None,
        seed=seed,
        plans=[*a.plans, *b.plans],
        threats=list(a.threats) if paired else _find_unpaired_threats(a, b),
        host=b.host,
        server=b.server,
    )


def _find_unpaired_threats(first: Measurement, second: Measurement) -> list[Threat]:
    """Return the threats to runs of different times: the missing pairing, and the serious threats of each run."""
    threats = [Threat(name="unpaired")]
    for side in (first, second):
        if side.ended is not None:
            threats.append(Threat(name="interrupted", serious=True, values={"run": side.run}))
        threats += [
            msgspec.structs.replace(
                threat, text="", values={**({"text": threat.text} if threat.text else threat.values), "run": side.run}
            )
            for threat in side.threats
            if threat.serious
        ]
    return threats
