# SPDX-License-Identifier: Apache-2.0
"""Counters of the statements of one server: series for the costliest, one sum for all else."""

from __future__ import annotations

from dataclasses import dataclass, field

from powerprof.live.intervals import ServedStatement, ServedStatements
from powerprof.live.ranking import TOP, RankedCounters, Ranking
from powerprof.records import Kind

# What is remembered of texts of statements without a place.
_REMEMBERED = 20


@dataclass
class StatementTotals:
    """The sums over all intervals of one server. What is in no statement's series (statements below the top,
    background, connections) is `rest`, so that all series together are the server."""

    rows: Ranking[str] = field(default_factory=Ranking)
    texts: dict[str, ServedStatement] = field(default_factory=dict)
    measured_s: dict[str, float] = field(default_factory=lambda: {"probes": 0.0, "samples": 0.0})
    server: str = ""
    up: bool = False
    has_wakeups: bool = False
    kind: Kind | None = None

    @classmethod
    def of(cls, top: int = TOP, stale_s: float = 300.0) -> StatementTotals:
        """With so many places."""
        return cls(Ranking(top, stale_s))

    def add(self, interval: ServedStatements) -> None:
        """Count one more interval."""
        self.server = self.server or interval.server
        self.up = interval.method is not None
        if interval.method is None:
            return
        self.measured_s[interval.method] = self.measured_s.get(interval.method, 0.0) + interval.window_s
        self.has_wakeups = interval.wakeups_count is not None
        # Measured and estimated joules are never added: what was there first is counted.
        self.kind = self.kind or interval.kind
        is_alike = self.kind is not None and interval.kind == self.kind
        costs: dict[str, tuple[int, float]] = {}
        energy: dict[str, float] = {}
        for row in interval.statements:
            count, c0_s = costs.get(row.id, (0, 0.0))
            costs[row.id] = count + row.wakeups_count, c0_s + max(row.c0_s, 0.0)
            energy[row.id] = energy.get(row.id, 0.0) + max(row.joules, 0.0)
            self.texts.setdefault(row.id, row)
        self.rows.add(
            interval.window_s,
            costs,
            interval.wakeups_count or 0,
            interval.c0_s,
            energy if is_alike else None,
            max(interval.joules or 0.0, 0.0) if is_alike else 0.0,
        )
        self._forget(costs)

    def read(self) -> None:
        """A reader was shown every series; of a server that is away there is none."""
        if self.up:
            self.rows.read()

    def places(self) -> dict[str, RankedCounters]:
        """The counters by the statement's id, `other` for all that has none."""
        return {**self.rows.places, "other": self.rows.rest}

    def _forget(self, new: dict[str, tuple[int, float]]) -> None:
        if len(self.texts) > _REMEMBERED * max(1, self.rows.top):
            keep = set(self.rows.places) | set(new)
            self.texts = {id: row for id, row in self.texts.items() if id in keep}
