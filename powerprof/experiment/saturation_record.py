# SPDX-License-Identifier: Apache-2.0
"""The highest rate that holds a limit: the search for it (pure), and what is saved, `powerprof.saturation/1`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from powerprof.experiment.records import Block, ConditionRecord, Range, Ratio
from powerprof.records import Estimate, Notes
from powerprof.statistics import Verdict, compare_pairs
from powerprof.windows.summary import interval

# Below this share of what was offered the queue grows; where few were offered, a Poisson stream itself varies more.
_KEPT_UP, _DEVIATIONS = 0.9, 3.0


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What must hold: a metric of a window, at most so much of its unit."""

    metric: Literal["latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "c0_percent"]
    at_most: float
    unit: Literal["ms", "%"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One window at one rate. `value` is the limit's metric, None where unknown; `failure`: why the client ended."""

    round: int
    rate_hz: float
    finished_hz: float | None
    value: float | None
    held: bool
    failure: str | None = None


class Saturated(msgspec.Struct, frozen=True, kw_only=True):
    """One condition: what it does as fast as it goes, and the highest rate that held, a value each round.

    None in `values`: not even the lowest rate that was tried held. `limited` False: the limit held up to what the
    condition can do at all. `rate_hz` is the mean with its 95 % interval; None where a round has no value.
    """

    name: str
    condition: ConditionRecord
    capacity_hz: float
    rate_hz: Estimate | None
    values: list[float | None]
    resolution_hz: float
    limited: bool
    trials: list[Trial]


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that holds a limit, of one condition or before and after a change."""

    id: str | None
    command: str
    started_at: str
    limit: Limit
    a: Saturated
    b: Saturated | None = None
    ratio: Ratio | None = None
    verdict: Verdict | None = None
    rounds_count: int = 0
    host: dict[str, Any] = {}
    server: dict[str, Any] = {}
    options: dict[str, Any] = {}
    notes: Notes = []
    interrupted: bool = False
    schema: Literal["powerprof.saturation/1"] = "powerprof.saturation/1"

    @property
    def condition(self) -> ConditionRecord:
        """What it is kept under in the history of runs: the one condition, or the first."""
        return self.a.condition


def trial_of(limit: Limit, block: Block, number: int, rate_hz: float) -> Trial:
    """What a window at a rate says of the limit. A server that falls behind holds no limit."""
    seconds = block.window.window_s
    finished_hz = block.queries / seconds if block.queries is not None and seconds else None
    found = {
        "latency_p50_ms": block.p50_ms,
        "latency_p95_ms": block.p95_ms,
        "latency_p99_ms": block.p99_ms,
        "c0_percent": block.window.c0_percent,
    }[limit.metric]
    chance_hz = _DEVIATIONS * math.sqrt(rate_hz / seconds) if seconds else 0.0
    kept_up = finished_hz is not None and finished_hz >= min(_KEPT_UP * rate_hz, rate_hz - chance_hz)
    held = kept_up and found is not None and found <= limit.at_most
    return Trial(round=number, rate_hz=rate_hz, finished_hz=finished_hz, value=found, held=held)


def search(trial: Callable[[float], Trial], capacity_hz: float, steps: int) -> list[Trial]:
    """Halve the rates between none and what the condition can do, `steps` times: below, where a trial held, the limit
    is taken to hold, and above, where it did not, not to.

    Rates are whole numbers from 1: clients take no others.
    """
    low, high = 0.0, capacity_hz
    trials: list[Trial] = []
    for _ in range(steps):
        rate = float(max(1, round((low + high) / 2)))
        if trials and rate in (low, high):
            break
        trials.append(trial(rate))
        low, high = (rate, high) if trials[-1].held else (low, rate)
    return trials


def highest(trials: Sequence[Trial], capacity_hz: float) -> float | None:
    """What one search found: the middle between the highest rate that held and the next above that did not."""
    held = [trial.rate_hz for trial in trials if trial.held]
    if not held:
        return None
    failed = [trial.rate_hz for trial in trials if not trial.held]
    return (max(held) + min([*failed, capacity_hz])) / 2


def saturated(
    name: str, condition: ConditionRecord, capacity_hz: float, rounds: Sequence[Sequence[Trial]]
) -> Saturated:
    """One condition over its rounds; at least one."""
    values = [highest(trials, capacity_hz) for trials in rounds]
    known = [value for value in values if value is not None]
    trials = [trial for each in rounds for trial in each]
    return Saturated(
        name=name,
        condition=condition,
        capacity_hz=capacity_hz,
        rate_hz=interval(known, 0.0) if len(known) == len(values) else None,
        values=values,
        resolution_hz=max(1.0, capacity_hz / 2 ** max(len(each) for each in rounds)),
        limited=any(not trial.held for trial in trials),
        trials=trials,
    )


def compared(a: Saturated, b: Saturated, seed: int) -> tuple[Ratio | None, Verdict | None]:
    """b / a over the rounds that both have, with its interval; None where fewer than two have both."""
    both = [(x, y) for x, y in zip(a.values, b.values, strict=False) if x is not None and y is not None]
    if len(both) < 2:
        return None, None
    result = compare_pairs([x for x, _ in both], [y for _, y in both], seed=seed)
    ends: Range | None = None
    if result.ratio_interval is not None:
        ends = (result.ratio_interval.low, result.ratio_interval.high)
    return (None if result.ratio is None else Ratio(b_over_a=result.ratio, ci95=ends)), result.verdict
