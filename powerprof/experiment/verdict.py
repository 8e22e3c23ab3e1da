# SPDX-License-Identifier: Apache-2.0
"""Judge the values of two conditions: metrics with intervals and verdicts, the answer, controls, function changes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from powerprof.attribution.profile import FunctionShare
from powerprof.experiment.claims import with_claim
from powerprof.experiment.metrics import Compared
from powerprof.experiment.records import (
    Arm,
    ControlRecord,
    Difference,
    FunctionChange,
    FunctionChanges,
    Metric,
    Range,
    Ratio,
    Side,
)
from powerprof.model.records import Figures
from powerprof.statistics.intervals import Interval, bounded_interval, cut_difference, interval_ends
from powerprof.statistics.pairs import Noise, pool_noise, pool_sampling_noise
from powerprof.statistics.ranks import TYPICAL_LEVEL, measure_typical_ratio
from powerprof.statistics.scatter import step_of
from powerprof.statistics.validity import judge_control
from powerprof.statistics.verdicts import (
    FAMILY_LEVEL,
    FUNCTIONS_LEVEL,
    PRIMARY_LEVEL,
    PairedResult,
    compare_pairs,
    compare_unpaired,
    primary_verdict,
    survivors,
)

T = TypeVar("T", bound=msgspec.Struct)


def judge_metrics(
    compared: Sequence[Compared],
    primary: str,
    seed: int,
    *,
    paired: bool = True,
    by_model: Sequence[Sequence[Compared]] = (),
    level: float = PRIMARY_LEVEL,
    typical: bool = False,
) -> list[Metric]:
    """Return every metric with values on both sides, the primary first.

    The primary is judged at its `level`; the verdicts of the others are those of a family. `by_model` holds the same
    metrics by every possible model of the estimate. The uncertainty of the model widens the intervals. With `typical`
    the ranks of the pairs judge an undecided primary metric.
    """
    judged = []
    noise = _noise(compared) if paired else None
    for each in compared:
        result = _result(each, seed, noise)
        if result is not None:
            metric = _metric(each, result, paired=paired)
            if each.a.kind == "estimated":
                metric = _widen(metric, _by_name(by_model, each.a.name, seed, noise))
            if typical and noise is not None and metric.name == primary and metric.difference.sampling_ci95 is None:
                metric = _add_typical(metric, each, noise)
            judged.append((metric, result.p_value))
    return _as_a_family(judged, primary, level)


def _add_typical(metric: Metric, compared: Compared, noise: Noise) -> Metric:
    """Add the ratio of typical pairs if their ranks decide: few disturbed windows do not move it, unlike the mean."""
    a, b = ([pair[side] for pair in _both_known(compared)] for side in (0, 1))
    step = step_of(a, b) if compared.step is None else compared.step
    found = measure_typical_ratio(a, b, step=step, factor=noise.serial(len(a))[0])
    if found is None or found.p_value > 1 - TYPICAL_LEVEL:
        return metric
    return msgspec.structs.replace(metric, typical=Ratio(b_over_a=found.ratio, ci95=(found.low, found.high)))


def judge_saved(a: Sequence[Figures], b: Sequence[Figures], primary: str, seed: int, *, paired: bool) -> list[Metric]:
    """Return the common metrics of two saved conditions, judged in pairs if they were measured in pairs."""
    return judge_metrics(match_figures(a, b), primary, seed, paired=paired)


def match_figures(
    a: Sequence[Figures], b: Sequence[Figures], steps: Mapping[str, float] | None = None
) -> list[Compared]:
    """Return the metrics that both conditions have from the same source; `steps`: resolution of a count, by metric."""
    of_b = {(figures.name, figures.kind, figures.source): figures for figures in b}
    return [
        Compared(figures, of_b[key], (steps or {}).get(figures.name))
        for figures in a
        if (key := (figures.name, figures.kind, figures.source)) in of_b
    ]


def _both_known(compared: Compared) -> list[tuple[float, float]]:
    """Return the pairs with two known values."""
    values = zip(compared.a.values, compared.b.values, strict=True)
    return [(x, y) for x, y in values if x is not None and y is not None]


def _noise(compared: Sequence[Compared]) -> Noise:
    """Return the noise of all rows: the correlation of pairs and their typical scatter belong to the experiment."""
    return pool_noise([([x for x, _ in both], [y for _, y in both]) for both in map(_both_known, compared) if both])


def _result(compared: Compared, seed: int, noise: Noise | None) -> PairedResult | None:
    """Judge one row; `noise` is None for conditions that were not measured in pairs."""
    if noise is None:
        a, b = compared.a.known, compared.b.known
        return compare_unpaired(a, b, seed=seed) if a and b else None
    both = _both_known(compared)
    if not both:
        return None
    return compare_pairs([x for x, _ in both], [y for _, y in both], seed=seed, step=compared.step, noise=noise)


def _by_name(by_model: Sequence[Sequence[Compared]], name: str, seed: int, noise: Noise | None) -> list[PairedResult]:
    found = (_result(each, seed, noise) for model in by_model for each in model if each.a.name == name)
    return [result for result in found if result is not None]


def _as_a_family(judged: Sequence[tuple[Metric, float | None]], primary: str, level: float) -> list[Metric]:
    """Judge the primary metric alone and the others as a family: verdicts that do not survive are withdrawn."""
    kept = keep_surviving_verdicts([(metric, p) for metric, p in judged if metric.name != primary])
    first = [
        msgspec.structs.replace(metric, verdict=primary_verdict(metric.verdict, p, level))
        for metric, p in judged
        if metric.name == primary
    ]
    return [with_claim(metric) for metric in (*first, *kept)]


def keep_surviving_verdicts(judged: Sequence[tuple[T, float | None]], level: float = FAMILY_LEVEL) -> list[T]:
    """Return the judged records; those that Holm's test over all p-values does not confirm become inconclusive."""
    sure = survivors([p for _, p in judged], level)
    return [
        each if stays else msgspec.structs.replace(each, verdict="inconclusive")
        for (each, _), stays in zip(judged, sure, strict=True)
    ]


