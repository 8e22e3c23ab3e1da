# SPDX-License-Identifier: Apache-2.0
"""Records and sums of the BPF programs as numpy types: probes/bpf/idle_period.h, causes.h and looks.bpf.h in Python."""

from __future__ import annotations

import numpy as np

from powerprof.tracing.bpf.shared_numbers import CAUSE_STATES, COMM_BYTES, INTERPRETER_FRAMES, Filling

# What names a cause, in the order in which both a record and a key hold it.
_PLACES = ("timer_function", "work_function", "site_ip", "site_sp", "site_code")
_WAKER_PLACES = ("waker_timer_function", "waker_ip", "waker_sp", "waker_code")
_WHO = ("evidence", "irq", "flags", "next_tid", "next_tgid", "waker_tid", "waker_tgid")
_WAKING = ("waker_context", "waker_irq", "woken_tid")


def _struct(words: tuple[str, ...], halves: tuple[str, ...], *others: tuple[str, str]) -> np.dtype[np.void]:
    """Of u64, then u32, then others."""
    return np.dtype([*((name, "<u8") for name in words), *((name, "<u4") for name in halves), *others])


IDLE_EXIT = _struct(
    ("enter_ns", "exit_ns", "next_ns", *_PLACES, "waking_ns", *_WAKER_PLACES),
    ("cpu", "state", *_WHO, "waker_cpu", *_WAKING, "sequence"),
    ("next_comm", f"S{COMM_BYTES}"),
    ("waker_comm", f"S{COMM_BYTES}"),
)

# struct cause_key and struct cause_sum, one after the other: probes/bpf/causes.h.
CAUSE_KEY = _struct((*_PLACES, *_WAKER_PLACES), (*_WHO, *_WAKING))
CAUSE_SUM = np.dtype(
    [(name, "<u8") for name in ("count", "running_ns", "idle_ns", "own_ns", "kernel_ns")]
    + [(name, "<u8") for name in ("last_ns", "period_ns", "fitting_ns")]
    + [(name, "<u4") for name in ("fitting_gaps", "fitting_periods", "gaps", "votes")]
    + [("states", "<u4", (CAUSE_STATES,)), ("next_comm", f"S{COMM_BYTES}"), ("waker_comm", f"S{COMM_BYTES}")]
)
CAUSE = np.dtype([*((name, CAUSE_KEY[name]) for name in CAUSE_KEY.names or ()), *CAUSE_SUM.descr])
# As saved captures have them that did not know how long threads ran.
CAUSE_BEFORE = np.dtype([field for field in CAUSE.descr if field[0] not in ("own_ns", "kernel_ns")])
# What grows: the rest of a sum tells of regularity and names.
SUMS = ("count", "running_ns", "idle_ns", "own_ns", "kernel_ns", "states")

# struct woken_key of sites.bpf.h, and its count.
WOKEN_KEY = np.dtype(
    [(name, "<u8") for name in ("ip", "sp", "code", "timer_function")]
    + [(name, "<u4") for name in ("tid", "pid", "context", "irq", "waker_pid", "waker_tid")]
)
WOKEN_COUNT = np.dtype([("count", "<u8")])

WOKEN = np.dtype([*WOKEN_KEY.descr, *WOKEN_COUNT.descr])

# Exits of one CPU in its window: struct cpu_total of causes.h.
_BY_STATE = [(name, "<u8", (CAUSE_STATES,)) for name in ("count", "idle_ns")]
CPU_TOTAL = np.dtype(
    [
        *(("start_ns", "<u8"), ("end_ns", "<u8"), *_BY_STATE, ("last_tgid", "<u8")),
        *(("unplaced_ns", "<u8", (2,)), ("gap", "V56")),
    ]
)

# How long a thread ran, and struct run_time of running.bpf.h, where `who` is its number and above it its process.
RUN_TIME = np.dtype([("tid", "<u4"), ("pid", "<u4"), ("ns", "<u8"), ("kind", "<u8")])
RUN_SLOT = np.dtype([("who", "<u8"), ("ns", "<u8"), ("kind", "<u8"), ("gap", "V40")])

# struct cpu_state begins with the period that is still open.
CPU_STATE = np.dtype(
    [("period", IDLE_EXIT)]
    + [(name, "<u4") for name in ("phase", "hardirq", "softirq", "softirq_by_irq")]
    + [(name, "<u4") for name in ("raised_by_irq", "vector")]
    + [(name, "<u8") for name in ("timer_active", "looks_window_ns")]
    + [(name, "<u4") for name in ("looks_count", "looks_loaded", "looks_skipped", "looks_brisk")]
    + [("reviewed_ns", "<u8"), ("idled_ns", "<u8"), ("threaded", "<u4"), ("in_tid", "<u4")]
    + [(name, "<u8") for name in ("in_ns", "own_ns", "kernel_ns")]
    + [("is_own", "<u4"), ("unmarked", "<u4"), ("down_ns", "<u8"), ("gap", "V128")]
)

# struct stack_record: registers, as many as the machine has, the frames of an interpreter and the stack's bytes follow.
STACK_HEADER = np.dtype(
    [(name, "<u8") for name in ("at_ns", "ip", "sp", "code")]
    + [(name, "<u4") for name in ("tid", "tgid", "kind", "bytes")]
)

# How many words of frames there are, and these.
FRAMES_BYTES = 8 * (1 + 2 * (INTERPRETER_FRAMES + 1))

# What a table got since it was emptied, or a ring buffer ever: struct filled of filled.bpf.h, one for each Filling.
FILLED = np.dtype([(name, "<u8") for name in ("amount", "limit", "is_called")])

TABLES = (Filling.CAUSES, Filling.WOKEN)

SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
