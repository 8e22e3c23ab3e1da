# SPDX-License-Identifier: Apache-2.0
"""Numbers that programs and their readers share: one class an enum of probes/bpf, its members in the same order.

A test reads the sources and fails where either side moves (tests/unit/tracing/test_shared_enums.py).
"""

from __future__ import annotations

from enum import IntEnum


class Shared(IntEnum):
    """enum shared_value of idle.bpf.c: what is read often and written seldom."""

    ALL_BUSY = 0
    REGS_OFFSET = 1
    COUNTING = 2
    STACK_BYTES = 3
    SAMPLE_MASK = 4
    CAUSE_HALF = 5
    WOKEN_HALF = 6
    ONLY_TARGET = 7
    WINDOW = 8
    TICK_HANDLER = 9
    OWN_PID = 10
    POLLS = 11


class PathCount(IntEnum):
    """enum path_counter of paths.bpf.h: what became of samples and page faults."""

    EVENTS = 0
    IDLE = 1
    TARGET = 2
    STACKS = 3
    LOST_STACKS = 4
    LOST_ROWS = 5


class FunctionCount(IntEnum):
    """enum counter of functions.bpf.c."""

    HITS = 0
    UNMATCHED = 1
    TOO_DEEP = 2
    NO_ROOM = 3


class StatementCount(IntEnum):
    """enum counter of queries.bpf.c."""

    DISPATCHES = 0
    NO_ROOM = 1
    UNREADABLE = 2
    CUT = 3
    ENDINGS = 4


class StatementWait(IntEnum):
    """enum wait of waitkinds.bpf.h: what a thread that does not run waits for."""

    RUN_QUEUE = 0
    ROW_LOCK = 1
    LOCK = 2
    LATCH = 3
    DISK = 4
    SYNC = 5
    CLIENT = 6
    SLEEP = 7
    OTHER = 8


class MomentCount(IntEnum):
    """enum counter of moments.bpf.c."""

    EVENTS = 0
    NO_ROOM = 1
    UNREADABLE = 2
    CUT = 3
