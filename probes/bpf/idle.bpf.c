/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Count idle exits by cause: the event that ended the idle period, the thread that ran, and where it had slept.
 *
 * Question: which thread and call path made this CPU leave idle?
 * Cost: about 1 µs per idle exit. With stacks, 0.5 µs more per sleep of a target thread while its CPU has fewer than
 *       10 × LOADED_PER_100MS of them per second; above that rate, one sleep in SAMPLE_1_IN. 0.1 µs per waking.
 * Privileges: CAP_BPF and CAP_PERFMON (or root). Raw tracepoints only; all offsets come from the running kernel's BTF.
 * Checked against programs that sleep at rates that are prime numbers (tests/system).
 *
 * The loader defines NR_CPUS, OFFSET_*, HAVE_* and STACKS. With STACKS, it also defines TARGET_ALL, ON_DEMAND, GROWS
 * and GROWS_BY_NAME.
 */
#include "kernel_memory.bpf.h"
#include "running_ids.bpf.h"
#include "idle_exit.h"
#include "handlers.h"
#include "causes.h"
#include "comms.bpf.h"
#include "reader_wakeup.bpf.h"

/* Direct-mapped by thread id: a collision loses the name of one waker, and all counts stay exact. */
#define WAKING_SLOTS 16384
#define EXIT_NONE ((u32)-1)

/* A table that can be mapped begins at a page, so entries of whole cache lines never share a line. */
#define ALIGNED_ARRAY(name, type, count) BPF_F_TABLE("array", int, type, name, count, BPF_F_MMAPABLE)

BPF_ARRAY(cpus, struct cpu_state, NR_CPUS);
BPF_TABLE("hash", struct cause_key, struct cause_sum, causes, CAUSE_SLOTS);
ALIGNED_ARRAY(totals, struct cpu_total, NR_CPUS);
ALIGNED_ARRAY(wakings, struct waking, WAKING_SLOTS);
BPF_RINGBUF_OUTPUT(exits, EXIT_PAGES);
BPF_ARRAY(shared, s64, 12);
enum counter {
    COUNT_LOST_EXITS, COUNT_LOST_STACKS, COUNT_LOADED, COUNT_SLEEPS, COUNT_UNSENT, COUNT_LOST_WAKINGS,
    COUNT_LOST_SAMPLES, COUNT_LOST_PROCESSES,
    COUNTERS,
};
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);
/* SHARED_ALL_BUSY: all CPUs are busy. SHARED_REGS_OFFSET: see stacks.bpf.h. SHARED_COUNTING: a window is open.
 * SHARED_STACK_BYTES: bytes of stacks that may still be copied in the window. SHARED_SAMPLE_MASK: selects the periods
 * that are sent as records. SHARED_CAUSE_HALF and SHARED_WOKEN_HALF: 0 or CAUSE_HALF. SHARED_ONLY_TARGET: the target's
 * pid if the target is a single process, else 0. SHARED_WINDOW: number of the window. SHARED_TICK_HANDLER: address of
 * the kernel function that runs the tick. SHARED_OWN_PID: pid of the reader. SHARED_POLLS: one bit per idle state that
 * polls.
 *
 * All of them are read often and written rarely, so their cache line stays shared while other CPUs idle.
 */
enum shared_value {
    SHARED_ALL_BUSY, SHARED_REGS_OFFSET, SHARED_COUNTING, SHARED_STACK_BYTES, SHARED_SAMPLE_MASK, SHARED_CAUSE_HALF,
    SHARED_WOKEN_HALF, SHARED_ONLY_TARGET, SHARED_WINDOW, SHARED_TICK_HANDLER, SHARED_OWN_PID,
    SHARED_POLLS,
};

static __always_inline void count(int counter)
{
    u64 *value = counters.lookup(&counter);
    if (value)
        *value += 1;
}

/* Take back a count, made here or on another CPU, of an event that did not happen after all. */
static __always_inline void uncount(int counter)
{
    u64 *value = counters.lookup(&counter);
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

/* The entry of a period's cause; null if the table is full. */
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
        struct cause_sum new_sum = {};   /* declared here, so that exits with a known cause do not clear it */

        if (!causes.insert(&key, &new_sum))   /* fails also if another CPU inserted it first */
            note_filled(TABLE_CAUSES, 1);
        sum = causes.lookup(&key);
    }
    return sum;
}

/* Add a complete period to the sums, and send it as a record if it is in the sample. */
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

#include "sleep_sites.bpf.h"

/* Whether a waking on this CPU can end an idle period: this CPU idles, or another CPU may idle. */
static __always_inline int can_end_idle(struct cpu_state *cpu)
{
    s64 *all_busy = shared_at(SHARED_ALL_BUSY);
    return is_open(cpu) || !all_busy || !*all_busy;
}

/* While all CPUs are busy, wakings end no idle period, and under load they are not counted. On a loaded server most
 * calls end here. */
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

/* A step of a CPU towards online or offline (kernel/cpu.c). The last steps of a CPU that goes offline have no event,
 * because the CPU is offline by then. The steps that another CPU takes for it do. */
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
    u32 tid = current_pid_tgid();
    if (cpu && cpu->phase == PHASE_RUNNING && cpu->period.next_tid == tid && !cpu->period.work_function)
        cpu->period.work_function = FIELD_U64(ctx->args[0], OFFSET_work_struct_func);
    return 0;
}
