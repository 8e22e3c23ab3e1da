/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* How long each thread ran, by the scheduler's own count (sum_exec_runtime) at its switch-in and its switch-out.
 *
 * Each thread has a slot by its number while it lives. What has none is summed by CPU: threads that ended, and the later one
 * of two that would share a slot. So nothing is lost, only told less well. A CPU counts between its window's edges: there we run on it,
 * so that no other's time lies across an edge.
 */
#define RUN_SLOTS 16384

enum run_kind { RUN_OTHER = 0, RUN_TARGET = 1, RUN_KERNEL = 2 };

/* A line each: threads of one process have numbers that follow each other, and run on different CPUs. */
struct run_time {
    u64 who;          /* thread and, above it, process */
    u64 ns;
    u64 kind;
    u8 gap[40];
};

ALIGNED_ARRAY(run_times, struct run_time, RUN_SLOTS);

static __always_inline int is_kernel_thread(u64 task)
{
    return (FIELD_U32(task, OFFSET_task_struct_flags) & PF_KTHREAD) != 0;
}

static __always_inline u64 run_time_of(u64 task)
{
    return FIELD_U64(task, OFFSET_task_struct_se + OFFSET_sched_entity_sum_exec_runtime);
}

static __always_inline u64 kind_of(u64 task, u64 who)
{
    if (is_kernel_thread(task))
        return RUN_KERNEL;
    return is_target(who >> 32) ? RUN_TARGET : RUN_OTHER;
}

/* A thread comes onto this CPU; 0: the idle task. */
static __always_inline void note_arrival(struct cpu_state *cpu, u64 task)
{
    cpu->in_tid = FIELD_U32(task, OFFSET_task_struct_pid);
    if (cpu->in_tid)
        cpu->in_ns = run_time_of(task);
}

/* What has no slot. */
static __always_inline void add_unplaced(struct cpu_total *total, u64 kind, u64 ns)
{
    total->unplaced_ns[kind == RUN_TARGET] += ns;
}

/* The thread leaves this CPU, `is_last`: for ever. Whoever came first has the slot; two that come at once may mix what they ran then,
 * and no more. */
static __always_inline void note_departure(struct cpu_state *cpu, int number, u64 task, u64 who, int preempted, int is_last)
{
    int place = (u32)who & (RUN_SLOTS - 1);
    struct cpu_total *total = totals.lookup(&number);
    struct run_time *slot = run_times.lookup(&place);
    u64 ns = cpu->in_tid == (u32)who ? run_time_of(task) - cpu->in_ns : 0;

    if (!total || !slot)
        return;
    idle_ran(cpu, who, ns, preempted);
    if (slot->who != who) {
        if (!ns || !is_counted_on(total))
            return;
        if (slot->who || is_last) {
            add_unplaced(total, kind_of(task, who), ns);
            return;
        }
        slot->kind = kind_of(task, who);
        slot->ns = 0;
        slot->who = who;
    }
    if (is_counted_on(total))
        slot->ns += ns;
    if (is_last) {
        add_unplaced(total, slot->kind, slot->ns);
        slot->who = 0;
    }
}
