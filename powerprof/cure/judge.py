# SPDX-License-Identifier: Apache-2.0
"""Pure: from the windows of a cure to metrics with intervals and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from powerprof.cure.records import CureBlock
from powerprof.energy.domains import host_energy, host_meters
from powerprof.experiment.records import Difference, Metric, Range, Side
from powerprof.records import Kind
from powerprof.statistics import Interval, compare_pairs, survivors

# Of cures that change nothing one in two hundred has a word about its wake-ups, and one in a hundred about the rest:
# what is claimed here is going to be kept for good.
CURE_LEVEL = 0.995


_Seconds = Callable[[CureBlock], float | None]


@dataclass(frozen=True)
class _Quantity:
    """What a window says; None where it does not. `step_of` is by how much the least change moves it."""

    name: str
    unit: str
    of: Callable[[CureBlock], float | None]
    kind: Kind = "measured"
    source: str | None = None
    step_of: Callable[[CureBlock], float] | None = None


def _rate(count: int | None, seconds: float | None) -> float | None:
    return None if count is None or not seconds else count / seconds


def _counted(name: str, of: Callable[[CureBlock], int | None], seconds: _Seconds) -> _Quantity:
    """A count as a rate over the stretch in which it was counted."""
    return _Quantity(name, "1/s", lambda b: _rate(of(b), seconds(b)), step_of=lambda b: 1 / (seconds(b) or b.counted_s))


def _switched_s(block: CureBlock) -> float:
    return block.counted_s


def _traced_s(block: CureBlock) -> float | None:
    return block.traced_s


def _window_s(block: CureBlock) -> float | None:
    return block.window.window_s


_OF_COUNTS = (
    _counted("thread_wakings_hz", lambda b: b.thread_wakings_count, _switched_s),
    _counted("thread_wakings_traced_hz", lambda b: b.traced_wakings_count, _traced_s),
    _counted("thread_idle_exits_hz", lambda b: b.thread_exits_count, _window_s),
    _counted("target_wakings_hz", lambda b: b.target_wakings_count, _switched_s),
    _counted("target_idle_exits_hz", lambda b: b.target_exits_count, _window_s),
    _Quantity("host_idle_exits_hz", "1/s", lambda b: b.window.wakeups_hz),
    _Quantity("c0_percent", "%", lambda b: b.window.c0_percent),
    _counted("statements_hz", lambda b: b.statements_count or None, lambda b: b.statements_s),
    _Quantity("latency_p50_ms", "ms", lambda b: None if b.latency_ms is None else b.latency_ms.p50),
    _Quantity("latency_p95_ms", "ms", lambda b: None if b.latency_ms is None else b.latency_ms.p95),
    _Quantity("commit_p50_ms", "ms", lambda b: None if b.commit_latency_ms is None else b.commit_latency_ms.p50),
    _Quantity("commit_p95_ms", "ms", lambda b: None if b.commit_latency_ms is None else b.commit_latency_ms.p95),
    _Quantity("replica_lag_s", "s", lambda b: b.replica_lag_s, step_of=lambda b: 1 / (b.replica_looks_count or 1)),
    _Quantity("replica_backlog_bytes", "B", lambda b: b.replica_backlog_bytes),
    _Quantity("replica_delay_ms", "ms", lambda b: b.replica_delay_ms),
)


def pairs_of(blocks: Sequence[CureBlock]) -> list[tuple[CureBlock, CureBlock]]:
    """The complete pairs, as (before, cured), in the order of time."""
    by_pair: dict[int, dict[str, CureBlock]] = {}
    for block in blocks:
        by_pair.setdefault(block.pair, {})[block.arm] = block
    return [(both["before"], both["cured"]) for _, both in sorted(by_pair.items()) if len(both) == 2]


def judge(blocks: Sequence[CureBlock], primary: str, seed: int) -> list[Metric]:
    """Every metric over the complete pairs, the primary first; the others' verdicts are a family's. Empty without a
    pair."""
    pairs = pairs_of(blocks)
    judged: list[tuple[Metric, float | None]] = []
    for quantity in (*_OF_COUNTS, _watts(blocks)):
        known = [(x, y) for a, b in pairs if (x := quantity.of(a)) is not None and (y := quantity.of(b)) is not None]
        if known:
            step = quantity.step_of(pairs[0][0]) if quantity.step_of is not None else None
            judged.append(_metric(quantity, known, seed, step))
    others = [(metric, p) for metric, p in judged if metric.name != primary]
    sure = survivors([p for _, p in others])
    first = [_claimed(metric, p is not None and p <= 1 - CURE_LEVEL) for metric, p in judged if metric.name == primary]
    return [*first, *(_claimed(metric, stays) for (metric, _), stays in zip(others, sure, strict=True))]


def _claimed(metric: Metric, claimed: bool) -> Metric:
    """The metric with its verdict, or with none and the most that its difference may be."""
    if claimed and metric.verdict != "inconclusive":
        return metric
    ends = metric.difference.ci95
    most = None if ends is None else max(abs(end) for end in ends)
    difference = msgspec.structs.replace(metric.difference, less_than=most)
    return msgspec.structs.replace(metric, verdict="inconclusive", difference=difference)


def _watts(blocks: Sequence[CureBlock]) -> _Quantity:
    """The host's power, by one set of meters over all windows."""
    meters = host_meters([block.window.energy for block in blocks])
    return _Quantity(
        "watts",
        "W",
        lambda b: None if meters is None else host_energy(b.window.energy, meters).watts,
        "estimated" if meters is None or meters.kind is None else meters.kind,
        None if meters is None else meters.source,
    )


def _metric(
    quantity: _Quantity, known: Sequence[tuple[float, float]], seed: int, step: float | None
) -> tuple[Metric, float | None]:
    a, b = [x for x, _ in known], [y for _, y in known]
    result = compare_pairs(a, b, seed=seed, step=step)
    metric = Metric(
        name=quantity.name,
        unit=quantity.unit,
        kind=quantity.kind,
        source=quantity.source,
        a=Side(mean=result.a_mean, ci95=_range(result.a_interval), values=list(a)),
        b=Side(mean=result.b_mean, ci95=_range(result.b_interval), values=list(b)),
        difference=Difference(
            b_minus_a=result.difference, ci95=_range(result.difference_interval), percent=result.percent
        ),
        verdict=result.verdict,
        minimum_detectable_percent=result.minimum_detectable_percent,
    )
    return metric, result.p_value


def _range(interval: Interval | None) -> Range | None:
    return None if interval is None else (interval.low, interval.high)
