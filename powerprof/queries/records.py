# SPDX-License-Identifier: Apache-2.0
"""Records of `powerprof queries` (JSON `powerprof.queries/1`), and sums of statements by their askers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from powerprof.model.identities import Family
from powerprof.model.records import EnergyReading, EnergySource, EnergySplit, Kind, Notes, ToolCost
from powerprof.model.statements import NormalText
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    pass


Method = Literal["probes", "samples", "history"]
"""Probes at each statement, samples of texts in the server's memory, or samples and the server's own history."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Time from the start of a statement to its last packet, in ms, of calls that ended in the window."""

    p50: float
    p95: float
    p99: float | None = None


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Average waiting time per call in ms, by cause. Together with the CPU time it is the latency.

    Attributes:
        run_queue: For a CPU; None if the kernel does not count it.
        row_lock: For row locks; None if the server does not report causes. They are then part of `latch`.
        lock: For locks of tables, metadata and users; None as above.
        latch: For internal structures of the server.
        disk: For reads and writes.
        sync: Until a log is on its disk, written by this or another thread.
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
    """The traced server; `pid` is the first of PostgreSQL's processes.

    `performance_schema`: whether it was available and collects statements.
    """

    pid: int
    label: str
    version: str | None = None
    address: str | None = None
    performance_schema: bool = False
    family: Family = "mysql"


class QueryPlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """A row of EXPLAIN with the columns that all servers have."""

    table: str | None = None
    access: str | None = None
    key: str | None = None
    rows_count: int | None = None
    extra: str | None = None


class SampledStack(msgspec.Struct, frozen=True):
    """Number of samples on one call path; `frames` from the outermost, with `_[k]` for the kernel."""

    frames: list[str]
    count: int


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the server's work: `c0_s` of CPU time, `c0_percent` of the server's.

    `joules` above the idle floor, of `kind`, within `low_joules` and `high_joules` if that is known.
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
    """An account's part of a statement.

    `user` is None for connections that started and ended in the window, and for those behind the first ones of many.
    `host` is None if unknown, or for this host without a network.
    """

    user: str | None
    host: str | None
    c0_s: float
    calls_count: int | None = None


class Statement(Share, frozen=True, kw_only=True):
    """A statement: its text without values, and the schema of its connections (None: unknown).

    Attributes:
        id: Short for text and schema, and equal in every run.
        query_id: PostgreSQL's number, as text because it has 64 bits.
        calls_count: Calls that began in the window, or with `began_before` were running at its start.
        unfinished_count: Calls that had not ended.
        may_be_several: Whether texts that differ only behind the read part share this row.
        c0_ms_deviation: Standard deviation of a call's CPU time.
        low_percent, high_percent: 95 % interval of a sampled share.
        askers: Parts by account, most CPU time first. They sum to the statement.
        stacks: On request, for statements with most samples.
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
    """CPU time of tracing on this host. It is a part of the figures above."""

    probes_ms: float | None
    percent: float | None
    per_call_us: float | None


class Queries(msgspec.Struct, frozen=True, kw_only=True):
    """A window: Σ statements + Σ background + `other_c0_s` = `server_c0_s`, the kernel's own count for the process.

    `other_c0_s` is `connections_c0_s` (threads of connections without a statement) + `residual_c0_s` (unexplained;
    negative if the parts exceed the total). `energy` is that of the host; `joules` is that of the server above the idle
    floor. `calls_count` is None if nothing counts calls, as for samples without the server's own count. `gap_before_s`
    is the time between the previous window and this one.
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
    calls_count: int | None
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
    """Files by frame of the statements' stacks."""
    interrupted: bool = False
    command: str = "queries"
    schema: Literal["powerprof.queries/1"] = "powerprof.queries/1"


# Pure: who asked for a statement, and statements summed by user, host, account or database.

Grouping = Literal["user", "host", "account", "database"]


GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)


UNKNOWN = "(not known)"


def parse_grouping(value: str) -> Grouping:
    """Return the value of `--by`. Raise UsageError."""
    for known in GROUPINGS:
        if value == known:
            return known
    raise UsageError(f"--by {value[:40]} is not a choice", f"one of {', '.join(GROUPINGS)}")


@dataclass
class AskerGroup:
    """The sum of all statements of one asker; `first` is the one with most CPU time."""

    name: str
    c0_s: float = 0.0
    joules: float | None = None
    calls: int | None = None
    texts: set[str] = field(default_factory=set)
    first: str = ""
    first_s: float = 0.0


def group_statements(record: Queries, by: Grouping) -> list[AskerGroup]:
    """Return groups, most CPU time first. Joules of a statement are split among its askers by CPU time."""
    found: dict[str, AskerGroup] = {}
    for statement in record.statements:
        for name, c0_s, calls in _parts(statement, by):
            group = found.setdefault(name, AskerGroup(name))
            group.c0_s += c0_s
            group.texts.add(statement.id or statement.text)
            if calls is not None:
                group.calls = (group.calls or 0) + calls
            if statement.joules is not None and statement.c0_s:
                group.joules = (group.joules or 0.0) + statement.joules * c0_s / statement.c0_s
            if not group.first or c0_s > group.first_s:
                group.first, group.first_s = statement.text, c0_s
    return sorted(found.values(), key=lambda group: (-group.c0_s, group.name))


def _parts(statement: Statement, by: Grouping) -> list[tuple[str, float, int | None]]:
    whole = statement.c0_s, statement.calls_count
    if by == "database":
        return [(statement.schema_name or UNKNOWN, *whole)]
    if not statement.askers:
        return [(UNKNOWN, *whole)]
    sums: dict[str, tuple[float, int | None]] = defaultdict(lambda: (0.0, None))
    for asker in statement.askers:
        name = name_asker(asker, by)
        c0_s, calls = sums[name]
        more = calls if asker.calls_count is None else (calls or 0) + asker.calls_count
        sums[name] = c0_s + asker.c0_s, more
    return [(name, *amount) for name, amount in sums.items()]


def name_asker(asker: Asker, by: Grouping = "account") -> str:
    """Return the name of an asker in this grouping."""
    if asker.user is None:
        return UNKNOWN
    host = asker.host or "localhost"
    return {"user": asker.user, "host": host}.get(by, f"{asker.user}@{host}")