def _metric(compared: Compared, result: PairedResult, *, paired: bool) -> Metric:
    a, b = compared.a, compared.b
    # The values of the means: those of complete pairs, or all.
    of_a, of_b = zip(*_both_known(compared), strict=True) if paired else (a.known, b.known)
    mean = _possible_range(a, of_a, result.a_interval)
    return Metric(
        name=a.name,
        unit=a.unit,
        kind=a.kind,
        source=a.source,
        a=Side(mean=result.a_mean, ci95=mean, values=a.values),
        b=Side(mean=result.b_mean, ci95=_possible_range(b, of_b, result.b_interval), values=b.values),
        difference=Difference(
            b_minus_a=result.difference, ci95=_possible_difference(a, mean, result), percent=result.percent
        ),
        ratio=None if result.ratio is None else Ratio(b_over_a=result.ratio, ci95=interval_ends(result.ratio_interval)),
        verdict=result.verdict,
        minimum_detectable_percent=result.minimum_detectable_percent,
    )


def _possible_range(figures: Figures, values: Sequence[float], of_mean: Interval | None) -> Range | None:
    """Return the interval of the mean of `values`, or Student's within the metric's limits if it exceeds them."""
    floor, ceiling = figures.limits
    if of_mean is None:
        return None
    below, above = floor is not None and of_mean.low < floor, ceiling is not None and of_mean.high > ceiling
    if not (below or above):
        return interval_ends(of_mean)
    # The other end can be far away, because it includes the tail of a skewed distribution.
    centre = statistics.fmean(values)
    reach = max((centre - of_mean.low) * below, (of_mean.high - centre) * above)
    bent = bounded_interval(values, floor, ceiling, reach)
    if bent is None:
        return None
    return bent.low if below else min(bent.low, of_mean.low), bent.high if above else max(bent.high, of_mean.high)


def _possible_difference(a: Figures, mean: Range | None, result: PairedResult) -> Range | None:
    """Return the possible interval of b − a; `mean` is the interval of mean(a)."""
    ends = interval_ends(result.difference_interval)
    return ends if mean is None or ends is None else cut_difference(ends, result.difference, mean, a.limits)


