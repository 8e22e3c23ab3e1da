# SPDX-License-Identifier: Apache-2.0
"""The saved record of a cure: `powerprof.cure/1`. An unknown figure is None, not 0."""

from __future__ import annotations

from typing import Literal

import msgspec

from powerprof.experiment.records import Metric
from powerprof.model.attribution import TargetInfo, Thread
from powerprof.model.records import Record, Window
from powerprof.queries.records import Latency

Arm = Literal["before", "cured"]
Untried = Literal["same_value", "no_saving"]
RemedyKind = Literal["timer_slack", "variable", "host"]


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A setting, with its old and new value. Timer slack is in ns.

    Attributes:
        lasting: how to keep the change.
        delays: its other effects.
    """

    kind: RemedyKind
    name: str
    from_value: str = msgspec.field(name="from")
    to_value: str = msgspec.field(name="to")
    thread: Thread | None = None
    lasting: str = ""
    delays: str = ""


class CureBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A window of one arm.

    Attributes:
        counted_s: between the reads of the switch counters.
        thread_wakings_count, target_wakings_count: voluntary switches of the thread, and of the process.
        traced_wakings_count: wake-ups of the thread in `traced_s`.
        thread_exits_count, target_exits_count: idle exits by the thread, and by the process.
        statements_count, commits_count: that ended in `statements_s`; those that write the log.
        replica_looks_count, replica_stopped_count: the replica's reports; those without a running SQL thread.
        replica_lag_s: mean of Seconds_Behind_Master.
        replica_backlog_bytes: mean, received and not yet applied.
        replica_delay_ms: of one transaction, by `replica_delay_source`.
    """

    pair: int
    arm: Arm
    window: Window
    counted_s: float
    thread_wakings_count: int | None
    target_wakings_count: int
    traced_wakings_count: int | None = None
    traced_s: float | None = None
    thread_exits_count: int | None = None
    target_exits_count: int | None = None
    statements_count: int | None = None
    statements_s: float | None = None
    latency_ms: Latency | None = None
    commits_count: int | None = None
    commit_latency_ms: Latency | None = None
    replica_looks_count: int | None = None
    replica_stopped_count: int | None = None
    replica_lag_s: float | None = None
    replica_backlog_bytes: float | None = None
    replica_delay_ms: float | None = None
    replica_delay_source: str | None = None


class CurePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The thread's wake-ups now, and predicted with the remedy.

    Attributes:
        most_hz: if timers of other threads fire one at a time.
        is_bound: the lowest possible rate, because the sleeps are irregular.
    """

    now_hz: float
    then_hz: float
    is_bound: bool
    most_hz: float | None = None


class CureVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, by one metric.

    Attributes:
        untried: why nothing was tried: the setting has the `same_value`, or `no_saving` is predicted at best.
        hurts: `statements` or `commits`: their latency rose by more than `max_p95_percent` and ended the cure.
        hurts_from_ms, hurts_to_ms: their latency before and with the remedy, at `guard_percentile`.
    """

    metric: str
    text: str = ""
    max_p95_percent: float | None = None
    guard_percentile: int = 95
    untried: Untried | None = None
    hurts: str | None = None
    hurts_from_ms: float | None = None
    hurts_to_ms: float | None = None


class Cure(Record, frozen=True, kw_only=True):
    """A tried remedy. In `metrics` A is before and B is cured.

    Attributes:
        reverted: the old value is restored; None if the thread has ended.
        latency: number of measured statements, or why it is unknown.
        replication: source of the replica's figures, or why they are unknown.
    """

    target: TargetInfo
    remedy: Remedy
    window_s: float
    blocks_count: int
    order: list[Arm]
    metrics: list[Metric]
    verdict: CureVerdict
    reverted: bool | None
    read_back: str | None
    latency: str = "not measured"
    replication: str = "not measured"
    predicted: CurePrediction | None = None
    blocks: list[CureBlock] = []
    command: str = "cure"
    schema: Literal["powerprof.cure/1"] = "powerprof.cure/1"
