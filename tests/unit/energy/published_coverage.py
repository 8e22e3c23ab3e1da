# SPDX-License-Identifier: Apache-2.0
"""The coverage of prediction intervals by published results: leave one result, or one kind of CPU, out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from powerprof.energy.families import PowerResult, Spread, group_by_kind

Predict = Callable[[Sequence[PowerResult]], Spread]


def measure_coverage(results: Sequence[PowerResult], what: str, predict: Predict) -> float:
    """Return the share of results, in percent, inside the interval that the other results predict."""
    inside = [
        predict([*results[:i], *results[i + 1 :]]).holds(result.per_cpu(what)) for i, result in enumerate(results)
    ]
    return 100 * sum(inside) / len(inside)


def measure_new_kind_coverage(results: Sequence[PowerResult], what: str, predict: Predict) -> float:
    """Return the share of results, in percent, inside the interval that the other kinds of CPU predict."""
    inside = 0
    for name, kind in group_by_kind(results).items():
        predicted = predict([result for result in results if result.cpu != name])
        inside += sum(predicted.holds(result.per_cpu(what)) for result in kind)
    return 100 * inside / len(results)