def _widen(metric: Metric, others: Sequence[PairedResult]) -> Metric:
    """Widen the intervals of a metric by the uncertainty of the model; `others` are its results by the other models."""
    if not others:
        return metric
    difference, ratio = metric.difference, metric.ratio
    ends = _hull([difference.ci95, *(interval_ends(other.difference_interval) for other in others)])
    if ratio is not None:
        ratios = _hull(
            [ratio.ci95, *(interval_ends(other.ratio_interval) for other in others if other.ratio is not None)]
        )
        ratio = msgspec.structs.replace(ratio, ci95=ratios)
    unclear = ends is not None and ends[0] <= 0.0 <= ends[1]
    detectable = metric.minimum_detectable_percent
    if unclear and detectable is not None and difference.ci95 is not None and ends is not None and metric.a.mean:
        # A detectable difference must exceed the uncertainty of the model as well.
        further = max(difference.ci95[0] - ends[0], ends[1] - difference.ci95[1])
        detectable += 100 * further / abs(metric.a.mean)
    return msgspec.structs.replace(
        metric,
        difference=msgspec.structs.replace(difference, ci95=ends, sampling_ci95=difference.ci95),
        ratio=ratio,
        verdict="inconclusive" if unclear else metric.verdict,
        minimum_detectable_percent=detectable,
    )


