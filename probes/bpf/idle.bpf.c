/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Idle exits: what ended them, which thread ran, and where that thread had slept.
 *
 * Question: which thread and call path made this CPU leave idle?
 * Cost: about 1 µs per idle exit; with stacks 0.5 µs more per sleep of a target thread while its CPU sees fewer
 *       than 10 × LOADED_PER_100MS of them a second, one in SAMPLE_1_IN above that; 0.1 µs per waking.
 * Privileges: CAP_BPF and CAP_PERFMON (or root). Raw tracepoints only; every offset comes from the running kernel's BTF.
 * Checked against programs that sleep at prime-numbered rates (tests/system).
 *
 * The loader puts in front: NR_CPUS, OFFSET_*, HAVE_*, STACKS, and for it TARGET_ALL, ON_DEMAND, GROWS and GROWS_BY_NAME.
 */
#include "reading.bpf.h"
#include "idle_exit.h"
#include "handlers.h"
#include "causes.h"
#include "comms.bpf.h"
#include "filled.bpf.h"

#define WAKING_SLOTS 16384   /* direct-mapped by thread id: a collision loses one waker's name, never a count */
#define EXIT_NONE ((u32)-1)

/* A table that can be mapped begins at a page, so that entries of whole cache lines share none. */
#define ALIGNED_ARRAY(name, type, count) BPF_F_TABLE("array", int, type, name, count, BPF_F_MMAPABLE)

BPF_ARRAY(cpus, struct cpu_state, NR_CPUS);
BPF_TABLE("hash", struct cause_key, struct cause_sum, causes, CAUSE_SLOTS);
ALIGNED_ARRAY(totals, struct cpu_total, NR_CPUS);
ALIGNED_ARRAY(wakings, struct waking, WAKING_SLOTS);
BPF_RINGBUF_OUTPUT(exits, EXIT_PAGES);
BPF_ARRAY(shared, s64, 12);
enum counter {
    COUNT_LOST_EXITS, COUNT_LOST_STACKS, COUNT_LOADED, COUNT_SLEEPS, COUNT_UNSENT, COUNT_LOST_WAKINGS, COUNT_LOST_SAMPLES,
    COUNT_LOST_PROCESSES,
    COUNTERS,
};
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);
/* SHARED_ALL_BUSY: no CPU idles. SHARED_COUNTING: a window is open. SHARED_STACK_BYTES: what may still be copied in it.
 * SHARED_SAMPLE_MASK: which periods are sent as records too. SHARED_CAUSE_HALF, SHARED_WOKEN_HALF: 0 or CAUSE_HALF.
 * SHARED_ONLY_TARGET: the target's process where it is but one, else 0. SHARED_WINDOW: numbers the windows.
 * SHARED_TICK_HANDLER: the kernel function that runs the tick. SHARED_OWN_PID: who reads. SHARED_POLLS: a bit for each idle state that
 * is a poll.
 * All are read often and written seldom: no CPU's line travels because another one idles. */
enum shared_value {
    SHARED_ALL_BUSY, SHARED_REGS_OFFSET, SHARED_COUNTING, SHARED_STACK_BYTES, SHARED_SAMPLE_MASK, SHARED_CAUSE_HALF,
    SHARED_WOKEN_HALF, SHARED_ONLY_TARGET, SHARED_WINDOW, SHARED_TICK_HANDLER, SHARED_OWN_PID,
    SHARED_POLLS,
};

static __always_inline void count(int what)
{
    u64 *value = counters.lookup(&what);
    if (value)
        *value += 1;
}

/* What was counted, here or on another CPU, has not come to pass. */
static __always_inline void uncount(int what)
{
    u64 *value = counters.lookup(&what);
    if (value)
        *value -= 1;
}

static __always_inline struct cpu_state *this_cpu_and_number(int *number)
{
    *number = bpf_get_smp_processor_id();
    return cpus.lookup(number);
}

static __always_inline struct cpu_state *this_cpu(void)
{
    int number;
    return this_cpu_and_number(&number);
}

static __always_inline s64 *shared_at(int index)
{
    return shared.lookup(&index);
}

