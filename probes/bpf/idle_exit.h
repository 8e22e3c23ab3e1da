/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The idle-exit state machine: what ended each idle period of a CPU, and who ran because of it.
 *
 * Question: why did this CPU leave idle, and which thread ran?
 * It is plain C without helpers, so that the very code that runs in the kernel is compiled natively by the tests
 * and fed with recorded event streams.
 *
 * One period runs from one idle entry to the next. Everything seen on the CPU between the entry and the first
 * switch to a task (or the next entry) is evidence about its end, whether it comes before the exit event (HLT:
 * handlers run inside the halt) or after it (MWAIT entered with interrupts off): no order is assumed.
 * The first piece of evidence names the mechanism. A period is reported when the CPU idles again, so that the
 * running time that followed is part of it. A CPU's first period is cut by the start and never reported.
 */
#ifndef POWERPROF_IDLE_EXIT_H
#define POWERPROF_IDLE_EXIT_H

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
    u64 looks_window_ns;     /* load meter of looks at target threads */
    u32 looks_count;
    u32 looks_loaded;        /* the window before was above the limit */
    u32 looks_skipped;
    u32 looks_brisk;         /* … above the limit from which on not every call path is read */
    u64 reviewed_ns;         /* when this CPU last looked whether all CPUs are busy */
    u64 idled_ns;            /* since the load meter last looked */
    u32 threaded;            /* 1 + number of the device interrupt whose handler asked for its thread to be woken, else 0 */
    u32 in_tid;              /* the thread that runs here, where its switch was seen */
    u64 in_ns;               /* what it had run when it came */
    u64 own_ns;              /* what the period's thread has run since, until it sleeps */
    u64 kernel_ns;           /* from the exit until a thread ran, or until the CPU idled again */
    u32 is_own;              /* it has not slept yet */
    u32 unmarked;            /* the first group of CPUs that was not known to be busy (busy.bpf.h) */
    u64 down_ns;             /* when this CPU was last seen going offline, 0: not since it idled */
    /* No two CPUs' states share a cache line, nor a pair of lines that are fetched together: the table begins
     * anywhere in a line, and the gap is a pair of lines. */
    u8 gap[CACHE_GAP_BYTES];
};

static __attribute__((always_inline)) inline int is_open(struct cpu_state *cpu)
{
    return cpu->phase == PHASE_IDLE || cpu->phase == PHASE_LEFT;
}

/* What was seen so far did not end the period. */
static __attribute__((always_inline)) inline void idle_forget(struct idle_exit *period)
{
    period->evidence = EVIDENCE_NONE;
    period->irq = 0;
    period->timer_function = 0;
    period->woken_tid = 0;
    period->flags &= ~(IDLE_TICK | IDLE_TIMER_WHEEL);
}

/* The CPU goes idle. Returns 1 when the period before is whole: the caller then takes a copy of cpu->period
 * before idle_restart(). */
static __attribute__((always_inline)) inline int idle_enter(struct cpu_state *cpu, u64 now)
{
    int whole = cpu->phase == PHASE_LEFT || cpu->phase == PHASE_RUNNING;

    if (cpu->phase == PHASE_LEFT) {
        cpu->period.flags |= IDLE_NO_TASK;
        cpu->own_ns = 0;
        cpu->kernel_ns = now - cpu->period.exit_ns;
        /* Nobody set the flag that ends a poll: it came to its own end, whatever interrupts there were. */
        if (cpu->period.flags & IDLE_POLLED && cpu->period.evidence != EVIDENCE_NO_IPI)
            idle_forget(&cpu->period);
    }
    cpu->is_own = 0;
    /* A CPU that was offline meanwhile ran until it went. */
    cpu->period.next_ns = cpu->down_ns > cpu->period.exit_ns ? cpu->down_ns : now;
    cpu->down_ns = 0;
    return whole;
}

