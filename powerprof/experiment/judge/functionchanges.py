# SPDX-License-Identifier: Apache-2.0
"""Pure: which functions grew or shrank from one condition to the other, by repeated windows of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from powerprof.attribution.oncpu import FunctionShare
from powerprof.experiment.records import Arm, FunctionChange, FunctionChanges
from powerprof.statistics import FUNCTIONS_LEVEL, compare_pairs, survivors

# A function with fewer samples in all windows together is not judged.
_FEWEST_SAMPLES = 10
_MOST = 200

_Key = tuple[str, str, bool]


@dataclass(frozen=True)
class SampledWindow:
    """The functions that one condition's servers ran in one window."""

    arm: Arm
    window_s: float
    functions: Sequence[FunctionShare]


def function_changes(windows: Sequence[SampledWindow], seed: int) -> FunctionChanges:
    """Every function in percent of one CPU, in both conditions, and whether it changed: the largest change first.

    The n-th window of A and the n-th of B are a pair. The verdicts are a family. A function that a window has not is 0
    there; where it was itself running is what is judged, where it was anywhere on the stack is told beside it.
    """
    a, b = ([_by_key(window) for window in windows if window.arm == arm] for arm in ("a", "b"))
    pairs = list(zip(a, b, strict=False))
    counts: dict[_Key, int] = {}
    for window in windows:
        for function in window.functions:
            key = (function.function, function.module, function.kernel)
            counts[key] = counts.get(key, 0) + function.total_count
    judged = [_change(key, pairs, seed) for key, count in counts.items() if count >= _FEWEST_SAMPLES and len(pairs) > 0]
    sure = survivors([p for _, p in judged], FUNCTIONS_LEVEL)
    changes = [
        change if stays else msgspec.structs.replace(change, verdict="inconclusive")
        for (change, _), stays in zip(judged, sure, strict=True)
    ]
    changes.sort(
        key=lambda change: (-abs(change.b_minus_a_percent), -abs(change.b_total_percent - change.a_total_percent))
    )
    return FunctionChanges(
        windows_count=len(pairs),
        window_s=sum(window.window_s for window in windows) / len(windows) if windows else None,
        samples_count=sum(function.self_count for window in windows for function in window.functions),
        functions=changes[:_MOST],
    )


_Percents = dict[_Key, tuple[float, float]]


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


def _change(key: _Key, pairs: Sequence[tuple[_Percents, _Percents]], seed: int) -> tuple[FunctionChange, float | None]:
    own = [(a.get(key, (0.0, 0.0))[0], b.get(key, (0.0, 0.0))[0]) for a, b in pairs]
    total = [(a.get(key, (0.0, 0.0))[1], b.get(key, (0.0, 0.0))[1]) for a, b in pairs]
    result = compare_pairs([x for x, _ in own], [y for _, y in own], seed=seed)
    interval = result.difference_interval
    change = FunctionChange(
        function=key[0],
        module=key[1],
        kernel=key[2],
        a_percent=result.a_mean,
        b_percent=result.b_mean,
        b_minus_a_percent=result.difference,
        ci95=None if interval is None else (interval.low, interval.high),
        a_total_percent=sum(x for x, _ in total) / len(total),
        b_total_percent=sum(y for _, y in total) / len(total),
        verdict=result.verdict,
    )
    return change, result.p_value