/* The entry of a period's cause; null where the table is full. */
static __always_inline struct cause_sum *cause_of(struct idle_exit *period)
{
    struct cause_key key;
    struct cause_sum *sum;
    s64 *half = shared_at(SHARED_CAUSE_HALF);

    fill_cause_key(period, &key);
    if (half)
        key.flags |= (u32)*half;
    sum = causes.lookup(&key);
    if (!sum) {
        struct cause_sum fresh = {};   /* here, so that no exit of a known cause clears it */

        if (!causes.insert(&key, &fresh))   /* or another CPU was quicker with the same one */
            note_filled(TABLE_CAUSES, 1);
        sum = causes.lookup(&key);
    }
    return sum;
}

/* A whole period: summed in any case, and sent as a record if it is one of the sample. */
static __always_inline void note_exit(struct cpu_state *cpu, int number)
{
    struct cpu_total *total = totals.lookup(&number);
    s64 *mask = shared_at(SHARED_SAMPLE_MASK);
    struct cause_sum *sum;
    struct idle_exit *record;

    if (!total || !mask || !is_in_window(total, &cpu->period))
        return;
    add_exit_to_total(total, &cpu->period);
    sum = cause_of(&cpu->period);
    if (sum) {
        add_exit_to_cause(sum, &cpu->period);
        add_run_time_to_cause(sum, cpu);
    } else {
        count(COUNT_LOST_EXITS);
    }
    if (sample_hash(cpu->period.cpu, cpu->period.sequence) & (u32)*mask)
        return;
    record = exits.ringbuf_reserve(sizeof(struct idle_exit));
    if (!record) {
        count(COUNT_LOST_SAMPLES);
        return;
    }
    __builtin_memcpy(record, &cpu->period, sizeof(*record));
    exits.ringbuf_submit(record, RB_NO_WAKEUP);
    note_filled(RING_EXITS, sizeof(*record));
}

#include "sites.bpf.h"

/* Whether a waking from this CPU can end an idle period: it idles, or not all others are busy. */
static __always_inline int can_end_idle(struct cpu_state *cpu)
{
    s64 *all_busy = shared_at(SHARED_ALL_BUSY);
    return is_open(cpu) || !all_busy || !*all_busy;
}

/* With every CPU busy no waking ends an idle period; under load none is counted either: the common case of a loaded
 * server ends here. */
static __always_inline int is_waking_traced(struct cpu_state *cpu)
{
    return can_end_idle(cpu) || is_counting(cpu);
}

#include "busy_cpus.bpf.h"

RAW_TRACEPOINT_PROBE(cpu_idle)
{
    u32 state = ctx->args[0];
    u32 number = ctx->args[1];
    u64 now = bpf_ktime_get_ns();
    int index = number;
    struct cpu_state *cpu = cpus.lookup(&index);
    s64 *all_busy = shared_at(SHARED_ALL_BUSY), *polls = shared_at(SHARED_POLLS);

    if (!cpu || !all_busy || !polls)
        return 0;
    if (state == EXIT_NONE) {
        idle_leave(cpu, now);
        return 0;
    }
    if (idle_enter(cpu, now))
        note_exit(cpu, index);
    idle_restart(cpu, now, number, state, (u64)*polls >> (state & 63) & 1 ? IDLE_POLLED : 0);
    mark_idle(cpu, number, all_busy);
    return 0;
}

#include "interrupts.bpf.h"
#include "switch.bpf.h"
#include "wakeup.bpf.h"

/* A step of a CPU's way online or offline (kernel/cpu.c). Its own last ones have no event, for it is not online any more; those that
 * another takes for it when it is dead do. */
RAW_TRACEPOINT_IF(HAVE_cpuhp_enter, cpuhp_enter)
{
    int number = ctx->args[0], target = ctx->args[1], step = ctx->args[2];
    struct cpu_state *cpu = cpus.lookup(&number);
    if (cpu && step > target)
        idle_set_offline(cpu, bpf_ktime_get_ns());
    return 0;
}

TYPED_TRACEPOINT_IF(HAVE_workqueue_execute_start, workqueue_execute_start)
{
    struct cpu_state *cpu = this_cpu();
    u32 tid = bpf_get_current_pid_tgid();
    if (cpu && cpu->phase == PHASE_RUNNING && cpu->period.next_tid == tid && !cpu->period.work_function)
        cpu->period.work_function = FIELD_U64(ctx->args[0], OFFSET_work_struct_func);
    return 0;
}