/* Begin the next period; `flags` are IDLE_POLLED or none. */
static __attribute__((always_inline)) inline void idle_restart(struct cpu_state *cpu, u64 now, u32 cpu_number, u32 state, u32 flags)
{
    struct idle_exit *period = &cpu->period;
    u32 sequence = period->sequence + 1;

    __builtin_memset(period, 0, sizeof(*period));
    period->enter_ns = now;
    period->cpu = cpu_number;
    period->state = state;
    period->sequence = sequence;
    period->flags = flags;
    cpu->phase = PHASE_IDLE;
    /* The idle loop is no handler: whatever was not seen to end has ended. */
    cpu->hardirq = 0;
    cpu->softirq = 0;
    cpu->vector = 0;
    cpu->threaded = 0;
    cpu->timer_active = 0;
}

static __attribute__((always_inline)) inline void idle_leave(struct cpu_state *cpu, u64 now)
{
    if (cpu->phase != PHASE_IDLE)
        return;
    cpu->period.exit_ns = now;
    cpu->idled_ns += now - cpu->period.enter_ns;
    cpu->phase = PHASE_LEFT;
}

/* A poll goes on after an interrupt: the next one may be what ends it, and forgets the one before. Softirqs and hrtimers are part
 * of the interrupt that was seen already. */
static __attribute__((always_inline)) inline int is_outlived(struct idle_exit *period, u32 by)
{
    return period->flags & IDLE_POLLED && period->evidence != EVIDENCE_NO_IPI && by != EVIDENCE_HRTIMER && by != EVIDENCE_SOFTIRQ;
}

/* The first evidence wins: what comes later is a consequence, or came too late to matter. Polls are the exception. */
static __attribute__((always_inline)) inline void idle_evidence(struct cpu_state *cpu, u32 evidence, u32 irq)
{
    if (!is_open(cpu))
        return;
    if (cpu->period.evidence) {
        if (!is_outlived(&cpu->period, evidence))
            return;
        idle_forget(&cpu->period);
    }
    cpu->period.evidence = evidence;
    cpu->period.irq = irq;
}

/* What the device interrupt that is being handled really is. On arm64 the CPU's timer and its IPIs are interrupts
 * with numbers like any device's, and so are x86's timers beside the local one: an expiring hrtimer, or the IPI's own
 * tracepoint, tells them apart from within the handler. */
static __attribute__((always_inline)) inline void idle_refine(struct cpu_state *cpu, u32 evidence, u32 irq)
{
    if (!is_open(cpu))
        return;
    if (cpu->period.evidence == EVIDENCE_DEVICE && cpu->hardirq && cpu->hardirq - 1 == cpu->period.irq) {
        cpu->period.evidence = evidence;
        cpu->period.irq = irq;
        return;
    }
    idle_evidence(cpu, evidence, irq);
}

/* A task is woken from this CPU: everything about the waking that the CPU's state tells. Its own fields (ip, sp, code,
 * waker_comm) are the caller's. */
static __attribute__((always_inline)) inline void idle_waking(struct cpu_state *cpu, struct waking *waking, u32 number, u32 wakee_tid,
                                                              u64 waker, u32 context, u32 irq)
{
    waking->wakee_tid = wakee_tid;
    waking->waker_tid = (u32)waker;
    waking->waker_tgid = waker >> 32;
    waking->waker_cpu = number;
    waking->context = context;
    waking->irq = irq;
    waking->timer_function = cpu->timer_active;
    waking->ip = 0;
    waking->evidence = cpu->period.evidence;
    waking->evidence_irq = cpu->period.irq;
    waking->sequence = cpu->period.sequence;
    if (is_open(cpu) && !cpu->period.woken_tid)
        cpu->period.woken_tid = wakee_tid;
}

/* The state of a thread that is switched out for the last time (include/linux/sched.h, since Linux 4.14). */
#define STATE_DEAD 0x80

/* Whether a switch-out puts the thread to sleep. A thread that is preempted stays on the run queue, whatever state it
 * has set: between set_current_state() and schedule() it is no sleeper yet, and no waking follows. `state` is the
 * task's own: one that had a signal pending was set running again, and nothing wakes one that is dead. */
