# SPDX-License-Identifier: Apache-2.0
"""Two saved runs compared: refused where they did other work, judged as what was measured in pairs or apart."""

from __future__ import annotations

from pathlib import Path

import msgspec

from powerprof.errors import UsageError
from powerprof.experiment.judge.answer import answer
from powerprof.experiment.judge.confounders import differences
from powerprof.experiment.judge.verdict import judge_saved
from powerprof.experiment.records import Comparison, Threat
from powerprof.experiment.saved import Half, read_half


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
