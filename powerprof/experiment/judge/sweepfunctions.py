# SPDX-License-Identifier: Apache-2.0
"""Pure: what share of the server's running time each function has at a point, and which shares grew between sweeps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from powerprof.attribution.oncpu import FunctionShare
from powerprof.experiment.judge.functionchanges import Key, function_change
from powerprof.experiment.judge.verdict import claimed
from powerprof.experiment.records import FunctionChange
from powerprof.statistics import FUNCTIONS_LEVEL, compare_unpaired

# Of one window; more are in no thousandth of its samples.
_MOST = 500
# A function below that share in both sweeps is not judged.
_LEAST_PERCENT = 0.1
_MOST_CHANGES = 200


class SampledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function in percent of the server's samples of a window: where it ran itself, and with what it called."""

    function: str
    module: str
    kernel: bool
    percent: float
    total_percent: float


class FunctionWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What the server ran in one window of a point."""

    window_s: float
    samples_count: int
    functions: list[SampledFunction]


class PartingFunction(FunctionChange, frozen=True, kw_only=True):
    """A function's share, in percent of the server's samples, over the values at which two sweeps diverge.

    `elsewhere_percent` is b − a over the other values; None where there is none that was sampled.
    """

    elsewhere_percent: float | None


def function_window(functions: Iterable[FunctionShare], window_s: float) -> FunctionWindow:
    """One window as it is kept in a point: the functions with most samples."""
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
            for one in kept[:_MOST]
        ],
    )


def shares(windows: Sequence[FunctionWindow]) -> dict[Key, float]:
    """Each function's mean share over the windows of a point, the largest first."""
    mean = _mean([_by_key(window) for window in windows])
    return dict(sorted(((key, share) for key, (share, _) in mean.items()), key=lambda item: (-item[1], item[0])))


Pair = tuple[Sequence[FunctionWindow], Sequence[FunctionWindow]]


def parting_functions(apart: Sequence[Pair], elsewhere: Sequence[Pair], seed: int) -> list[PartingFunction]:
    """Which functions' shares differ where the sweeps diverge: a family of verdicts, the largest difference first.

    `apart` and `elsewhere` are the windows of both sweeps, a pair for each value. A round's share is the mean over the
    values: two sweeps of five rounds are five figures against five. A function that a window has not is 0 there.
    """
    known = [pair for pair in apart if pair[0] and pair[1]]
    if not known:
        return []
    others = [pair for pair in elsewhere if pair[0] and pair[1]]
    here, there = _rounds(known), _rounds(others)
    keys = {key for side in here for own in side for key, (share, _) in own.items() if share >= _LEAST_PERCENT}
    judged = [_parting(key, here, there if others else None, seed) for key in sorted(keys)]
    changes = claimed(judged, FUNCTIONS_LEVEL)
    changes.sort(key=lambda change: (change.verdict == "inconclusive", -abs(change.b_minus_a_percent), change.function))
    return changes[:_MOST_CHANGES]


_Shares = dict[Key, tuple[float, float]]
_Sides = tuple[list[_Shares], list[_Shares]]


def _by_key(window: FunctionWindow) -> _Shares:
    return {(one.function, one.module, one.kernel): (one.percent, one.total_percent) for one in window.functions}


def _rounds(pairs: Sequence[Pair]) -> _Sides:
    """Of each sweep every round's shares, the mean over the values."""

    def side(number: int) -> list[_Shares]:
        rounds = min((len(pair[number]) for pair in pairs), default=0)
        return [_mean([_by_key(pair[number][at]) for pair in pairs]) for at in range(rounds)]

    return side(0), side(1)


def _mean(every: Sequence[_Shares]) -> _Shares:
    none = (0.0, 0.0)
    keys = {key for own in every for key in own}
    return {
        key: (
            statistics.fmean(own.get(key, none)[0] for own in every),
            statistics.fmean(own.get(key, none)[1] for own in every),
        )
        for key in keys
    }


def _parting(key: Key, here: _Sides, there: _Sides | None, seed: int) -> tuple[PartingFunction, float | None]:
    a, b = _values(key, here, 0)
    result = compare_unpaired(a, b, seed=seed)
    beside = None
    if there is not None and all(there):
        before, after = _values(key, there, 0)
        beside = statistics.fmean(after) - statistics.fmean(before)
    change = function_change(key, result, *_values(key, here, 1))
    return PartingFunction(**msgspec.structs.asdict(change), elsewhere_percent=beside), result.p_value


def _values(key: Key, sides: _Sides, which: int) -> tuple[list[float], list[float]]:
    a, b = ([own.get(key, (0.0, 0.0))[which] for own in side] for side in sides)
    return a, b