static __attribute__((always_inline)) inline int is_sleep(int preempted, u32 state)
{
    return !preempted && state && !(state & STATE_DEAD);
}

/* Whether a waking is what made the thread run now: it has not been switched out since. One that was woken on its way out may
 * have been counted once more. */
static __attribute__((always_inline)) inline int is_waking_of(struct waking *waking, u32 tid, u64 switches)
{
    return waking && waking->wakee_tid == tid &&
           (waking->switches == switches || (waking->on_cpu && waking->switches + 1 == switches));
}

/* The CPU goes on from idle to a task. */
static __attribute__((always_inline)) inline void idle_run(struct cpu_state *cpu, u64 now, u32 tid, u32 tgid)
{
    idle_leave(cpu, now);   /* where the exit event was not seen: the switch is the latest it can have been */
    cpu->phase = PHASE_RUNNING;
    cpu->period.next_tid = tid;
    cpu->period.next_tgid = tgid;
    cpu->own_ns = 0;
    cpu->is_own = 1;
    cpu->kernel_ns = now - cpu->period.exit_ns;
}

/* A thread that ran for so long leaves the CPU. Of the thread that the period was ended for, all until it sleeps is because of that. */
static __attribute__((always_inline)) inline void idle_ran(struct cpu_state *cpu, u32 tid, u64 ns, int preempted)
{
    if (!cpu->is_own || cpu->period.next_tid != tid)
        return;
    cpu->own_ns += ns;
    cpu->is_own = preempted;
}

/* What ended a poll is what set the flag: the interrupt that woke the thread that now runs, or another CPU, which sent no interrupt
 * where the poll's own did not come. Of other threads the last interrupt is the best that is known. */
static __attribute__((always_inline)) inline void idle_poll_ended(struct idle_exit *period, struct waking *waking)
{
    if (waking->waker_cpu == period->cpu) {
        if (waking->sequence != period->sequence || waking->evidence == period->evidence)
            return;
        period->evidence = waking->evidence;
        period->irq = waking->evidence_irq;
    } else if (period->evidence != EVIDENCE_RESCHEDULE && period->evidence != EVIDENCE_CALL_FUNCTION) {
        idle_forget(period);
        period->evidence = EVIDENCE_NO_IPI;
    }
}

/* This CPU is being taken offline; called again until it is. */
static __attribute__((always_inline)) inline void idle_down(struct cpu_state *cpu, u64 now)
{
    cpu->down_ns = now;
}

/* The CPU switches from the idle task to a task that had been switched out so often; `waking` may be null. Returns 1 if this
 * ended an idle period. A task that nothing woke since it last ran was runnable all the time. */
static __attribute__((always_inline)) inline int idle_switch(struct cpu_state *cpu, u64 now, u32 tid, u32 tgid, u64 switches,
                                                             struct waking *waking)
{
    struct idle_exit *period = &cpu->period;

    if (!is_open(cpu))
        return 0;
    idle_run(cpu, now, tid, tgid);
    if (is_waking_of(waking, tid, switches)) {
        if (period->flags & IDLE_POLLED)
            idle_poll_ended(period, waking);
        period->flags |= IDLE_WAKER;
        if (waking->is_kernel && waking->context == WAKER_TASK)
            period->flags |= IDLE_WAKER_KERNEL;
        period->waker_timer_function = waking->timer_function;
        period->waker_tid = waking->waker_tid;
        period->waker_tgid = waking->waker_tgid;
        period->waker_cpu = waking->waker_cpu;
        period->waker_context = waking->context;
        period->waker_irq = waking->irq;
        if (waking->ip) {
            period->flags |= IDLE_WAKER_SITE;
            period->waker_ip = waking->ip;
            period->waker_sp = waking->sp;
            period->waker_code = waking->code;
        }
        __builtin_memcpy(period->waker_comm, waking->waker_comm, COMM_BYTES);
    } else {
        period->flags |= IDLE_RUNNABLE;
    }
    return 1;
}

#endif
