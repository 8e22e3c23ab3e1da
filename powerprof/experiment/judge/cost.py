# SPDX-License-Identifier: Apache-2.0
"""What an idle run may claim: a cost only where its windows and the host's own drift leave no other reading. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from powerprof.experiment.judge import phases
from powerprof.idle_records import IdleRun
from powerprof.records import Delta, Estimate, Phase
from powerprof.statistics import welch_interval

# costs: beyond its interval and the drift. nothing: 0 or less lies in the interval, and a server cannot give back what
# the host did before it. drift: the host itself changed as much. single: one window a phase, so nothing is known of its
# scatter.
Finding = Literal["costs", "nothing", "drift", "single"]
_DRIFT_SHARE = 1 / 3


@dataclass(frozen=True)
class Claim:
    """One figure of the last phase against the first, and its verdict."""

    metric: str
    difference: Estimate
    finding: Finding


def delta_of(run: IdleRun, before: str, after: str, metric: str) -> Delta | None:
    """How a metric changed from one phase of a run to another; None where the run does not say."""
    return next((d for d in run.deltas if (d.from_phase, d.to_phase, d.name) == (before, after, metric)), None)


def claims(run: IdleRun, first: Phase, last: Phase) -> list[Claim]:
    """Wake-ups and C0, as far as both phases know them."""
    after = next((phase for phase in run.phases if phase.name == "baseline-after"), None)
    judged = []
    for metric in ("wakeups_hz", "c0_percent"):
        delta = delta_of(run, first.name, last.name, metric)
        if delta is not None:
            at_end = phases.values(after.windows, metric) if after is not None and first.name == "baseline" else []
            before, measured = (phases.values(phase.windows, metric) for phase in (first, last))
            # A record that keeps no windows has only what was made of them.
            whole = judge_cost(before, measured, at_end) if before and measured else _judge_interval(delta.difference)
            judged.append(Claim(metric, delta.difference, whole))
    return judged


def _judge_interval(difference: Estimate) -> Finding:
    if difference.low is None:
        return "single"
    return "costs" if difference.low > 0 else "nothing"


def judge_cost(before: Sequence[float], measured: Sequence[float], after: Sequence[float]) -> Finding:
    """Whether `measured` is above the host's own figure, known `before` and, where there are any, `after` it.

    It has to be above what was before by more than the interval, above all baseline windows together by more than
    theirs, which holds their drift, and by at least three times as much as the baseline moved meanwhile.
    """
    if not before or not measured:
        return "single"
    difference = welch_interval(before, measured)
    if difference is None:
        return "single"
    if difference.low <= 0:
        return "nothing"
    if after:
        together = welch_interval([*before, *after], measured)
        moved = abs(fmean(after) - fmean(before))
        if together is None or together.low <= 0 or moved >= _DRIFT_SHARE * (fmean(measured) - fmean(before)):
            return "drift"
    return "costs"
