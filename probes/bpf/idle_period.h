/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Data of an idle period: the state of a CPU, the waking that ends the period, and the complete period.
 *
 * A part of idle_exit.h, in plain C. The tests compile it natively and compare its layout with the types in
 * powerprof/tracing/idle_data.py.
 */
#define COMM_BYTES 16
#define CACHE_GAP_BYTES 128

enum phase { PHASE_UNKNOWN = 0, PHASE_IDLE = 1, PHASE_LEFT = 2, PHASE_RUNNING = 3 };

/* The first event that was seen to end the idle period. */
enum evidence {
    EVIDENCE_NONE = 0,
    EVIDENCE_LOCAL_TIMER = 1,      /* the CPU's own timer interrupt */
    EVIDENCE_DEVICE = 2,           /* irq_handler_entry: `irq` is its number */
    EVIDENCE_RESCHEDULE = 3,       /* IPI */
    EVIDENCE_CALL_FUNCTION = 4,    /* IPI, single or many: most remote wake-ups use it */
    EVIDENCE_IRQ_WORK = 5,         /* self-IPI */
    EVIDENCE_OTHER_VECTOR = 6,     /* another traced vector: `irq` is its number */
    EVIDENCE_NO_IPI = 7,           /* sched_wake_idle_without_ipi: the CPU polled or was in MWAIT */
    EVIDENCE_HRTIMER = 8,          /* an hrtimer expired and no timer vector was traced (paravirtual clocks) */
    EVIDENCE_SOFTIRQ = 9,          /* a softirq ran and no interrupt was traced: `irq` is its number */
};

enum idle_flags {
    IDLE_TICK = 1,          /* the scheduler tick ran */
    IDLE_NO_TASK = 2,       /* the CPU idled again without a switch to a task */
    IDLE_WAKER = 4,         /* the waker_* fields are known */
    IDLE_TIMER_WHEEL = 8,   /* timer_function comes from the timer wheel, not from an hrtimer */
    IDLE_SITE = 16,         /* site_* are the sleeper's user registers */
    IDLE_SITE_FRESH = 32,   /* site_code was hashed at the switch-out that this wake-up ended */
    IDLE_WAKER_SITE = 64,   /* waker_ip and waker_sp are known */
    IDLE_OPEN = 128,        /* the CPU had not idled again when the window was read */
    IDLE_REMOTE = 256,      /* of a cause: the waker ran on another CPU */
    IDLE_RUNNABLE = 512,    /* the thread that ran was not asleep: it was throttled, or moved from another CPU */
    IDLE_KERNEL = 1024,     /* the thread that ran is a kernel thread */
    IDLE_WAKER_KERNEL = 2048,   /* the waker is a kernel thread */
    IDLE_POLLED = 4096,     /* the CPU polled: an interrupt does not end a poll, but its handler can */
};

/* Bits of the flags derived from the start time of the thread that ran, so that two threads with the same id differ. */
#define IDLE_LIFE 0xfff00000U

/* Of task_struct's `flags` (include/linux/sched.h). */
#define PF_KTHREAD 0x00200000

/* The context of the waking. */
enum waker_context {
    WAKER_TASK = 0, WAKER_DEVICE = 1, WAKER_TIMER = 2, WAKER_SOFTIRQ = 3, WAKER_INTERRUPT = 4, WAKER_UNSEEN = 5,
};

/* One waking, kept until the woken thread runs. It fills whole pairs of cache lines, because another CPU reads it. It
 * has no time: the number of switches shows whether the thread has run since. */
struct waking {
    u64 timer_function;
    u64 ip;               /* the waker's user registers, 0 if unknown */
    u64 sp;
    u32 wakee_tid;
    u32 waker_tid;
    u32 waker_tgid;
    u32 waker_cpu;
    u32 context;          /* enum waker_context */
    u32 irq;              /* interrupt number (WAKER_DEVICE) or softirq number (WAKER_SOFTIRQ) */
    char waker_comm[COMM_BYTES];
    u64 code;             /* hash of the waker's call path, 0 if unknown */
    u64 switches;         /* voluntary and involuntary switch-outs of the woken thread */
    u32 on_cpu;           /* the thread was still switching out: that switch may not be counted yet */
    u32 is_kernel;        /* the waker is a kernel thread */
    u32 evidence;         /* evidence for the idle period so far, if an interrupt woke the thread */
    u32 evidence_irq;
    u32 sequence;         /* number of that period on its CPU */
    u8 gap[28];
};

/* The record of one idle period, sent to user space. */
struct idle_exit {
    u64 enter_ns;
    u64 exit_ns;
    u64 next_ns;          /* time of the next idle entry; 0 with IDLE_OPEN */
    u64 timer_function;   /* kernel address of the first timer callback other than the tick */
    u64 work_function;    /* first work item that a kworker ran in the period */
    u64 site_ip;          /* user registers of the thread that ran */
    u64 site_sp;
    u64 site_code;
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
    u32 sequence;         /* counts the periods of the CPU: a gap is a loss */
    char next_comm[COMM_BYTES];
    char waker_comm[COMM_BYTES];
};

/* The state of one CPU. The CPU writes it at every event. A CPU that wakes it writes it rarely. */
struct cpu_state {
    struct idle_exit period;
    u32 phase;
    u32 hardirq;             /* 1 + number of the device interrupt being handled, else 0 */
    u32 softirq;             /* 1 + number of the softirq being handled, else 0 */
    u32 softirq_by_irq;      /* an interrupt raised that softirq */
    u32 raised_by_irq;       /* pending softirqs that interrupts raised, one bit each */
    u32 vector;              /* in an interrupt without a traced handler (IPIs), if the kernel's count is unknown */
    u64 timer_active;        /* callback of the running timer, else 0 */
    u64 meter_start_ns;      /* load meter: start of the present tenth of a second */
    u32 meter_captures;
    u32 was_loaded;          /* the last tenth of a second was above the limit */
    u32 captures_skipped;
    u32 was_brisk;           /* it was above BRISK_PER_100MS (threads.bpf.h) */
    u64 busy_checked_ns;     /* time of this CPU's last check whether all CPUs are busy */
    u64 idled_ns;            /* idle time since the load meter's last reading */
    u32 threaded_irq;        /* 1 + number of the device interrupt with a handler that requested its thread, else 0 */
    u32 running_tid;         /* the running thread, if its switch-in was seen */
    u64 switch_in_ns;        /* its run time at the switch-in */
    u64 own_ns;              /* run time of the period's thread until it sleeps */
    u64 kernel_ns;           /* time from the exit until a thread ran or the CPU idled again */
    u32 is_task_awake;       /* the period's thread has not slept yet */
    u32 first_not_busy;      /* the first group of CPUs that is not marked busy (busy_cpus.bpf.h) */
    u64 offline_ns;          /* time of the last event of this CPU going offline, 0: idled since then */
    /* The states of two CPUs never share a cache line or a prefetched pair of lines. The table may begin anywhere in a
     * line, so the gap is a whole pair. */
    u8 gap[CACHE_GAP_BYTES];
};
