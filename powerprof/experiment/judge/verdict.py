# SPDX-License-Identifier: Apache-2.0
"""Pure: from blocks to metrics with intervals, verdicts, the control from A's own blocks, and the answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from powerprof.experiment.judge.metrics import Baseline, Values, metrics_for
from powerprof.experiment.records import Answer, Block, Control, Difference, Metric, Range, Ratio, Side
from powerprof.records import Kind
from powerprof.statistics import Interval, PairedResult, compare_pairs, compare_unpaired, judge_control, survivors

MINIMUM_PAIRS = 3


def pairs_of(blocks: Sequence[Block]) -> list[tuple[Block, Block]]:
    """The complete pairs that count, as (a, b), in the order of time."""
    found: dict[int, dict[str, Block]] = {}
    for block in blocks:
        if not block.dropped and not block.disturbed:
            found.setdefault(block.pair, {})[block.arm] = block
    return [(both["a"], both["b"]) for _, both in sorted(found.items()) if len(both) == 2]


def judge(
    blocks: Sequence[Block], baseline: Baseline, primary: str, seed: int, kind: Kind | None = None
) -> list[Metric]:
    """Every metric (of one `kind`) over the complete pairs, the primary first; the others' verdicts are a family's."""
    pairs = pairs_of(blocks)
    counted = [block for pair in pairs for block in pair]
    found = []
    for values in metrics_for(counted, baseline):
        if kind is not None and values.kind != kind:
            continue
        a, b = [values.of(pair[0]) for pair in pairs], [values.of(pair[1]) for pair in pairs]
        both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        if both:
            result = compare_pairs([x for x, _ in both], [y for _, y in both], seed=seed)
            found.append((_metric(values, a, b, result), result.p_value))
    return _as_a_family(found, primary)


def judge_saved(a: Sequence[Metric], b: Sequence[Metric], primary: str, seed: int, *, paired: bool) -> list[Metric]:
    """Metrics of two saved conditions, each as side a of its own; in pairs where they were measured in pairs."""
    found = []
    for first in a:
        second = next((metric for metric in b if metric.name == first.name), None)
        if second is None or second.kind != first.kind or second.source != first.source:
            continue
        left, right = first.a.values, second.a.values
        if paired:
            both = [(x, y) for x, y in zip(left, right, strict=True) if x is not None and y is not None]
            known_left, known_right = [x for x, _ in both], [y for _, y in both]
        else:
            known_left, known_right = ([value for value in values if value is not None] for values in (left, right))
        if known_left and known_right:
            result = (compare_pairs if paired else compare_unpaired)(known_left, known_right, seed=seed)
            values = Values(first.name, first.unit, first.kind, lambda _: None, first.source)
            found.append((_metric(values, left, right, result), result.p_value))
    return _as_a_family(found, primary)


def _as_a_family(judged: Sequence[tuple[Metric, float | None]], primary: str) -> list[Metric]:
    """The primary metric keeps the verdict of its own interval, of the others those that survive together."""
    others = [(metric, p) for metric, p in judged if metric.name != primary]
    sure = survivors([p for _, p in others])
    kept = [
        metric if stays else msgspec.structs.replace(metric, verdict="inconclusive")
        for (metric, _), stays in zip(others, sure, strict=True)
    ]
    return [*(metric for metric, _ in judged if metric.name == primary), *kept]


def _range(interval: Interval | None) -> Range | None:
    return None if interval is None else (interval.low, interval.high)


def _metric(values: Values, a: Sequence[float | None], b: Sequence[float | None], result: PairedResult) -> Metric:
    return Metric(
        name=values.name,
        unit=values.unit,
        kind=values.kind,
        source=values.source,
        a=Side(mean=result.a_mean, ci95=_range(result.a_interval), values=list(a)),
        b=Side(mean=result.b_mean, ci95=_range(result.b_interval), values=list(b)),
        difference=Difference(
            b_minus_a=result.difference, ci95=_range(result.difference_interval), percent=result.percent
        ),
        ratio=None if result.ratio is None else Ratio(b_over_a=result.ratio, ci95=_range(result.ratio_interval)),
        verdict=result.verdict,
        minimum_detectable_percent=result.minimum_detectable_percent,
    )


def own_control(metric: Metric, seed: int) -> Control | None:
    """A against A at no cost: neighbouring windows of A taken as pairs. None for fewer than six windows of A."""
    values = [value for value in metric.a.values if value is not None]
    if len(values) < 6:
        return None
    first, second = values[0::2], values[1::2]
    count = min(len(first), len(second))
    # Which of the two comes first alternates, so that a drift does not look like a difference.
    pairs = [(x, y) if index % 2 == 0 else (y, x) for index, (x, y) in enumerate(zip(first, second, strict=False))]
    judged = judge_control(compare_pairs([x for x, _ in pairs], [y for _, y in pairs], seed=seed))
    return Control(
        kind="own_blocks",
        pairs_count=count,
        sound=judged.sound,
        half_width_percent=judged.half_width_percent,
        text=judged.text,
    )


# More of these is better; of every other metric less is.
_MORE_IS_BETTER = ("queries_hz", "residency_percent")


def is_worse(metrics: Sequence[Metric], primary: str | None) -> bool:
    """True where the primary metric says that B is worse, beyond its interval."""
    metric = next((one for one in metrics if one.name == primary), None)
    if metric is None:
        return False
    better = metric.name.startswith(_MORE_IS_BETTER)
    return metric.verdict == ("b_lower" if better else "b_higher")


def half_width_percent(metric: Metric) -> float | None:
    """Half of the interval of the difference, in percent of A: what `--precision` is held against."""
    interval = metric.difference.ci95
    if interval is None or not metric.a.mean:
        return None
    return 100 * (interval[1] - interval[0]) / 2 / abs(metric.a.mean)


# What a metric is called within a sentence, and how "N times as much" of it is said.
_WORDS = {
    "c0_ms_per_query_server": ("the server's CPU time per query", "uses {} times as much server CPU time per query as"),
    "c0_ms_per_query": ("the CPU time per query", "uses {} times as much CPU time per query as"),
    "c0_ms_per_query_net": ("the CPU time per query, net of idle", "uses, net of idle, {} times as much CPU time as"),
    "joules_per_query": ("the energy per query", "uses {} times as much energy per query as"),
    "joules_per_query_net": ("the energy per query, net of idle", "uses, net of idle, {} times as much energy as"),
    "wakeups_per_query": ("the wake-ups per query", "wakes a CPU {} times as often per query as"),
    "latency_p95_ms": ("the p95 latency", "has {} times the p95 latency of"),
    "c0_percent": ("the time in C0", "keeps the CPUs in C0 {} times as long as"),
    "wakeups_hz": ("the wake-ups per second", "wakes the CPUs {} times as often as"),
    "watts": ("the power", "draws {} times as much power as"),
}


def words(name: str) -> str:
    """A metric in words, for a sentence."""
    return _WORDS[name][0] if name in _WORDS else name


def answer(metrics: Sequence[Metric], primary: str, a: str, b: str) -> Answer:
    """The answer in one sentence, and what it says of speed and of power: one does not follow from the other."""
    chosen = next((metric for metric in metrics if metric.name == primary), None)
    if chosen is None:
        return Answer(metric=None, text=f"Nothing can be said: {primary} could not be measured.")
    return Answer(
        metric=chosen.name,
        text=_sentence(chosen, a, b),
        speed=_apart(metrics, _SPEED, a, b),
        power=_apart(metrics, _POWER, a, b),
    )


def _sentence(metric: Metric, a: str, b: str) -> str:
    what = words(metric.name)
    kind = " (estimated)" if metric.kind == "estimated" else ""
    percent, interval = metric.difference.percent, metric.difference.ci95
    if interval is None or percent is None or not metric.a.mean:
        return f"Too few pairs to say whether {a} and {b} differ in {what}."
    low, high = (100 * end / abs(metric.a.mean) for end in interval)
    if metric.verdict == "inconclusive":
        could = metric.minimum_detectable_percent
        seen = f" A difference of {_three(could)} % would have been found." if could is not None else ""
        return (
            f"No difference found between {a} and {b} in {what}{kind}: "
            f"{_signed(percent)} % ({_signed(low)} to {_signed(high)}, 95 %).{seen}"
        )
    ratio = metric.ratio
    if ratio is not None and ratio.ci95 is not None and (ratio.b_over_a >= 1.5 or ratio.b_over_a <= 2 / 3):
        more, less, flip = (b, a, False) if ratio.b_over_a > 1 else (a, b, True)
        value = 1 / ratio.b_over_a if flip else ratio.b_over_a
        ends = sorted(1 / end if flip else end for end in ratio.ci95)
        said = _WORDS[metric.name][1] if metric.name in _WORDS else f"has {{}} times the {metric.name} of"
        return f"{more} {said.format(_three(value))} {less}{kind} ({_three(ends[0])} – {_three(ends[1])}, 95 %)."
    direction = "higher" if percent > 0 else "lower"
    ends = sorted((abs(low), abs(high)))
    return (
        f"With {b} {what} is {abs(percent):,.1f} % {direction} than with {a}{kind} "
        f"({ends[0]:,.1f} – {ends[1]:,.1f}, 95 %)."
    )


def _signed(percent: float) -> str:
    return f"{percent:+,.1f}".replace("-", "−")


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


_SPEED = {"time_to_solution_s": "time to solution", "latency_p95_ms": "p95 latency"}
_POWER = {"watts": "watts", "c0_percent": "time in C0"}


def _apart(metrics: Sequence[Metric], names: dict[str, str], a: str, b: str) -> str | None:
    adjective = ("faster", "slower", "speed") if names is _SPEED else ("lower in power", "higher in power", "power")
    for name, said in names.items():
        metric = next((one for one in metrics if one.name == name), None)
        if metric is None:
            continue
        kind = ", estimated" if metric.kind == "estimated" else ""
        if metric.verdict == "inconclusive":
            return f"no difference in {adjective[2]} between {a} and {b} was shown ({said}{kind})"
        return f"{b} is {adjective[0 if metric.verdict == 'b_lower' else 1]} ({said}{kind})"
    return None
