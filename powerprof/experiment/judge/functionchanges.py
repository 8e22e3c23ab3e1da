# SPDX-License-Identifier: Apache-2.0
"""Pure: which functions grew or shrank from one condition to the other, by repeated windows of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerprof.attribution.oncpu import FunctionShare
from powerprof.experiment.judge.verdict import claimed
from powerprof.experiment.records import Arm, FunctionChange, FunctionChanges
from powerprof.statistics import FUNCTIONS_LEVEL, PairedResult, compare_pairs

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
