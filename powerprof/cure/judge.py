# SPDX-License-Identifier: Apache-2.0
"""Metrics with intervals and verdicts from the windows of a cure, and the prediction of its savings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from powerprof.cure.records import CureBlock
from powerprof.cure.remedies import PlannedChange
from powerprof.energy.total import host_energy, host_meters
from powerprof.experiment import verdict
from powerprof.experiment.metrics import Compared
from powerprof.experiment.records import Metric
from powerprof.model.metrics import unit_of
from powerprof.model.records import Figures, Kind, Window

# Of cures that change nothing, one in two hundred claims a change of the wake-ups, and one in a hundred a change of
# another metric. The level is high because a claimed change is kept for good.
_LEVEL = 0.995
_Figure = Callable[[CureBlock], float | None]


class _Quantity(msgspec.Struct, frozen=True):
    """A figure of a window.

    Attributes:
        value_of: the figure of a window; None if unknown.
        step_of: the resolution: the change of the figure by one count.
    """

    name: str
    value_of: _Figure
    kind: Kind = "measured"
    source: str | None = None
    step_of: Callable[[CureBlock], float] | None = None


def _rate(name: str, count_of: Callable[[CureBlock], int | None], seconds_of: _Figure) -> _Quantity:
    """Return a count as a rate over the time in which it was counted."""

    def rate_of(block: CureBlock) -> float | None:
        count, seconds = count_of(block), seconds_of(block)
        return None if count is None or not seconds else count / seconds

    return _Quantity(name, rate_of, step_of=lambda block: 1 / (seconds_of(block) or block.counted_s))


def _sum_polling(window: Window) -> float | None:
    shares = [state.polling_percent for state in window.states if state.polling]
    known = [share for share in shares if share is not None]
    return sum(known) if known and len(known) == len(shares) else None


_QUANTITIES = (
    _rate("thread_wakings_hz", lambda b: b.thread_wakings_count, lambda b: b.counted_s),
    _rate("thread_wakings_traced_hz", lambda b: b.traced_wakings_count, lambda b: b.traced_s),
    _rate("thread_idle_exits_hz", lambda b: b.thread_exits_count, lambda b: b.window.window_s),
    _rate("target_wakings_hz", lambda b: b.target_wakings_count, lambda b: b.counted_s),
    _rate("target_idle_exits_hz", lambda b: b.target_exits_count, lambda b: b.window.window_s),
    _Quantity("host_idle_exits_hz", lambda b: b.window.wakeups_hz),
    _Quantity("c0_percent", lambda b: b.window.c0_percent),
    _Quantity("polling_percent", lambda b: _sum_polling(b.window)),
    _rate("statements_hz", lambda b: b.statements_count or None, lambda b: b.statements_s),
    _Quantity("latency_p50_ms", lambda b: None if b.latency_ms is None else b.latency_ms.p50),
    _Quantity("latency_p95_ms", lambda b: None if b.latency_ms is None else b.latency_ms.p95),
    _Quantity("latency_p99_ms", lambda b: None if b.latency_ms is None else b.latency_ms.p99),
    _Quantity("commit_p50_ms", lambda b: None if b.commit_latency_ms is None else b.commit_latency_ms.p50),
    _Quantity("commit_p95_ms", lambda b: None if b.commit_latency_ms is None else b.commit_latency_ms.p95),
    _Quantity("replica_lag_s", lambda b: b.replica_lag_s, step_of=lambda b: 1 / (b.replica_looks_count or 1)),
    _Quantity("replica_backlog_bytes", lambda b: b.replica_backlog_bytes),
    _Quantity("replica_delay_ms", lambda b: b.replica_delay_ms),
)


def judge_blocks(blocks: Sequence[CureBlock], primary: str, seed: int) -> list[Metric]:
    """Return every metric over the complete pairs, the primary one first; empty without a pair.

    The verdicts of the other metrics are those of one family.
    """
    by_pair: dict[int, dict[str, CureBlock]] = {}
    for block in blocks:
        by_pair.setdefault(block.pair, {})[block.arm] = block
    pairs = [(arms["before"], arms["cured"]) for _, arms in sorted(by_pair.items()) if len(arms) == 2]
    if not pairs:
        return []
    compared = [_compare(quantity, pairs) for quantity in (*_QUANTITIES, _power(blocks))]
    return verdict.judge_metrics(compared, primary, seed, level=_LEVEL)


def _compare(quantity: _Quantity, pairs: Sequence[tuple[CureBlock, CureBlock]]) -> Compared:
    a, b = (
        Figures(
            name=quantity.name,
            unit=unit_of(quantity.name),
            kind=quantity.kind,
            source=quantity.source,
            values=[quantity.value_of(block) for block in side],
        )
        for side in zip(*pairs, strict=True)
    )
    return Compared(a, b, quantity.step_of(pairs[0][0]) if quantity.step_of is not None else None)


def choose_primary(plan: PlannedChange, blocks: Sequence[CureBlock]) -> str:
    """Return the metric that answers whether a change helps: for a setting of the host measured power, else C0."""
    if plan.remedy.kind == "host" and _power(blocks).kind == "measured":
        return "watts"
    return plan.primary_metric


def _power(blocks: Sequence[CureBlock]) -> _Quantity:
    """Return the power of the host, by the same meters in all windows."""
    meters = host_meters([block.window.energy for block in blocks])
    return _Quantity(
        "watts",
        lambda b: None if meters is None else host_energy(b.window.energy, meters).watts,
        "estimated" if meters is None or meters.kind is None else meters.kind,
        None if meters is None else meters.source,
    )
