/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is kept of an idle period: of a CPU, of the waking that ends it, and of the period when it is whole.
 *
 * Plain C, a part of idle_exit.h: the tests compile it natively, and hold it against the types that read it
 * (powerprof/tracing/idle_data.py).
 */
#define COMM_BYTES 16
#define CACHE_GAP_BYTES 128

enum phase { PHASE_UNKNOWN = 0, PHASE_IDLE = 1, PHASE_LEFT = 2, PHASE_RUNNING = 3 };

/* What was first seen to end the idle period. */
enum evidence {
    EVIDENCE_NONE = 0,
    EVIDENCE_LOCAL_TIMER = 1,      /* the CPU's own timer interrupt */
    EVIDENCE_DEVICE = 2,           /* irq_handler_entry: `irq` is its number */
    EVIDENCE_RESCHEDULE = 3,       /* IPI */
    EVIDENCE_CALL_FUNCTION = 4,    /* IPI, single or many: remote wake-ups mostly come this way */
    EVIDENCE_IRQ_WORK = 5,         /* self-IPI */
    EVIDENCE_OTHER_VECTOR = 6,     /* another traced vector: `irq` is its number */
    EVIDENCE_NO_IPI = 7,           /* sched_wake_idle_without_ipi: the flag was set while the CPU polled or MWAITed */
    EVIDENCE_HRTIMER = 8,          /* an hrtimer expired though no timer vector was traced (paravirtual clocks) */
    EVIDENCE_SOFTIRQ = 9,          /* a softirq ran though no interrupt was traced: `irq` is its number */
};

enum idle_flags {
    IDLE_TICK = 1,          /* the scheduler tick ran */
    IDLE_NO_TASK = 2,       /* the CPU idled again without a switch to a task */
    IDLE_WAKER = 4,         /* the waker_* fields are known */
    IDLE_TIMER_WHEEL = 8,   /* timer_function comes from the timer wheel, not from an hrtimer */
    IDLE_SITE = 16,         /* site_* name the sleeper's user registers */
    IDLE_SITE_FRESH = 32,   /* site_code was hashed at the very switch-out that this wake-up ended */
    IDLE_WAKER_SITE = 64,   /* waker_ip and waker_sp are known */
    IDLE_OPEN = 128,        /* the CPU had not idled again when the window was read */
    IDLE_REMOTE = 256,      /* of a cause: the waker ran on another CPU */
    IDLE_RUNNABLE = 512,    /* the thread that ran had not slept: it was throttled, or moved from another CPU */
    IDLE_KERNEL = 1024,     /* the thread that ran is the kernel's */
    IDLE_WAKER_KERNEL = 2048,   /* so is the task that woke it */
    IDLE_POLLED = 4096,     /* the CPU polled: no interrupt ended that, but what an interrupt did may have */
};

/* In the flags too: told from when the thread that ran began, so that a number which is used again is another thread's. */
#define IDLE_LIFE 0xfff00000U

/* Of task_struct's `flags` (include/linux/sched.h). */
#define PF_KTHREAD 0x00200000

/* In whose context the waking was done. */
enum waker_context {
    WAKER_TASK = 0, WAKER_DEVICE = 1, WAKER_TIMER = 2, WAKER_SOFTIRQ = 3, WAKER_INTERRUPT = 4, WAKER_UNSEEN = 5,
};

/* One waking, kept until its wakee runs; whole pairs of cache lines, for another CPU reads it. No clock: the switch counts say whether
 * the wakee has run since. */
struct waking {
    u64 timer_function;
    u64 ip;               /* the waker's user registers, 0 when unknown */
    u64 sp;
    u32 wakee_tid;
    u32 waker_tid;
    u32 waker_tgid;
    u32 waker_cpu;
    u32 context;          /* enum waker_context */
    u32 irq;              /* interrupt number (WAKER_DEVICE) or softirq number (WAKER_SOFTIRQ) */
    char waker_comm[COMM_BYTES];
    u64 code;             /* hash of the waker's call path, 0 when unknown */
    u64 switches;         /* how often the wakee had been switched out, of its own will or not */
    u32 on_cpu;           /* it was still on its way out: that switch may not be counted yet */
    u32 is_kernel;        /* the waker is a thread of the kernel's */
    u32 evidence;         /* what had been seen by then of the idle period in which an interrupt woke it … */
    u32 evidence_irq;
    u32 sequence;         /* … and which of its CPU's that was */
    u8 gap[28];
};

/* The record that leaves the kernel: one idle period. */
struct idle_exit {
    u64 enter_ns;
    u64 exit_ns;
    u64 next_ns;          /* when the CPU idled again; 0 with IDLE_OPEN */
    u64 timer_function;   /* kernel address of the first timer callback that is not the tick */
    u64 work_function;    /* first work item that a kworker ran because of it */
    u64 site_ip;          /* user registers of the thread that ran */
    u64 site_sp;
    u64 site_code;
    u64 waking_ns;        /* of saved runs; 0 */
    u64 waker_timer_function;
    u64 waker_ip;
    u64 waker_sp;
    u64 waker_code;
    u32 cpu;
    u32 state;            /* cpuidle state index */
    u32 evidence;
    u32 irq;
    u32 flags;
    u32 next_tid;
    u32 next_tgid;
    u32 waker_tid;
    u32 waker_tgid;
    u32 waker_cpu;
    u32 waker_context;
    u32 waker_irq;
    u32 woken_tid;        /* first task that an interrupt on this CPU woke */
    u32 sequence;         /* counts the CPU's periods: a gap is a loss */
    char next_comm[COMM_BYTES];
    char waker_comm[COMM_BYTES];
};

/* One CPU's state. Written by its CPU at every event, and now and then by another that wakes it. */
struct cpu_state {
    struct idle_exit period;
    u32 phase;
    u32 hardirq;             /* 1 + number of the device interrupt being handled, else 0 */
    u32 softirq;             /* 1 + number of the softirq being handled, else 0 */
    u32 softirq_by_irq;      /* an interrupt raised that softirq */
    u32 raised_by_irq;       /* softirqs that interrupts raised and that have not run yet: a bit each */
    u32 vector;              /* in an interrupt without a handler of its own (IPIs), where the kernel's count is out of reach */
    u64 timer_active;        /* callback of the timer being run, else 0 */
    u64 meter_start_ns;     /* load meter of looks at target threads */
    u32 meter_captures;
    u32 was_loaded;        /* the window before was above the limit */
    u32 captures_skipped;
    u32 was_brisk;         /* … above the limit from which on not every call path is read */
    u64 busy_checked_ns;         /* when this CPU last looked whether all CPUs are busy */
    u64 idled_ns;            /* since the load meter last looked */
    u32 threaded;            /* 1 + number of the device interrupt whose handler asked for its thread to be woken, else 0 */
    u32 in_tid;              /* the thread that runs here, where its switch was seen */
    u64 in_ns;               /* what it had run when it came */
    u64 own_ns;              /* what the period's thread has run since, until it sleeps */
    u64 kernel_ns;           /* from the exit until a thread ran, or until the CPU idled again */
    u32 is_own;              /* it has not slept yet */
    u32 first_not_busy;            /* the first group of CPUs that was not known to be busy (busy_cpus.bpf.h) */
    u64 down_ns;             /* when this CPU was last seen going offline, 0: not since it idled */
    /* No two CPUs' states share a cache line, nor a pair of lines that are fetched together: the table begins
     * anywhere in a line, and the gap is a pair of lines. */
    u8 gap[CACHE_GAP_BYTES];
};
