/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sum idle exits by cause: one entry per distinct cause, however often it occurs.
 *
 * Question: how many idle exits had this evidence, thread, site and waker, how long did the CPUs run because of them,
 * and do they occur regularly?
 *
 * It is plain C without BPF helpers. The tests compile it natively and compare it with the same sums in Python. A key
 * holds evidence only; powerprof/attribution/ judges it.
 */
#ifndef POWERPROF_CAUSES_H
#define POWERPROF_CAUSES_H

#define CAUSE_STATES 10   /* CPUIDLE_STATE_MAX */
/* A flag in a key: the half of the double buffer that holds the entry. The reader switches to the other half, and then
 * empties this one when no program can still add to it. */
#define CAUSE_HALF 0x10000
#define CAUSE_FLAGS (IDLE_TICK | IDLE_NO_TASK | IDLE_WAKER | IDLE_TIMER_WHEEL | IDLE_SITE | IDLE_WAKER_SITE | \
                     IDLE_RUNNABLE | IDLE_KERNEL | IDLE_WAKER_KERNEL | IDLE_LIFE)

struct cause_key {
    u64 timer_function;
    u64 work_function;
    u64 site_ip;
    u64 site_sp;
    u64 site_code;
    u64 waker_timer_function;
    u64 waker_ip;
    u64 waker_sp;
    u64 waker_code;
    u32 evidence;
    u32 irq;
    u32 flags;            /* enum idle_flags */
    u32 next_tid;
    u32 next_tgid;
    u32 waker_tid;
    u32 waker_tgid;
    u32 waker_context;
    u32 waker_irq;
    u32 woken_tid;
};

struct cause_sum {
    u64 count;
    u64 running_ns;       /* from leaving idle until the CPUs idled again */
    u64 idle_ns;          /* duration of the idle periods */
    u64 own_ns;           /* part of running_ns: run time of the threads that the periods ended for, until they slept */
    u64 kernel_ns;        /* part of running_ns: kernel time until those threads ran, or until the next idle entry */
    u64 last_ns;          /* time of the latest exit */
    u64 period_ns;        /* the interval that most intervals equal, or twice or three times it */
    u64 fitting_ns;       /* sum of the intervals that fit it */
    u32 fitting_gaps;
    u32 fitting_periods;
    u32 gaps;             /* all intervals */
    u32 votes;
    u32 states[CAUSE_STATES];
    char next_comm[COMM_BYTES];
    char waker_comm[COMM_BYTES];
};

/* Exits of one CPU in its window, by idle state. Padded to whole pairs of cache lines, because the CPU writes it at
 * each exit. */
struct cpu_total {
    u64 start_ns;         /* edges of the window; the reader sets them while it keeps the CPU awake; 0: not yet */
    u64 end_ns;
    u64 count[CAUSE_STATES];
    u64 idle_ns[CAUSE_STATES];
    u64 last_tgid;        /* process of the thread that the last exit was for */
    u64 unplaced_ns[2];   /* run time of threads without a slot (switch.bpf.h): other threads, target threads */
    u8 gap[56];
};

/* The reader handles the period that is open at the end of the window, because it completes too late here. */
static __always_inline int is_in_window(struct cpu_total *total, struct idle_exit *period)
{
    return total->start_ns && period->exit_ns >= total->start_ns &&
           (!total->end_ns || period->next_ns <= total->end_ns);
}

/* Whether the run time on this CPU counts now. */
static __always_inline int is_window_open_on(struct cpu_total *total)
{
    return total->start_ns && !total->end_ns;
}

static __always_inline void fill_cause_key(struct idle_exit *period, struct cause_key *key)
{
    __builtin_memset(key, 0, sizeof(*key));
    key->timer_function = period->timer_function;
    key->work_function = period->work_function;
    key->evidence = period->evidence;
    key->irq = period->irq;
    /* Without evidence and without a thread, the idle state separates a poll that reached its limit from an unknown
     * cause. */
    if (period->evidence == EVIDENCE_NONE && period->flags & IDLE_NO_TASK)
        key->irq = period->state;
    key->flags = period->flags & CAUSE_FLAGS;
    key->next_tid = period->next_tid;
    key->next_tgid = period->next_tgid;
    if (!period->next_tid)
        key->woken_tid = period->woken_tid;
    if (period->flags & IDLE_SITE) {
        key->site_ip = period->site_ip;
        key->site_sp = period->site_sp;
        key->site_code = period->site_code;
    }
    if (!(period->flags & IDLE_WAKER))
        return;
    if (period->waker_cpu != period->cpu)
        key->flags |= IDLE_REMOTE;
    key->waker_context = period->waker_context;
    key->waker_irq = period->waker_irq;
    key->waker_timer_function = period->waker_timer_function;
    /* If an interrupt is the waker, the interrupted task is unrelated. */
    if (period->waker_context == WAKER_TASK) {
        key->waker_tid = period->waker_tid;
        key->waker_tgid = period->waker_tgid;
        if (period->flags & IDLE_WAKER_SITE) {
            key->waker_ip = period->waker_ip;
            key->waker_sp = period->waker_sp;
            key->waker_code = period->waker_code;
        }
    }
}

