# SPDX-License-Identifier: Apache-2.0
"""What a cure says: `powerprof.cure/1`. Unknown is None, never 0."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from powerprof.experiment.records import Metric
from powerprof.model.attribution import TargetInfo, Thread
from powerprof.model.records import EnergySource, Notes, ToolCost, Window
from powerprof.queries.records import Latency

Arm = Literal["before", "cured"]
RemedyKind = Literal["timer_slack", "variable", "event"]


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What was changed, from which value to which: of timer slack in ns. `lasting` is how to keep it, `delays` what
    else it changes."""

    kind: RemedyKind
    name: str
    from_value: str = msgspec.field(name="from")
    to_value: str = msgspec.field(name="to")
    thread: Thread | None = None
    lasting: str = ""
    delays: str = ""


class CureBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One window. Counts are over `counted_s`, which lies within the window.

    `thread_wakings_count` and `target_wakings_count` are how often the thread, and all threads of the process, gave up
    their CPU to wait (voluntary switches): each is one wake-up. `traced_wakings_count` is how often the trace saw the
    thread woken in `traced_s`; both `…_exits_count` are idle exits. `statements_count` statements of the server
    ended in `statements_s`; `commits_count` of them write the log (COMMIT, INSERT, UPDATE, DELETE, REPLACE, CALL).

    Of a replica, by its own report in `replica_looks_count` looks: `replica_lag_s` is the mean of
    Seconds_Behind_Master, `replica_backlog_bytes` of what it had received and not applied, `replica_delay_ms` by
    `replica_delay_source`; in `replica_stopped_count` looks its SQL thread did not run.
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
    """How often the thread wakes, and would with the remedy, from a window before anything was changed: `then_hz`, or
    up to `most_hz` where the timers of others come one at a time. `is_bound`: at best, for its sleeps are not regular.
    """

    now_hz: float
    then_hz: float
    is_bound: bool
    most_hz: float | None = None


class CureVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, by which metric. `hurts` is the latency that rose beyond `max_p95_percent` and ended the cure:
    `statements` or `commits`, from p95 `hurts_from_ms` to `hurts_to_ms`."""

    metric: str
    text: str = ""
    max_p95_percent: float | None = None
    hurts: str | None = None
    hurts_from_ms: float | None = None
    hurts_to_ms: float | None = None


class Cure(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy that was tried in turns. In `metrics` A is before and B is cured.

    `reverted`: read back and as before; None where the thread had ended meanwhile. `latency` and `replication`
    say whether they were measured.
    """

    id: str | None
    started_at: str
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
    host: dict[str, Any] = {}
    tool: ToolCost | None = None
    energy_source: EnergySource | None = None
    notes: Notes = []
    interrupted: bool = False
    command: str = "cure"
    schema: Literal["powerprof.cure/1"] = "powerprof.cure/1"
