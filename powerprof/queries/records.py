# SPDX-License-Identifier: Apache-2.0
"""What `powerprof queries` finds: the JSON of `powerprof.queries/1`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from powerprof.model.records import EnergyReading, EnergySource, EnergySplit, Kind, Notes, ToolCost
from powerprof.statements.text import Family, NormalText

Method = Literal["probes", "samples", "history"]
"""By a probe at each statement, by samples of the texts in the server's memory, or by samples and its own history."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """From the beginning of a statement to its last packet, in ms; of those that ended in the window."""

    p50: float
    p95: float
    p99: float | None = None


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of a statement waited for, on average, in ms; with its CPU time they are its latency.

    `run_queue`: for a CPU (None: this kernel does not count it). `row_lock`, and `lock`, which are those of tables,
    metadata and users: None where the server does not say what it waits for, and then in `latch`, which is what is
    protected within the server. `disk`: reads and writes, `sync`: until a log is on its disk, by itself or by others.
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


class QueryServer(msgspec.Struct, frozen=True, kw_only=True):
    """Which server, `pid` the first of PostgreSQL's processes. `performance_schema`: whether it could be asked, and
    collects statements."""

    pid: int
    label: str
    version: str | None = None
    address: str | None = None
    performance_schema: bool = False
    family: Family = "mysql"


class QueryPlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """A row of EXPLAIN, as far as every server has it."""

    table: str | None = None
    access: str | None = None
    key: str | None = None
    rows_count: int | None = None
    extra: str | None = None


class SampledStack(msgspec.Struct, frozen=True):
    """How often a statement was met on one call path; `frames` from the outermost, the kernel's end in `_[k]`."""

    frames: list[str]
    count: int


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a part of the server used: `c0_s` of CPU time, `c0_percent` of the server's.

    `joules` above the idle floor, of `kind`, within `low_joules` and `high_joules` where that is known.
    """

    c0_s: float
    c0_percent: float | None = None
    wakeups_count: int | None = None
    joules: float | None = None
    low_joules: float | None = None
    high_joules: float | None = None
    watts: float | None = None
    kind: Kind | None = None


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """One account's part of a statement. `user` None: not known, as of connections that came and went within the
    window, and of those behind the first of many; `host` None: not known, or this host without a network."""

    user: str | None
    host: str | None
    c0_s: float
    calls_count: int | None = None


class Statement(Share, frozen=True, kw_only=True):
    """One statement: its text without values, in the schema that its connections were in (None: unknown); `id` is short
    for both, and the same in every run; `query_id` is PostgreSQL's number, a text as it has 64 bits.

    `calls_count` began in the window, or were under way at its beginning where `began_before`; `unfinished_count` of
    them had not ended. `may_be_several`: texts that differ only behind what is looked at are this row. `low_percent`
    and `high_percent`: the 95 % interval of a share that was sampled. `stacks`: where asked for, of the statements with
    most samples. `c0_ms_deviation`: the standard deviation of a call's CPU time.
    `askers`: most CPU time first; they sum to the statement.
    """

    text: NormalText
    id: str = ""
    query_id: str | None = None
    schema_name: str | None = None
    calls_count: int | None = None
    calls_hz: float | None = None
    unfinished_count: int = 0
    began_before: bool = False
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
    """CPU time that tracing took from this host: a part of the figures above, not beside them."""

    probes_ms: float | None
    percent: float | None
    per_call_us: float | None


class Queries(msgspec.Struct, frozen=True, kw_only=True):
    """Σ statements + Σ background + `other_c0_s` = `server_c0_s`, which the kernel counted for the process by itself.

    `other_c0_s` is `connections_c0_s` (threads of connections in no statement) + `residual_c0_s` (what no part
    explains; negative where the parts are more). `energy` is the host's; `joules` is the server's above the idle floor.
    `gap_before_s`: of windows that follow each other, what lies between the one before and this one, in neither.
    """

    id: str | None
    started_at: str
    window_s: float
    method: Method
    server: QueryServer
    host: dict[str, Any]
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
    calls_count: int
    lost_count: int
    unreadable_count: int
    cut_count: int
    joules: float | None
    kind: Kind | None
    energy_source: EnergySource | None
    energy: list[EnergyReading]
    energy_split: EnergySplit | None
    tracing: TracingCost
    tool: ToolCost
    notes: Notes = []
    gap_before_s: float | None = None
    modules: dict[str, str] = {}
    """The file of each frame of the statements' stacks."""
    interrupted: bool = False
    command: str = "queries"
    schema: Literal["powerprof.queries/1"] = "powerprof.queries/1"
