# SPDX-License-Identifier: Apache-2.0
"""One interval of a monitor, and the small records that it is made of.

Intervals follow each other without a gap: what ended between two traced windows is in the later one, as `untraced`.
"""

from __future__ import annotations

import msgspec

from powerprof.model.records import Kind, Notes

# Idle exits that the kernel counted and nobody traced: between two windows, at their edges, or lost on the way.
UNTRACED = "untraced"
OTHER = "other"


class RowKey(msgspec.Struct, frozen=True, order=True):
    """Whose idle exits: names that come again after a restart, no numbers of processes."""

    process: str
    thread: str
    function: str


REST = RowKey(OTHER, OTHER, OTHER)


class IntervalRow(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits of one process, thread name and function in one interval, and the running time that is theirs.

    `stack` is the most frequent one, innermost first; `period_ms` that of its wake-ups where they are regular; `unit`
    the control group as people call it.
    """

    key: RowKey
    exits_count: int
    c0_s: float
    mechanism: str
    stack: tuple[str, ...] = ()
    period_ms: float | None = None
    pid: int | None = None
    unit: str | None = None


class Joules(msgspec.Struct, frozen=True, kw_only=True):
    """What one domain drew; None where its meter gave no figure. `in_host`: part of the host's sum."""

    source: str
    domain: str
    kind: Kind
    joules: float | None
    in_host: bool = False


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """What a database server reported at the interval's end. `queries_count` were answered in it. `account` runs it,
    from the file `program`."""

    name: str
    up: bool
    account: str = ""
    program: str = ""
    role: str = "standalone"
    replication_healthy: bool | None = None
    lag_s: float | None = None
    queries_count: int | None = None


class LiveFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of `diagnose` that held at the last look, and the server that it is of."""

    rule: str
    severity: str
    text: str
    server: str = ""
    account: str = ""
    program: str = ""
    remedy: tuple[str, ...] = ()
    rate_hz: float | None = None


class OwnCost(msgspec.Struct, frozen=True, kw_only=True):
    """What powerprof itself used: CPU time of its process and of its BPF programs, and how often it woke a CPU."""

    cpu_s: float
    wakeups_count: int
    bpf_s: float | None = None
    memory_bytes: int | None = None


class Used(msgspec.Struct, frozen=True):
    """CPU time of the processes of one name that were there from an interval's beginning to its end."""

    processes: int
    cpu_s: float


class ServedStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What a statement used in an interval. `text` is without values, and cut."""

    id: str
    text: str
    schema: str
    c0_s: float
    wakeups_count: int = 0
    joules: float = 0.0


class ServedStatements(msgspec.Struct, frozen=True, kw_only=True):
    """The statements of one server in an interval; `method` None: it was away, or could not be traced.

    `c0_s`, `wakeups_count` and `joules` are the whole server's in `window_s`; None where they are not known, as
    wake-ups of samples. `kind` is that of the joules.
    """

    server: str
    method: str | None = None
    window_s: float = 0.0
    c0_s: float = 0.0
    wakeups_count: int | None = None
    joules: float | None = None
    kind: Kind | None = None
    statements: tuple[ServedStatement, ...] = ()
    bpf_s: float | None = None


class LiveInterval(msgspec.Struct, frozen=True, kw_only=True):
    """What happened on this host in one interval.

    `idle_s` by CPU and state and `exits_count` are the kernel's own counters; `mechanisms` sums to `exits_count`, and
    so do `rows` with what is in none of them. `balance_error` is how far the trace was from the kernel's count, as a
    share of it (None where nothing counts). `cpus` were online from its beginning to its end. The counters were read
    at `ended_at`; `ahead_count` of the exits are not in them yet, and in no later interval. `used` is the CPU time of
    processes by name, where the CPUs were busy and it was looked at.
    """

    ended_at: str
    window_s: float
    cpus: int
    idle_s: dict[tuple[int, str], float]
    polling: frozenset[str] = frozenset()
    exits_count: int
    ahead_count: int = 0
    mechanisms: dict[str, int]
    rows: tuple[IntervalRow, ...]
    c0_s: float
    own: OwnCost
    energy: tuple[Joules, ...] = ()
    lost_count: int = 0
    lost_stacks_count: int = 0
    unknown_count: int = 0
    balance_error: float | None = None
    stacks_complete_percent: float | None = None
    suspended_s: float = 0.0
    servers: tuple[ServerState, ...] = ()
    findings: tuple[LiveFinding, ...] = ()
    used: dict[str, Used] | None = None
    statements: ServedStatements | None = None
    notes: Notes = ()

    @property
    def c0_percent(self) -> float | None:
        """The share of all CPUs' time in which they ran."""
        return 100.0 * self.c0_s / (self.window_s * self.cpus) if self.window_s > 0 and self.cpus else None

    @property
    def exits_hz(self) -> float | None:
        """Idle exits per second of all CPUs."""
        return self.exits_count / self.window_s if self.window_s > 0 else None

    @property
    def host_watts(self) -> tuple[float, Kind] | None:
        """What the host drew, and whether that was measured; None where it is unknown."""
        mine = [reading for reading in self.energy if reading.in_host]
        if not mine or self.window_s <= 0 or any(reading.joules is None for reading in mine):
            return None
        return sum(reading.joules or 0.0 for reading in mine) / self.window_s, mine[0].kind


def balance_error(seen: int, kernel: int | None) -> float | None:
    """How far apart what was traced and what the kernel counted are, as a share of the latter; None without one."""
    if kernel is None:
        return None
    return abs(seen - kernel) / kernel if kernel else float(seen > 0)
