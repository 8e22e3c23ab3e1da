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
};

/* In whose context the waking was done. */
enum waker_context {
    WAKER_TASK = 0, WAKER_DEVICE = 1, WAKER_TIMER = 2, WAKER_SOFTIRQ = 3, WAKER_INTERRUPT = 4, WAKER_UNSEEN = 5,
};

/* One waking, kept until its wakee runs. */
struct waking {
    u64 at_ns;
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
    u32 unused;
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
    u64 waking_ns;
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
    u32 unused;
    /* No two CPUs' states share a cache line, nor a pair of lines that are fetched together: the table begins
     * anywhere in a line, and the gap is a pair of lines. */
    u8 gap[CACHE_GAP_BYTES];
};

static __attribute__((always_inline)) inline int is_open(struct cpu_state *cpu)
{
    return cpu->phase == PHASE_IDLE || cpu->phase == PHASE_LEFT;
}

/* The CPU goes idle. Returns 1 when the period before is whole: the caller then takes a copy of cpu->period
 * before idle_restart(). */
static __attribute__((always_inline)) inline int idle_enter(struct cpu_state *cpu, u64 now)
{
    int whole = cpu->phase == PHASE_LEFT || cpu->phase == PHASE_RUNNING;

    if (cpu->phase == PHASE_LEFT)
        cpu->period.flags |= IDLE_NO_TASK;
    cpu->period.next_ns = now;
    return whole;
}

/* Begin the next period. */
static __attribute__((always_inline)) inline void idle_restart(struct cpu_state *cpu, u64 now, u32 cpu_number, u32 state)
{
    struct idle_exit *period = &cpu->period;
    u32 sequence = period->sequence + 1;

    __builtin_memset(period, 0, sizeof(*period));
    period->enter_ns = now;
    period->cpu = cpu_number;
    period->state = state;
    period->sequence = sequence;
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

/* The first evidence wins: what comes later is a consequence, or came too late to matter. */
static __attribute__((always_inline)) inline void idle_evidence(struct cpu_state *cpu, u32 evidence, u32 irq)
{
    if (!is_open(cpu) || cpu->period.evidence)
        return;
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

static __attribute__((always_inline)) inline void idle_hardirq(struct cpu_state *cpu, u32 irq)
{
    cpu->hardirq = irq + 1;
    cpu->threaded = 0;
    idle_evidence(cpu, EVIDENCE_DEVICE, irq);
}

/* What a handler returns that has its thread woken: right behind it, still in the interrupt. */
#define IRQ_WAKES_THREAD 2

static __attribute__((always_inline)) inline void idle_hardirq_end(struct cpu_state *cpu, u32 returned)
{
    cpu->threaded = returned & IRQ_WAKES_THREAD ? cpu->hardirq : 0;
    cpu->hardirq = 0;
}

/* A softirq is raised. What an interrupt raised is the interrupt's, wherever it runs: on the way out of it, or where the task that
 * it interrupted enables softirqs again. A softirq that raises another one passes on whose it is. */
static __attribute__((always_inline)) inline void idle_raise(struct cpu_state *cpu, u32 number, int in_interrupt)
{
    if (in_interrupt || is_open(cpu) || (cpu->softirq && cpu->softirq_by_irq))
        cpu->raised_by_irq |= 1U << (number & 31);
}

static __attribute__((always_inline)) inline void idle_softirq(struct cpu_state *cpu, u32 number)
{
    u32 bit = 1U << (number & 31);

    cpu->threaded = 0;
    cpu->softirq = number + 1;
    cpu->softirq_by_irq = (cpu->raised_by_irq & bit) != 0;
    cpu->raised_by_irq &= ~bit;
    idle_evidence(cpu, EVIDENCE_SOFTIRQ, number);
}

static __attribute__((always_inline)) inline void idle_softirq_end(struct cpu_state *cpu)
{
    cpu->softirq = 0;
}

static __attribute__((always_inline)) inline void idle_timer_end(struct cpu_state *cpu)
{
    cpu->timer_active = 0;
}

/* A timer callback starts. The tick is only a flag: what else expires in the same interrupt is the better name. */
static __attribute__((always_inline)) inline void idle_timer(struct cpu_state *cpu, u64 function, int is_tick, int is_wheel)
{
    cpu->timer_active = function;
    if (!is_open(cpu))
        return;
    if (!is_wheel)
        idle_refine(cpu, cpu->period.evidence == EVIDENCE_DEVICE ? EVIDENCE_LOCAL_TIMER : EVIDENCE_HRTIMER, 0);
    if (is_tick) {
        cpu->period.flags |= IDLE_TICK;
    } else if (!cpu->period.timer_function) {
        cpu->period.timer_function = function;
        if (is_wheel)
            cpu->period.flags |= IDLE_TIMER_WHEEL;
    }
}

/* A task is woken from this CPU; says in whose context. `in_interrupt`: the kernel counts itself inside of one, whether a
 * tracepoint shows it or not: threaded handlers are woken behind irq_handler_exit, irq_work has no end, some vectors have
 * no tracepoint. */
static __attribute__((always_inline)) inline u32 idle_context(struct cpu_state *cpu, u32 *irq, int in_interrupt)
{
    *irq = 0;
    if (cpu->timer_active)
        return WAKER_TIMER;
    if (cpu->hardirq) {
        *irq = cpu->hardirq - 1;
        return WAKER_DEVICE;
    }
    if (cpu->threaded) {
        *irq = cpu->threaded - 1;
        cpu->threaded = 0;
        return WAKER_DEVICE;
    }
    if (in_interrupt)
        return WAKER_INTERRUPT;
    if (cpu->softirq && (is_open(cpu) || cpu->softirq_by_irq)) {
        *irq = cpu->softirq - 1;
        return WAKER_SOFTIRQ;
    }
    /* `current` is the idle task, so the waker is an interrupt that no tracepoint shows. */
    return is_open(cpu) ? WAKER_INTERRUPT : WAKER_TASK;
}

/* A task is woken from this CPU: everything about the waking that the CPU's state tells. Its own fields (ip, sp, code,
 * waker_comm) are the caller's. */
static __attribute__((always_inline)) inline void idle_waking(struct cpu_state *cpu, struct waking *waking, u64 now, u32 number,
                                                              u32 wakee_tid, u64 waker, u32 context, u32 irq)
{
    waking->at_ns = now;
    waking->wakee_tid = wakee_tid;
    waking->waker_tid = (u32)waker;
    waking->waker_tgid = waker >> 32;
    waking->waker_cpu = number;
    waking->context = context;
    waking->irq = irq;
    waking->timer_function = cpu->timer_active;
    waking->ip = 0;
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
        period->flags |= IDLE_WAKER;
        period->waking_ns = waking->at_ns;
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