def _hull(ranges: Sequence[Range | None]) -> Range | None:
    known = [span for span in ranges if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def control_from_blocks(metric: Metric, seed: int) -> ControlRecord | None:
    """Compare A with itself by its neighbouring windows. Return None for fewer than six windows of A."""
    values = [value for value in metric.a.values if value is not None]
    if len(values) < 6:
        return None
    # Alternate the order within pairs, so that a drift does not look like a difference.
    pairs = zip(values[0::2], values[1::2], strict=False)
    return _control("own_blocks", [(y, x) if index % 2 else (x, y) for index, (x, y) in enumerate(pairs)], seed)


def control_from_run(again: Sequence[Compared], primary: str, seed: int) -> ControlRecord | None:
    """Compare A with itself by separate control windows. Return None if they have no value of the primary metric."""
    pairs = [pair for each in again if each.a.name == primary for pair in _both_known(each)]
    return _control("run", pairs, seed) if pairs else None


def _control(kind: Literal["own_blocks", "run"], pairs: Sequence[tuple[float, float]], seed: int) -> ControlRecord:
    judged = judge_control(compare_pairs([x for x, _ in pairs], [y for _, y in pairs], seed=seed))
    return ControlRecord(
        kind=kind,
        pairs_count=len(pairs),
        sound=judged.sound,
        half_width_percent=judged.half_width_percent,
        difference_percent=judged.difference_percent,
    )


def half_width_percent(metric: Metric) -> float | None:
    """Return half of the difference's interval in percent of A; `--precision` limits it."""
    interval = metric.difference.ci95
    if interval is None or not metric.a.mean:
        return None
    return 100 * (interval[1] - interval[0]) / 2 / abs(metric.a.mean)


# `--precision` adds pairs in fours, so that the blocks stay balanced.
_ADDED_PAIRS = 4


def count_missing_pairs(
    metric: Metric | None, wanted_percent: float | None, done: int, most: int, notes: MutableSequence[Any]
) -> int:
    """Return the number of pairs to add for `--precision`; 0, with a note, if it is reached or needs too many."""
    if wanted_percent is None:
        return 0
    width = None if metric is None else half_width_percent(metric)
    if width is not None and width <= wanted_percent:
        notes.append(f"±{width:.2g} % reached after {done} pairs")
        return 0
    if done + _ADDED_PAIRS <= most:
        return _ADDED_PAIRS
    interval, needed = "unknown", ""
    if width is not None:
        interval = f"±{width:.2g} %"
        needed = f"; about {round(done * (width / wanted_percent) ** 2)} pairs would be enough"
    notes.append(f"±{wanted_percent:g} % not reached in {done} pairs: the interval is {interval}{needed}")
    return 0


# Functions with fewer samples in all windows are not judged.
_FEWEST_SAMPLES = 10
_MOST_FUNCTIONS = 200

FunctionKey = tuple[str, str, bool]


class SampledWindow(msgspec.Struct, frozen=True):
    """The functions that the servers of one condition ran in one window."""

    arm: Arm
    window_s: float
    functions: Sequence[FunctionShare]


def compare_functions(windows: Sequence[SampledWindow], seed: int, *, own_servers: bool = False) -> FunctionChanges:
    """Judge every function in both conditions, in percent of one CPU; the largest change first.

    The n-th windows of A and B are a pair. The verdicts are those of a family. A function that is missing in a window
    counts as 0. The self time is judged; the total time is reported with it. With `own_servers` all windows of a
    condition are of one start, so that no change is proven.
    """
    a, b = ([_percents_by_key(window) for window in windows if window.arm == arm] for arm in ("a", "b"))
    pairs = list(zip(a, b, strict=False))
    counts: dict[FunctionKey, int] = {}
    for window in windows:
        for function in window.functions:
            key = (function.function, function.module, function.kernel)
            counts[key] = counts.get(key, 0) + function.total_count
    sample_percent = max((_sample_percent(window) for window in windows), default=0.0)
    keys = [key for key, count in counts.items() if count >= _FEWEST_SAMPLES and len(pairs) > 0]
    noises = pool_sampling_noise([_own_percents(key, pairs) for key in keys], sample_percent)
    judged = [_change(key, pairs, seed, sample_percent, noise) for key, noise in zip(keys, noises, strict=True)]
    changes = keep_surviving_verdicts(judged, FUNCTIONS_LEVEL)
    if own_servers:
        changes = [msgspec.structs.replace(change, verdict="inconclusive") for change in changes]
    changes.sort(
        key=lambda change: (-abs(change.b_minus_a_percent), -abs(change.b_total_percent - change.a_total_percent))
    )
    return FunctionChanges(
        windows_count=len(pairs),
        window_s=sum(window.window_s for window in windows) / len(windows) if windows else None,
        samples_count=sum(function.self_count for window in windows for function in window.functions),
        functions=changes[:_MOST_FUNCTIONS],
    )


_Percents = dict[FunctionKey, tuple[float, float]]


def _sample_percent(window: SampledWindow) -> float:
    """Return one sample of a window in percent of one CPU; 0 if no function was sampled."""
    sampled = (function for function in window.functions if function.self_count and function.self_ms is not None)
    first = next(sampled, None)
    period_ms = first.self_ms / first.self_count if first is not None and first.self_ms is not None else 0.0
    return 0.1 * period_ms / window.window_s  # Milliseconds per second are tenths of a percent.


def _percents_by_key(window: SampledWindow) -> _Percents:
    """Return the self and total time of each function in percent of one CPU."""
    each = _sample_percent(window)
    return {
        (function.function, function.module, function.kernel): (each * function.self_count, each * function.total_count)
        for function in window.functions
    }


def _own_percents(key: FunctionKey, pairs: Sequence[tuple[_Percents, _Percents]]) -> tuple[list[float], list[float]]:
    a, b = ([pair[side].get(key, (0.0, 0.0))[0] for pair in pairs] for side in (0, 1))
    return a, b


def _change(
    key: FunctionKey, pairs: Sequence[tuple[_Percents, _Percents]], seed: int, sample_percent: float, noise: Noise
) -> tuple[FunctionChange, float | None]:
    a_total, b_total = ([pair[side].get(key, (0.0, 0.0))[1] for pair in pairs] for side in (0, 1))
    result = compare_pairs(*_own_percents(key, pairs), seed=seed, step=sample_percent, noise=noise)
    return build_function_change(key, result, a_total, b_total), result.p_value


def build_function_change(
    key: FunctionKey, result: PairedResult, a_total: Sequence[float], b_total: Sequence[float]
) -> FunctionChange:
    """Return a function with the verdict of its self time and its mean total shares."""
    interval = result.difference_interval
    return FunctionChange(
        function=key[0],
        module=key[1],
        kernel=key[2],
        a_percent=result.a_mean,
        b_percent=result.b_mean,
        b_minus_a_percent=result.difference,
        ci95=interval_ends(interval),
        a_total_percent=sum(a_total) / len(a_total),
        b_total_percent=sum(b_total) / len(b_total),
        verdict=result.verdict,
    )
