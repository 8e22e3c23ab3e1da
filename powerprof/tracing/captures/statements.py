# SPDX-License-Identifier: Apache-2.0
"""What a window of statements is, between its collection and its analysis: plain values that can be saved."""

from __future__ import annotations

import msgspec

from powerprof.statements.identity import Family
from powerprof.tracing.bpf.shared_numbers import WAITS

NO_WAITS = (0,) * WAITS


class StatementUse(msgspec.Struct, frozen=True):
    """What one thread used for one statement; thread 0 are all that had ended, where they were many. `open_count`: of
    `calls`, those that had not ended. `waits_ns`: by `StatementWait`; with `cpu_ns` they are `wall_ns`, but for CPU
    time after the last packet and what was stolen from the running thread. `squares`: the sum of the squares of a
    call's CPU time, in units of 2^`SQUARED_NS_LOG` ns, of those that ended."""

    id: int
    tid: int
    calls: int
    cpu_ns: int
    wall_ns: int
    wakeups: int
    faults: int
    open_count: int = 0
    waits_ns: tuple[int, ...] = NO_WAITS
    squares: int = 0


class TextSeen(msgspec.Struct, frozen=True):
    """The first text of an identity, without the comment that it begins with: `length` is that of the whole, `hashed`
    of what the identity is made of, and `text` what was kept of that. A prepared statement that was prepared before the
    window and of which the server's memory had no text has none; it has the server's number, and the thread that
    executed it."""

    id: int
    command: int
    length: int
    text: bytes
    prepared_number: int = 0
    tid: int = 0
    hashed: int | None = None

    @property
    def may_be_several(self) -> bool:
        """Whether texts that differ have this identity: behind what was hashed of them."""
        return self.hashed is not None and self.hashed < self.length

    @property
    def is_cut(self) -> bool:
        """Whether texts of which the same was kept have identities of their own."""
        return self.hashed is not None and len(self.text) < self.hashed


class ThreadUse(msgspec.Struct, frozen=True):
    """One thread of the server, or with number 0 `count` that had ended. `before_ns`: used before its first statement
    of the window began."""

    tid: int
    comm: str
    cpu_ns: int
    wakeups: int
    statements: int
    before_ns: int
    count: int = 1


class TraceCost(msgspec.Struct, frozen=True):
    """What tracing took: in BPF programs (None where the kernel does not tell), and in a probe's trap beside them."""

    bpf_s: float | None
    trap_ns: float


class StatementTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A window as it was collected. `latencies`: identity → class of nanoseconds (`class_range`) → calls.

    `process_cpu_ns` is the scheduler's own count of the process, or of all that a server works in, with what ended
    threads ran that its clock missed. `is_sure`: of PostgreSQL's messages each is recognised.
    `has_run_queue`: the kernel counts waits for a CPU; `tells_locks`: the server says what it waits for. `lost_count`
    are updates for which a table had no room, `unreadable_count` texts that were not in memory, `cut_count` texts
    longer than is looked at.
    """

    pid: int
    window_s: float
    symbol: str
    ends_by: str
    process_cpu_ns: int | None
    uses: list[StatementUse]
    texts: list[TextSeen]
    threads: list[ThreadUse]
    latencies: dict[int, dict[int, int]]
    dispatches_count: int
    lost_count: int
    unreadable_count: int
    cut_count: int
    cost: TraceCost
    family: Family = "mysql"
    is_sure: bool = True
    has_run_queue: bool = True
    tells_locks: bool = True


def class_of(duration_ns: int) -> int:
    """The class of a time, as the programs in the kernel tell it (uses.bpf.h): eight of equal width in each octave."""
    octave = max(duration_ns.bit_length() - 1, 3)
    return octave << 3 | duration_ns >> (octave - 3) & 7


def class_range(bucket: int) -> tuple[float, float]:
    """Lowest and highest nanoseconds of a class."""
    octave, part = bucket >> 3, bucket & 7
    width = 2.0 ** (octave - 3)
    return (8 + part) * width, (9 + part) * width