/* The number of periods in an interval: 1 to 3, or 0 if it differs by more than a tenth of a period. */
static __always_inline u32 count_periods(u64 gap, u64 period)
{
    u64 tenth = period / 10;

    if (gap + tenth >= period && gap <= period + tenth)
        return 1;
    if (gap + tenth >= 2 * period && gap <= 2 * period + tenth)
        return 2;
    if (gap + tenth >= 3 * period && gap <= 3 * period + tenth)
        return 3;
    return 0;
}

/* Add an interval. The candidate period is chosen by majority vote: an interval that fits votes for it, others vote
 * against it. If no votes remain, the next interval becomes the candidate. */
static __always_inline void add_cause_interval(struct cause_sum *sum, u64 at_ns)
{
    u64 gap;
    u32 periods;

    if (at_ns <= sum->last_ns)
        return;   /* another CPU ended this period first */
    gap = at_ns - sum->last_ns;
    sum->last_ns = at_ns;
    if (gap == at_ns)
        return;   /* the first exit */
    sum->gaps++;
    periods = sum->period_ns ? count_periods(gap, sum->period_ns) : 0;
    if (periods) {
        sum->votes++;
        sum->fitting_gaps++;
        sum->fitting_periods += periods;
        sum->fitting_ns += gap;
        sum->period_ns = sum->fitting_ns / sum->fitting_periods;
        return;
    }
    if (sum->votes) {
        sum->votes--;
        return;
    }
    sum->period_ns = gap;
    sum->votes = 1;
    sum->fitting_gaps = 1;
    sum->fitting_periods = 1;
    sum->fitting_ns = gap;
}

static __always_inline void add_exit_to_cause(struct cause_sum *sum, struct idle_exit *period)
{
    u32 state = period->state < CAUSE_STATES ? period->state : CAUSE_STATES - 1;

    /* Several CPUs may add to one entry (the tick is one cause on all CPUs). The interval of such an entry has no
     * meaning. */
    __sync_fetch_and_add(&sum->count, 1);
    if (period->next_ns > period->exit_ns)
        __sync_fetch_and_add(&sum->running_ns, period->next_ns - period->exit_ns);
    __sync_fetch_and_add(&sum->idle_ns, period->exit_ns - period->enter_ns);
    __sync_fetch_and_add(&sum->states[state], 1);
    /* Keep the latest name: a thread that executes another program changes it. */
    __builtin_memcpy(sum->next_comm, period->next_comm, COMM_BYTES);
    if (period->flags & IDLE_WAKER && period->waker_context == WAKER_TASK)
        __builtin_memcpy(sum->waker_comm, period->waker_comm, COMM_BYTES);
    add_cause_interval(sum, period->exit_ns);
}

/* Add the run time of the period that just ended, limited to the CPU's own. If a switch was missed, the thread's count
 * includes run time on other CPUs. */
static __always_inline void add_run_time_to_cause(struct cause_sum *sum, struct cpu_state *cpu)
{
    u64 ran = cpu->period.next_ns - cpu->period.exit_ns, kernel = cpu->kernel_ns, own = cpu->own_ns;

    if (kernel > ran)
        kernel = ran;
    if (own > ran - kernel)
        own = ran - kernel;
    if (own)
        __sync_fetch_and_add(&sum->own_ns, own);
    __sync_fetch_and_add(&sum->kernel_ns, kernel);
}

static __always_inline void add_exit_to_total(struct cpu_total *total, struct idle_exit *period)
{
    u32 state = period->state < CAUSE_STATES ? period->state : CAUSE_STATES - 1;
    u64 from = period->enter_ns > total->start_ns ? period->enter_ns : total->start_ns;

    total->count[state]++;
    total->idle_ns[state] += period->exit_ns - from;
    total->last_tgid = period->next_tgid;
}

/* Select a fair sample of periods, the same for each reader. A mask with more bits selects an even sample of the
 * sample. */
static __always_inline u32 sample_hash(u32 cpu, u32 sequence)
{
    u32 hash = (sequence ^ cpu * 0x9e3779b1U) * 0x85ebca6bU;
    hash ^= hash >> 13;
    hash *= 0xc2b2ae35U;
    return hash ^ hash >> 16;
}

#endif
