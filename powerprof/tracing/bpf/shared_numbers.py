# SPDX-License-Identifier: Apache-2.0
"""Numbers that programs in the kernel and their readers share, as the sources in probes/bpf have them.

Written by `make probes`, not by hand: change the sources.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

# idle_period.h
COMM_BYTES = 16
IDLE_LIFE = 0xFFF00000

# causes.h
CAUSE_STATES = 10  # CPUIDLE_STATE_MAX
CAUSE_HALF = 0x10000

# looks.bpf.h
CODE_NEWBORN = 2

# interpreter.bpf.h
INTERPRETER_FRAMES = 32

# busy.bpf.h
GROUP_SPAN = 64  # GROUP_CPUS: no more than the host has; CPU_GROUPS: groups of so many that hold all

# joins.bpf.h
GROWS_FAMILY = 1
GROWS_GROUP = 2

# functions.bpf.c
COOKIE_STEPPED = 0x10000

# offcpu.bpf.c
WHYS = 8

# syscalls.bpf.c
NAME_BYTES = 48
NUMBERS = 1024

# queries.bpf.c
COM_QUERY = 3
COM_STMT_PREPARE = 22
COM_PART = 1000  # of a statement that was counted when it began, or that another process executes
POSTGRESQL = 2  # of the layouts
PREPARING = 0x9E3779B97F4A7C15  # tells the making of a statement from its execution

# dispatch.bpf.h
COM_STMT_EXECUTE = 23
COM_EVENT = 1001  # no packet: an event of the server's own

# uses.bpf.h
SQUARED_NS_LOG = 8  # 256 ns: the square of 1,000 s is a u64

# whole.bpf.h
MOST_WALKS = 32  # of 4 kB: 130 kB
WALKED_AT_ONCE = 4  # pieces

# waitkinds.bpf.h
WAITS = 9

# activity.bpf.h
FASTPATH = 200  # a function is called by its number: no text, and no packet of MySQL's


class Shared(IntEnum):
    """What is read often and written seldom: enum shared_value of idle.bpf.c."""

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


class Count(IntEnum):
    """What is counted beside the sums, on each CPU: enum counter of idle.bpf.c."""

    LOST_EXITS = 0
    LOST_STACKS = 1
    LOADED = 2
    SLEEPS = 3
    UNSENT = 4
    UNCOUNTED = 5
    LOST_SAMPLES = 6
    UNJOINED = 7


class CpuPhase(IntEnum):
    """Where a CPU is between two idle entries: enum phase of idle_period.h."""

    UNKNOWN = 0
    IDLE = 1
    LEFT = 2
    RUNNING = 3


class WakeEvidence(IntEnum):
    """What was first seen to end an idle period: enum evidence of idle_period.h."""

    NONE = 0
    LOCAL_TIMER = 1  # the CPU's own timer interrupt
    DEVICE = 2  # irq_handler_entry: `irq` is its number
    RESCHEDULE = 3  # IPI
    CALL_FUNCTION = 4  # IPI, single or many: remote wake-ups mostly come this way
    IRQ_WORK = 5  # self-IPI
    OTHER_VECTOR = 6  # another traced vector: `irq` is its number
    NO_IPI = 7  # sched_wake_idle_without_ipi: the flag was set while the CPU polled or MWAITed
    HRTIMER = 8  # an hrtimer expired though no timer vector was traced (paravirtual clocks)
    SOFTIRQ = 9  # a softirq ran though no interrupt was traced: `irq` is its number


class Flag(IntFlag):
    """Flags of an idle exit: enum idle_flags of idle_period.h."""

    TICK = 1  # the scheduler tick ran
    NO_TASK = 2  # the CPU idled again without a switch to a task
    WAKER = 4  # the waker_* fields are known
    TIMER_WHEEL = 8  # timer_function comes from the timer wheel, not from an hrtimer
    SITE = 16  # site_* name the sleeper's user registers
    SITE_FRESH = 32  # site_code was hashed at the very switch-out that this wake-up ended
    WAKER_SITE = 64  # waker_ip and waker_sp are known
    OPEN = 128  # the CPU had not idled again when the window was read
    REMOTE = 256  # of a cause: the waker ran on another CPU
    RUNNABLE = 512  # the thread that ran had not slept: it was throttled, or moved from another CPU
    KERNEL = 1024  # the thread that ran is the kernel's
    WAKER_KERNEL = 2048  # so is the task that woke it
    POLLED = 4096  # the CPU polled: no interrupt ended that, but what an interrupt did may have


class WakerContext(IntEnum):
    """In whose context a waking was done: enum waker_context of idle_period.h."""

    TASK = 0
    DEVICE = 1
    TIMER = 2
    SOFTIRQ = 3
    INTERRUPT = 4
    UNSEEN = 5


class StackKind(IntEnum):
    """Whose stack a record has: enum stack_kind of looks.bpf.h."""

    SLEEPER = 0
    WAKER = 1
    REGISTERS = 2


class RunKind(IntEnum):
    """Whose a thread's running time is: enum run_kind of running.bpf.h."""

    OTHER = 0
    TARGET = 1
    KERNEL = 2


class FilledTable(IntEnum):
    """What fills while nobody reads, tables first: enum filling of filled.bpf.h."""

    CAUSES = 0
    WOKEN = 1
    EXITS = 2
    STACKS = 3


class PathCount(IntEnum):
    """What became of samples and page faults: enum path_counter of paths.bpf.h."""

    EVENTS = 0
    IDLE = 1
    TARGET = 2
    STACKS = 3
    LOST_STACKS = 4
    LOST_ROWS = 5


class RecordKind(IntEnum):
    """Which half of a path a record has: enum record_kind of paths.bpf.h."""

    USER = 0
    KERNEL = 1


class FunctionCount(IntEnum):
    """What became of hits: enum counter of functions.bpf.c."""

    HITS = 0
    UNMATCHED = 1
    TOO_DEEP = 2
    NO_ROOM = 3


class FunctionSum(IntEnum):
    """A function's sums, in this order: enum stat_field of functions.bpf.c."""

    CALLS = 0
    RETURNS = 1
    ABANDONED = 2
    UNFINISHED = 3
    WALL = 4
    CPU = 5
    SELF_WALL = 6
    SELF_CPU = 7
    CHILDREN = 8
    STEPPED_CHILDREN = 9


class OffCpuReason(IntEnum):
    """Why a thread left the CPU: enum why of offcpu.bpf.c."""

    INTERRUPTIBLE = 0
    UNINTERRUPTIBLE = 1
    KILLABLE = 2
    IDLE = 3
    OTHER = 4
    PREEMPTED = 5


class CallKind(IntEnum):
    """What a system call is to a file: enum kind of syscalls.bpf.c."""

    OTHER = 0
    READ = 1
    WRITE = 2
    SYNC = 3
    FUTEX = 4
    SUBMIT = 5


class StatementCount(IntEnum):
    """What became of packets: enum counter of queries.bpf.c."""

    DISPATCHES = 0
    NO_ROOM = 1
    UNREADABLE = 2
    CUT = 3
    ENDINGS = 4


class StatementWait(IntEnum):
    """What a thread that does not run waits for: enum wait of waitkinds.bpf.h."""

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
    """What became of moments: enum counter of moments.bpf.c."""

    EVENTS = 0
    NO_ROOM = 1
    UNREADABLE = 2
    CUT = 3


class Message(IntEnum):
    """What reports a statement; UNSURE: one of a client's: enum message of activity.bpf.h."""

    WHOLE = 0
    PARSE = 1
    BIND = 2
    EXECUTE = 3
    WORKER = 4
    UNSURE = 5
