# SPDX-License-Identifier: Apache-2.0
"""Shares of the server's running time per function at a point, and their change between two sweeps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from powerprof.attribution.profile import FunctionShare
from powerprof.experiment.records import FunctionChange
from powerprof.experiment.verdict import FunctionKey, build_function_change, keep_surviving_verdicts
from powerprof.statistics.verdicts import FUNCTIONS_LEVEL, RUN_LEVELS, compare_unpaired

# Functions kept per window. Further ones have less than a thousandth of the samples.
_MOST_SAMPLED = 500
# Functions below this share in both sweeps are not judged.
_LEAST_PERCENT = 0.1
_MOST_CHANGES = 200


class SampledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function's self and total share of the server's samples."""

    function: str
    module: str
    kernel: bool
    percent: float
    total_percent: float


class FunctionWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The server's functions in one window."""

    window_s: float
    samples_count: int
    functions: list[SampledFunction]


class PartingFunction(FunctionChange, frozen=True, kw_only=True):
    """A function over the diverging values. `elsewhere_percent`: b − a over the others."""

    elsewhere_percent: float | None


def build_function_window(functions: Iterable[FunctionShare], window_s: float) -> FunctionWindow:
    """Return one window as it is saved in a point: the functions with most samples."""
    kept = sorted(functions, key=lambda one: (-one.self_count, -one.total_count, one.function))
    return FunctionWindow(
        window_s=window_s,
        samples_count=sum(one.self_count for one in kept),
        functions=[
            SampledFunction(
                function=one.function,
                module=one.module,
                kernel=one.kernel,
                percent=one.self_percent,
                total_percent=one.total_percent,
            )
            for one in kept[:_MOST_SAMPLED]
        ],
    )


def mean_shares(windows: Sequence[FunctionWindow]) -> dict[FunctionKey, float]:
    """Return the mean share of each function over the windows of a point, the largest first."""
    mean = _mean_shares([_shares_by_key(window) for window in windows])
    return dict(sorted(((key, share) for key, (share, _) in mean.items()), key=lambda item: (-item[1], item[0])))


SweepWindows = tuple[Sequence[FunctionWindow], Sequence[FunctionWindow]]


def compare_sweep_functions(
    apart: Sequence[SweepWindows], elsewhere: Sequence[SweepWindows], seed: int
) -> list[PartingFunction]:
    """Return the functions with different shares at the diverging values, the largest difference first.

    `apart` and `elsewhere` hold the windows of both sweeps, one pair per value. The share of a round is the mean over
    the values, so two sweeps of five rounds compare five figures with five. A function that is missing in a window
    counts as 0. The verdicts are those of a family.
    """
    known = [pair for pair in apart if pair[0] and pair[1]]
    if not known:
        return []
    others = [pair for pair in elsewhere if pair[0] and pair[1]]
    here, there = _pair_rounds(known), _pair_rounds(others)
    keys = {key for side in here for own in side for key, (share, _) in own.items() if share >= _LEAST_PERCENT}
    # One sample of one window, as a share of the mean over the values.
    samples = [window.samples_count for pair in known for side in pair for window in side if window.samples_count]
    step = 100 / min(samples) / len(known) if samples else None
    # The mean over the values has less scatter than a window, and no less of the run's level.
    levels = RUN_LEVELS * math.sqrt(len(known))
    judged = [_compare_function(key, here, there if others else None, seed, step, levels) for key in sorted(keys)]
    changes = keep_surviving_verdicts(judged, FUNCTIONS_LEVEL)
    changes.sort(key=lambda change: (change.verdict == "inconclusive", -abs(change.b_minus_a_percent), change.function))
    return changes[:_MOST_CHANGES]


_Shares = dict[FunctionKey, tuple[float, float]]
_Sides = tuple[list[_Shares], list[_Shares]]


def _shares_by_key(window: FunctionWindow) -> _Shares:
    return {(one.function, one.module, one.kernel): (one.percent, one.total_percent) for one in window.functions}


def _pair_rounds(pairs: Sequence[SweepWindows]) -> _Sides:
    """Return the shares of every round of each sweep: the mean over the values."""

    def side(number: int) -> list[_Shares]:
        rounds = min((len(pair[number]) for pair in pairs), default=0)
        return [_mean_shares([_shares_by_key(pair[number][at]) for pair in pairs]) for at in range(rounds)]

    return side(0), side(1)


def _mean_shares(every: Sequence[_Shares]) -> _Shares:
    none = (0.0, 0.0)
    keys = {key for own in every for key in own}
    return {
        key: (
            statistics.fmean(own.get(key, none)[0] for own in every),
            statistics.fmean(own.get(key, none)[1] for own in every),
        )
        for key in keys
    }


def _compare_function(
    key: FunctionKey, here: _Sides, there: _Sides | None, seed: int, step: float | None, levels: float
) -> tuple[PartingFunction, float | None]:
    a, b = _list_values(key, here, 0)
    result = compare_unpaired(a, b, seed=seed, step=step, levels=levels)
    beside = None
    if there is not None and all(there):
        before, after = _list_values(key, there, 0)
        beside = statistics.fmean(after) - statistics.fmean(before)
    change = build_function_change(key, result, *_list_values(key, here, 1))
    return PartingFunction(**msgspec.structs.asdict(change), elsewhere_percent=beside), result.p_value


def _list_values(key: FunctionKey, sides: _Sides, which: int) -> tuple[list[float], list[float]]:
    a, b = ([own.get(key, (0.0, 0.0))[which] for own in side] for side in sides)
    return a, b
