/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Handle sched_switch: end idle periods, and sum the run time of each thread by the scheduler's count
 * (sum_exec_runtime).
 *
 * A living thread has a slot by its id. Run time without a slot is summed by CPU: time of exited threads, and of a
 * thread with an occupied slot. So the total is complete, and only its division is coarser. A CPU counts between the
 * edges of its window. The reader runs on the CPU at each edge, so no other thread's time crosses it.
 */
#define RUN_SLOTS 16384

enum run_kind { RUN_OTHER = 0, RUN_TARGET = 1, RUN_KERNEL = 2 };

/* Each slot has its own cache line: the threads of a process have consecutive ids and run on different CPUs. */
struct run_time {
    u64 who;          /* process id in the upper half, thread id in the lower */
    u64 ns;
    u64 kind;
    u64 exited;       /* the latest thread of this slot that exited, as in `who` */
    char exited_comm[COMM_BYTES];   /* its last name: a short thread may name itself after its last waking */
    u32 exited_life;  /* IDLE_LIFE of its start time */
    u8 gap[12];
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

static __always_inline u64 run_kind_of(u64 task, u64 who)
{
    if (is_kernel_thread(task))
        return RUN_KERNEL;
    return is_target(who >> 32) ? RUN_TARGET : RUN_OTHER;
}

/* A thread is switched in on this CPU; 0: the idle task. */
static __always_inline void note_switch_in(struct cpu_state *cpu, u64 task)
{
    note_running(task);
    cpu->running_tid = LOAD_TIME(PID_LEVEL) ? (u32)ids_in_namespace(task) : FIELD_U32(task, OFFSET_task_struct_pid);
    if (cpu->running_tid)
        cpu->switch_in_ns = run_time_of(task);
}

/* Bits of a thread's start time, in about milliseconds. */
static __always_inline u32 life_of(u64 task)
{
    u32 began = FIELD_U64(task, OFFSET_task_struct_start_time) >> 20;
    return began * 0x9e3779b1U & IDLE_LIFE;
}

/* Keep the name of a thread at its last switch-out. /proc does not have it any more. */
static __always_inline void note_last_name(struct run_time *slot, u64 task, u64 who)
{
    slot->exited = who;
    slot->exited_life = life_of(task);
    comm_of(task, slot->exited_comm);
}

/* Add run time of a thread without a slot. */
static __always_inline void add_unplaced_time(struct cpu_total *total, u64 kind, u64 ns)
{
    total->unplaced_ns[kind == RUN_TARGET] += ns;
}

/* A thread is switched out; `is_exiting`: for the last time. The first thread gets the slot. Two threads that take it
 * at the same moment may mix their run time, at most once. */
static __always_inline void note_switch_out(struct cpu_state *cpu, int number, u64 task, u64 who, int preempted,
                                            int is_exiting)
{
    int place = (u32)who & (RUN_SLOTS - 1);
    struct cpu_total *total = totals.lookup(&number);
    struct run_time *slot = run_times.lookup(&place);
    u64 ns = cpu->running_tid == (u32)who ? run_time_of(task) - cpu->switch_in_ns : 0;

    if (!total || !slot)
        return;
    idle_add_task_time(cpu, who, ns, preempted);
    if (is_exiting && is_window_open_on(total))
        note_last_name(slot, task, who);
    if (slot->who != who) {
        if (!ns || !is_window_open_on(total))
            return;
        if (slot->who || is_exiting) {
            add_unplaced_time(total, run_kind_of(task, who), ns);
            return;
        }
        slot->kind = run_kind_of(task, who);
        slot->ns = 0;
        slot->who = who;
        if (slot->exited == who)
            slot->exited = 0;   /* another thread with the same id */
    }
    if (is_window_open_on(total))
        slot->ns += ns;
    if (is_exiting) {
        add_unplaced_time(total, slot->kind, slot->ns);
        slot->who = 0;
    }
}

/* The state of the previous thread when it called schedule(), if the kernel provides it. */
#define PREV_STATE(ctx) (LOAD_TIME(HAS_PREV_STATE) ? (u32)(ctx)->args[ARG_sched_switch_prev_state] : 1)

static __always_inline u64 previous_pid_tgid(u64 prev)
{
    if (LOAD_TIME(PID_LEVEL))
        return ids_of_previous(prev);
#if DIRECT
    return pid_tgid_of(prev);
#else
    return bpf_get_current_pid_tgid();   /* the previous thread is still the current one */
#endif
}

/* The number of switch-outs of a thread. */
static __always_inline u64 switches_of(u64 task)
{
    return FIELD_U64(task, OFFSET_task_struct_nvcsw) + FIELD_U64(task, OFFSET_task_struct_nivcsw);
}

/* Set the name of the thread that ran, whether it is a kernel thread, and a hash of its start time. */
static __always_inline void note_next_task(struct idle_exit *period, u64 task)
{
    comm_of(task, period->next_comm);
    period->flags |= life_of(task);
    if (is_kernel_thread(task))
        period->flags |= IDLE_KERNEL;
}

/* Whether this is the last switch-out of the thread. */
static __always_inline int will_exit(struct bpf_raw_tracepoint_args *ctx, u64 prev)
{
    u32 state;

    if (LOAD_TIME(HAS_PREV_STATE))
        state = (u32)ctx->args[ARG_sched_switch_prev_state];
    else
        state = FIELD_U32(prev, OFFSET_task_struct_state);
    return (state & STATE_DEAD) != 0;
}

TYPED_TRACEPOINT_PROBE(sched_switch)
{
    int number, slot, preempted = (int)ctx->args[ARG_sched_switch_preempt];
    struct cpu_state *cpu = this_cpu_and_number(&number);
    u64 prev = ctx->args[ARG_sched_switch_prev], next = ctx->args[ARG_sched_switch_next];
    u64 pid_tgid = previous_pid_tgid(prev);
    struct waking *waking;
    u64 who;
    u32 tid, tgid;

    if (!cpu)
        return 0;
    if ((u32)pid_tgid != 0) {
        /* A thread that injects idle time runs before and after it, so it is the thread that ran. */
        if (is_open(cpu)) {
            idle_start_task(cpu, bpf_ktime_get_ns(), (u32)pid_tgid, pid_tgid >> 32);
            note_next_task(&cpu->period, prev);
            cpu->running_tid = 0;   /* the scheduler counts the injected idle time as run time */
        }
        note_switch_out(cpu, number, prev, pid_tgid, preempted, !preempted && will_exit(ctx, prev));
        note_switch_in(cpu, next);
        if (LOAD_TIME(STACKS) && is_sleep(preempted, PREV_STATE(ctx)))
            note_sleep(cpu, prev, pid_tgid);
        return 0;
    }
    note_switch_in(cpu, next);
    if (!is_open(cpu))
        return 0;
    who = pid_tgid_of(next);
    tid = (u32)who;
    tgid = who >> 32;
    if (!tid)
        return 0;
    slot = tid & (WAKING_SLOTS - 1);
    waking = wakings.lookup(&slot);
    /* The time shows how long the kernel took until this thread ran. */
    idle_switch(cpu, bpf_ktime_get_ns(), tid, tgid, switches_of(next), waking);
    note_next_task(&cpu->period, next);
    if (LOAD_TIME(STACKS) && !(cpu->period.flags & IDLE_RUNNABLE))
        note_site(cpu, next, tid, tgid);
    return 0;
}
