/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Idle exits summed by what caused them: one entry a distinct cause, however often it happens.
 *
 * Question: how many idle exits had this evidence, thread, site and waker, how long did the CPUs run because of them, and
 * do they come regularly?
 * Plain C without helpers: the tests compile it natively, and hold it against the same sums made in Python. What is
 * judged is judged there: a key is evidence, not a verdict.
 */
#ifndef POWERPROF_CAUSES_H
#define POWERPROF_CAUSES_H

#define CAUSE_STATES 10   /* CPUIDLE_STATE_MAX */
/* In a key's flags: which half of the double buffer the entry is in. A reader that goes on counting turns to the other half
 * and empties this one, when no program can be adding to it any more. */
#define CAUSE_HALF 0x10000
#define CAUSE_FLAGS (IDLE_TICK | IDLE_NO_TASK | IDLE_WAKER | IDLE_TIMER_WHEEL | IDLE_SITE | IDLE_WAKER_SITE | IDLE_RUNNABLE | \
                     IDLE_KERNEL | IDLE_WAKER_KERNEL | IDLE_LIFE)

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
    u64 running_ns;       /* out of idle, until the CPUs idled again */
    u64 idle_ns;          /* how long the periods had lasted */
    u64 own_ns;           /* of running_ns, what the threads ran that the periods ended for, until they slept */
    u64 kernel_ns;        /* … and the kernel until they ran, or until the CPUs idled again where nobody did */
    u64 last_ns;          /* the latest of them */
    u64 period_ns;        /* the interval that most of the intervals are, or twice or three times */
    u64 fitting_ns;       /* the sum of those that are */
    u32 fitting_gaps;
    u32 fitting_periods;
    u32 gaps;             /* all intervals */
    u32 votes;
    u32 states[CAUSE_STATES];
    char next_comm[COMM_BYTES];
    char waker_comm[COMM_BYTES];
};

/* Exits of one CPU in its window, by idle state. Filled up to whole pairs of cache lines: its CPU writes it at each exit. */
struct cpu_total {
    u64 start_ns;         /* the window's edges, set by the reader while it keeps the CPU awake; 0: not yet */
    u64 end_ns;
    u64 count[CAUSE_STATES];
    u64 idle_ns[CAUSE_STATES];
    u64 last_tgid;        /* whose thread the last of them was for */
    u64 unplaced_ns[2];   /* running time of threads that have no slot: others, the target's (switch.bpf.h) */
    u8 gap[56];
};

/* The period that is open at the end's edge is the reader's, who looks at it there: here it is whole too late. */
static __attribute__((always_inline)) inline int is_in_window(struct cpu_total *total, struct idle_exit *period)
{
    return total->start_ns && period->exit_ns >= total->start_ns && (!total->end_ns || period->next_ns <= total->end_ns);
}

/* Whether what runs on the CPU now is in its window. */
static __attribute__((always_inline)) inline int is_window_open_on(struct cpu_total *total)
{
    return total->start_ns && !total->end_ns;
}

static __attribute__((always_inline)) inline void fill_cause_key(struct idle_exit *period, struct cause_key *key)
{
    __builtin_memset(key, 0, sizeof(*key));
    key->timer_function = period->timer_function;
    key->work_function = period->work_function;
    key->evidence = period->evidence;
    key->irq = period->irq;
    /* Where nothing was seen and nobody ran, the state tells a poll that came to its own end from what is unknown. */
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
    /* An interrupt's waker is not the task that it happened to interrupt. */
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

/* How many periods an interval is: 1 to 3, or 0 where it is no multiple within a tenth of a period. */
static __attribute__((always_inline)) inline u32 count_periods(u64 gap, u64 period)
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

/* One more interval. The candidate is the interval that a majority votes for: what fits it votes for it, what does not
 * votes against, and without votes left the next interval takes its place. */
static __attribute__((always_inline)) inline void add_cause_interval(struct cause_sum *sum, u64 at_ns)
{
    u64 gap;
    u32 periods;

    if (at_ns <= sum->last_ns)
        return;   /* a period that another CPU ended first */
    gap = at_ns - sum->last_ns;
    sum->last_ns = at_ns;
    if (gap == at_ns)
        return;   /* the first */
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

static __attribute__((always_inline)) inline void add_exit_to_cause(struct cause_sum *sum, struct idle_exit *period)
{
    u32 state = period->state < CAUSE_STATES ? period->state : CAUSE_STATES - 1;

    /* Several CPUs may add to one entry (a tick is one cause everywhere); the interval of such an entry means nothing. */
    __sync_fetch_and_add(&sum->count, 1);
    if (period->next_ns > period->exit_ns)
        __sync_fetch_and_add(&sum->running_ns, period->next_ns - period->exit_ns);
    __sync_fetch_and_add(&sum->idle_ns, period->exit_ns - period->enter_ns);
    __sync_fetch_and_add(&sum->states[state], 1);
    /* The latest name: a thread that runs another program has another one. */
    __builtin_memcpy(sum->next_comm, period->next_comm, COMM_BYTES);
    if (period->flags & IDLE_WAKER && period->waker_context == WAKER_TASK)
        __builtin_memcpy(sum->waker_comm, period->waker_comm, COMM_BYTES);
    add_cause_interval(sum, period->exit_ns);
}

/* Who ran in the period that the CPU has just ended, and no longer than the CPU did: where a switch was not seen, a thread's count
 * holds what it ran elsewhere. */
static __attribute__((always_inline)) inline void add_run_time_to_cause(struct cause_sum *sum, struct cpu_state *cpu)
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

static __attribute__((always_inline)) inline void add_exit_to_total(struct cpu_total *total, struct idle_exit *period)
{
    u32 state = period->state < CAUSE_STATES ? period->state : CAUSE_STATES - 1;
    u64 from = period->enter_ns > total->start_ns ? period->enter_ns : total->start_ns;

    total->count[state]++;
    total->idle_ns[state] += period->exit_ns - from;
    total->last_tgid = period->next_tgid;
}

/* A fair choice of periods, the same for every reader: of those chosen with a mask, the ones that a longer mask chooses
 * are an even sample again. */
static __attribute__((always_inline)) inline u32 sample_hash(u32 cpu, u32 sequence)
{
    u32 hash = (sequence ^ cpu * 0x9e3779b1U) * 0x85ebca6bU;
    hash ^= hash >> 13;
    hash *= 0xc2b2ae35U;
    return hash ^ hash >> 16;
}

#endif
