"""Pure: the metrics of each server of a topology, as METRIC:SERVER."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from powerprof.energy.split import Consumer, split_energy
from powerprof.experiment import metrics
from powerprof.experiment.records import Block, MemberShare
from powerprof.records import Kind

if TYPE_CHECKING:
    from powerprof.experiment.metrics import Baseline, Values

# Our own question is one connection in a window.
_NOUGHT_HZ = 0.5


def members_metrics(blocks: Sequence[Block], baseline: Baseline, kind: Kind, source: str | None) -> list[Values]:
    """C0, watts above the idle host, connections, commits, relay logs; a rate that is nought everywhere is left out."""
    names = list(dict.fromkeys(share.name for block in blocks for share in block.members))
    found = []
    for name in names:
        found.append(metrics.Values(f"c0_percent:{name}", "%", "measured", _of(name, lambda share: share.c0_percent)))
        found.append(metrics.Values(f"watts:{name}", "W", kind, _watts(name, baseline), source))
    rates: tuple[tuple[str, str, Callable[[MemberShare], float | None]], ...] = (
        ("connections_hz", "1/s", lambda share: share.connections_hz),
        ("commits_hz", "1/s", lambda share: share.commits_hz),
        ("relay_log_bytes_hz", "B/s", lambda share: share.relay_log_bytes_hz),
    )
    for metric, unit, pick in rates:
        for name in names:
            values = metrics.Values(f"{metric}:{name}", unit, "measured", _of(name, pick))
            if any((values.of(block) or 0.0) >= _NOUGHT_HZ for block in blocks):
                found.append(values)
    return found


def _of(name: str, pick: Callable[[MemberShare], float | None]) -> Callable[[Block], float | None]:
    def of(block: Block) -> float | None:
        return next((pick(share) for share in block.members if share.name == name), None)

    return of


def _watts(name: str, baseline: Baseline) -> Callable[[Block], float | None]:
    """Its part of the power above the idle host's, by its share of C0."""

    def of(block: Block) -> float | None:
        window, reading = block.window, metrics.watts_of(block.window)
        cpu_s = next((share.cpu_s for share in block.members if share.name == name), None)
        if reading is None or reading.joules is None or cpu_s is None:
            return None
        if not window.window_s or window.c0_percent is None:
            return None
        split = split_energy(
            reading.joules,
            window.window_s,
            idle_watts=baseline.watts,
            kind=reading.kind,
            source=reading.source,
            c0_s=window.c0_percent / 100 * window.cpus * window.window_s,
            consumers=[Consumer(name=name, c0_s=cpu_s)],
        )
        return split.parts[0].joules / window.window_s if split.parts else None

    return of
