# SPDX-License-Identifier: Apache-2.0
"""Records of `powerprof queries` (JSON `powerprof.queries/1`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from powerprof.model.identities import Family
from powerprof.model.records import EnergyReading, EnergySplit, Kind, Record, ServerInfo, ToolCost
from powerprof.model.statements import NormalText

Method = Literal["probes", "samples"]
"""Probes at each statement, or samples of texts in the server's memory."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Time from the start of a statement to its last packet, in ms."""

    p50: float
    p95: float
    p99: float | None = None


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Mean waiting time per call in ms. With the CPU time it is the latency.

    Attributes:
        run_queue: for a CPU.
        row_lock: None if the server does not report causes; it is then part of `latch`.
        lock: tables, metadata and users.
        latch: internal structures.
        sync: until a log is on its disk.
    """

    run_queue: float | None
    row_lock: float | None
    lock: float | None
    latch: float
    disk: float
    sync: float
    client: float
    sleep: float
    other: float


class QueryServer(ServerInfo, frozen=True, kw_only=True):
    """The traced server. `performance_schema`: whether it collects statements."""

    pid: int
    label: str
    address: str | None = None
    performance_schema: bool = False
    family: Family = "mysql"


class QueryPlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """A row of EXPLAIN."""

    table: str | None = None
    access: str | None = None
    key: str | None = None
    rows_count: int | None = None
    extra: str | None = None


class SampledStack(msgspec.Struct, frozen=True):
    """Samples on one call path, from the outermost frame; `_[k]`: kernel."""

    frames: list[str]
    count: int


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the server's work: `c0_percent` of its CPU time, and `joules` above the idle floor."""

    c0_s: float
    c0_percent: float | None = None
    wakeups_count: int | None = None
    joules: float | None = None
    low_joules: float | None = None
    high_joules: float | None = None
    watts: float | None = None
    kind: Kind | None = None


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """An account's part of a statement. `user` is null for short connections, and beyond the first of many."""

    user: str | None
    host: str | None
    c0_s: float
    calls_count: int | None = None


class Statement(Share, frozen=True, kw_only=True):
    """A statement: text without values, and schema.

    Attributes:
        id: equal in every run.
        query_id: PostgreSQL's number, as text.
        calls_count: ran in the window.
        unfinished_count: of them, had not ended.
        calls_hz: the mean rate of calls that began and that ended in the window.
        began_before_count: of them, ran at its start. Costs per call and latency are those of the other, ended calls.
        may_be_several: texts that differ behind the read part share this row.
        c0_ms_deviation: standard deviation of a call's CPU time.
        low_percent, high_percent: interval of a share from samples or slices.
        askers: parts by account.
        stacks: on request.
    """

    text: NormalText
    id: str = ""
    query_id: str | None = None
    schema_name: str | None = None
    calls_count: int | None = None
    calls_hz: float | None = None
    unfinished_count: int = 0
    began_before_count: int = 0
    may_be_several: bool = False
    c0_ms_per_call: float | None = None
    c0_ms_deviation: float | None = None
    wakeups_per_call: float | None = None
    page_faults_count: int | None = None
    rows_examined_per_call: float | None = None
    rows_sent_per_call: float | None = None
    rows_affected_per_call: float | None = None
    tmp_tables_per_call: float | None = None
    tmp_disk_tables_per_call: float | None = None
    full_scans_per_call: float | None = None
    errors_count: int | None = None
    latency_ms: Latency | None = None
    waits_ms: Waits | None = None
    joules_per_call: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    askers: list[Asker] = []
    plan: list[QueryPlanStep] = []
    stacks: list[SampledStack] = []


class Background(Share, frozen=True, kw_only=True):
    """Threads of one name that execute no client's statement."""

    thread: str
    threads_count: int


class TracingCost(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time of tracing, a part of the figures above."""

    probes_ms: float | None
    percent: float | None
    per_call_us: float | None


class StatementSlicing(msgspec.Struct, frozen=True, kw_only=True):
    """The traced part of a window whose cost was bounded. The figures of the record are estimates from it.

    Attributes:
        calls_by: calls are scaled to the server's own count of statements, to its CPU time, or by time.
        unseen_below_hz: the largest rate of a statement that no slice shows, with 95 % certainty.
    """

    slices_count: int
    traced_s: float
    traced_percent: float
    calls_by: Literal["server", "cpu", "time"]
    unseen_below_hz: float


class Queries(Record, frozen=True, kw_only=True):
    """A window: Σ statements + Σ background + `other_c0_s` = `server_c0_s`, the kernel's own count for the process.

    Attributes:
        connections_c0_s, residual_c0_s, other_c0_s: connections without a statement; unexplained; their sum.
        joules: of the server above the idle floor; `energy` is that of the host.
        calls_count: None if nothing counts calls.
        gap_before_s: time since the previous window.
    """

    window_s: float
    method: Method
    server: QueryServer
    cpus: int
    host_c0_percent: float | None
    server_c0_s: float
    statements: list[Statement]
    background: list[Background]
    connections: Share
    connections_count: int
    connections_c0_s: float
    residual_c0_s: float
    other_c0_s: float
    explained_percent: float | None
    calls_count: int | None
    lost_count: int
    unreadable_count: int
    cut_count: int
    joules: float | None
    kind: Kind | None
    energy: list[EnergyReading]
    energy_split: EnergySplit | None
    tracing: TracingCost
    tool: ToolCost
    gap_before_s: float | None = None
    slicing: StatementSlicing | None = None
    modules: dict[str, str] = {}
    """Files by frame of the statements' stacks."""
    command: str = "queries"
    started_at: str
    schema: Literal["powerprof.queries/1"] = "powerprof.queries/1"
