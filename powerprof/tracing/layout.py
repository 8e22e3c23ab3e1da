"""The records that the BPF programs send, as numpy types: probes/bpf/idle_exit.h and stacks.bpf.h in Python."""

from __future__ import annotations

import enum

import numpy as np

COMM_BYTES = 16

IDLE_EXIT = np.dtype(
    [
        (name, "<u8")
        for name in (
            "enter_ns",
            "exit_ns",
            "next_ns",
            "timer_function",
            "work_function",
            "site_ip",
            "site_sp",
            "site_code",
            "waking_ns",
            "waker_timer_function",
            "waker_ip",
            "waker_sp",
            "waker_code",
        )
    ]
    + [
        (name, "<u4")
        for name in (
            "cpu",
            "state",
            "evidence",
            "irq",
            "flags",
            "next_tid",
            "next_tgid",
            "waker_tid",
            "waker_tgid",
            "waker_cpu",
            "waker_context",
            "waker_irq",
            "woken_tid",
            "sequence",
        )
    ]
    + [("next_comm", f"S{COMM_BYTES}"), ("waker_comm", f"S{COMM_BYTES}")]
)

NEWBORN_CODE = 2  # site_code of a thread that has not run yet

# struct cpu_state begins with the period that is still open.
CPU_STATE_BYTES = IDLE_EXIT.itemsize + 4 * 4 + 8 + 8 + 8 + 4 * 4
CPU_STATE_PHASE_OFFSET = IDLE_EXIT.itemsize

REGISTER_COUNT = 21  # x86-64 struct pt_regs: r15 … ss
REGISTER_IP = 16
REGISTER_SP = 19

STACK_HEADER = np.dtype(
    [(name, "<u8") for name in ("at_ns", "ip", "sp", "code")]
    + [(name, "<u4") for name in ("tid", "tgid", "kind", "bytes")]
    + [("registers", "<u8", (REGISTER_COUNT,))]
)


class Phase(enum.IntEnum):
    """Where a CPU is between two idle entries."""

    UNKNOWN = 0
    IDLE = 1
    LEFT = 2
    RUNNING = 3


class Evidence(enum.IntEnum):
    """What was first seen to end an idle period."""

    NONE = 0
    LOCAL_TIMER = 1
    DEVICE = 2
    RESCHEDULE = 3
    CALL_FUNCTION = 4
    IRQ_WORK = 5
    OTHER_VECTOR = 6
    NO_IPI = 7
    HRTIMER = 8
    SOFTIRQ = 9


class Flag(enum.IntFlag):
    """Flags of an idle exit."""

    TICK = 1
    NO_TASK = 2
    WAKER = 4
    TIMER_WHEEL = 8
    SITE = 16
    SITE_FRESH = 32
    WAKER_SITE = 64
    OPEN = 128


class WakerContext(enum.IntEnum):
    """In whose context a waking was done."""

    TASK = 0
    DEVICE = 1
    TIMER = 2
    SOFTIRQ = 3
    INTERRUPT = 4
    UNSEEN = 5


SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
