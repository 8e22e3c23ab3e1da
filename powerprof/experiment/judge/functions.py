# SPDX-License-Identifier: Apache-2.0
"""Pure: which functions grew or shrank from one condition to the other, by repeated windows of samples."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from powerprof.attribution.profile import FunctionShare
from powerprof.experiment.judge.verdict import claimed
from powerprof.experiment.records import Arm, FunctionChange, FunctionChanges
from powerprof.statistics import FUNCTIONS_LEVEL, PairedResult, compare_pairs, compare_unpaired

# A function with fewer samples in all windows together is not judged.
_FEWEST_SAMPLES = 10
_MOST = 200

Key = tuple[str, str, bool]


@dataclass(frozen=True)
class SampledWindow:
    """The functions that one condition's servers ran in one window."""

    arm: Arm
    window_s: float
    functions: Sequence[FunctionShare]


def function_changes(windows: Sequence[SampledWindow], seed: int) -> FunctionChanges:
    """Every function in percent of one CPU, in both conditions, and whether it changed: the largest change first.

    The n-th window of A and the n-th of B are a pair. The verdicts are a family. A function that a window has not is 0
    there; where it was itself running is what is judged, where it was anywhere on the stack is given as well.
    """
    a, b = ([_by_key(window) for window in windows if window.arm == arm] for arm in ("a", "b"))
    pairs = list(zip(a, b, strict=False))
    counts: dict[Key, int] = {}
    for window in windows:
        for function in window.functions:
            key = (function.function, function.module, function.kernel)
            counts[key] = counts.get(key, 0) + function.total_count
    judged = [_change(key, pairs, seed) for key, count in counts.items() if count >= _FEWEST_SAMPLES and len(pairs) > 0]
    changes = claimed(judged, FUNCTIONS_LEVEL)
    changes.sort(
        key=lambda change: (-abs(change.b_minus_a_percent), -abs(change.b_total_percent - change.a_total_percent))
    )
    return FunctionChanges(
        windows_count=len(pairs),
        window_s=sum(window.window_s for window in windows) / len(windows) if windows else None,
        samples_count=sum(function.self_count for window in windows for function in window.functions),
        functions=changes[:_MOST],
    )


_Percents = dict[Key, tuple[float, float]]


def _by_key(window: SampledWindow) -> _Percents:
    """Percent of one CPU, itself and with what it called."""
    sampled = (function for function in window.functions if function.self_count and function.self_ms is not None)
    first = next(sampled, None)
    period_ms = first.self_ms / first.self_count if first is not None and first.self_ms is not None else 0.0
    each = 0.1 * period_ms / window.window_s  # ms a second are tenths of a percent
    return {
        (function.function, function.module, function.kernel): (each * function.self_count, each * function.total_count)
        for function in window.functions
    }


def _change(key: Key, pairs: Sequence[tuple[_Percents, _Percents]], seed: int) -> tuple[FunctionChange, float | None]:
    a, b = ([pair[side].get(key, (0.0, 0.0)) for pair in pairs] for side in (0, 1))
    result = compare_pairs([own for own, _ in a], [own for own, _ in b], seed=seed)
    return function_change(key, result, [total for _, total in a], [total for _, total in b]), result.p_value


def function_change(
    key: Key, result: PairedResult, a_total: Sequence[float], b_total: Sequence[float]
) -> FunctionChange:
    """A function as it was judged where it ran itself, with its mean shares anywhere on the stack."""
    interval = result.difference_interval
    return FunctionChange(
        function=key[0],
        module=key[1],
        kernel=key[2],
        a_percent=result.a_mean,
        b_percent=result.b_mean,
        b_minus_a_percent=result.difference,
        ci95=None if interval is None else (interval.low, interval.high),
        a_total_percent=sum(a_total) / len(a_total),
        b_total_percent=sum(b_total) / len(b_total),
        verdict=result.verdict,
    )


# Pure: what share of the server's running time each function has at a point, and which shares grew between sweeps.

# Of one window; more are in no thousandth of its samples.
_SWEEPFUNCTIONS_MOST = 500
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
            for one in kept[:_SWEEPFUNCTIONS_MOST]
        ],
    )


def shares(windows: Sequence[FunctionWindow]) -> dict[Key, float]:
    """Each function's mean share over the windows of a point, the largest first."""
    mean = _mean([_sweepfunctions_by_key(window) for window in windows])
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


def _sweepfunctions_by_key(window: FunctionWindow) -> _Shares:
    return {(one.function, one.module, one.kernel): (one.percent, one.total_percent) for one in window.functions}


def _rounds(pairs: Sequence[Pair]) -> _Sides:
    """Of each sweep every round's shares, the mean over the values."""

    def side(number: int) -> list[_Shares]:
        rounds = min((len(pair[number]) for pair in pairs), default=0)
        return [_mean([_sweepfunctions_by_key(pair[number][at]) for pair in pairs]) for at in range(rounds)]

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
