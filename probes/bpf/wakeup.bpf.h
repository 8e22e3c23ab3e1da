/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Wakings: who wakes whom, in whose context, kept until the thread runs; those of the target counted by their sites. */

/* `ends_idle`: it may end an idle period. */
static __always_inline void note_wake(struct cpu_state *cpu, u32 number, u64 task, int ends_idle, int newborn)
{
    struct waking *waking;
    u64 pid_tgid, who = pid_tgid_of(task);
    u32 tid = (u32)who, irq, context;
    int slot, is_counted = !is_not_target(who >> 32);

    if (!ends_idle && !is_counted)
        return;
    pid_tgid = bpf_get_current_pid_tgid();
    context = idle_waker_context(cpu, &irq, cpu->vector || (!cpu->timer_active && !cpu->hardirq && in_interrupt()));
    if (LOAD_TIME(STACKS) && is_counted) {
        if (newborn)
            note_birth(task, tid, who >> 32);
        else if (is_counting(cpu))
            note_waking(cpu, task, tid, who >> 32, context, irq, pid_tgid);
    }
    if (!ends_idle)
        return;
    slot = tid & (WAKING_SLOTS - 1);
    waking = wakings.lookup(&slot);
    if (!waking)
        return;
    /* A thread is mostly woken by the same one, whose name then is there already. */
    if (waking->waker_tid != (u32)pid_tgid || !waking->waker_comm[0])
        own_comm(waking->waker_comm);
    idle_fill_waking(cpu, waking, number, tid, pid_tgid, context, irq);
    /* In this order: it is counted first and off the CPU afterwards. */
    if (LOAD_TIME(HAS_ON_CPU))
        /* A byte of its own or the low one of an int, by kernel: more than the member, the verifier refuses. */
        waking->on_cpu = FIELD_U8(task, OFFSET_task_struct_on_cpu);
    waking->switches = switches_of(task);
    waking->is_kernel = is_kernel_thread(CURRENT_TASK);
    if (LOAD_TIME(STACKS) && !LOAD_TIME(ON_DEMAND) && context == WAKER_TASK)
        note_waker(cpu, waking, pid_tgid);
}

TYPED_TRACEPOINT_PROBE(sched_waking)
{
    int number;
    struct cpu_state *cpu = this_cpu_and_number(&number);
    int ends_idle;

    if (!cpu || !is_waking_traced(cpu))
        return 0;
    ends_idle = can_end_idle(cpu);
    /* First of all, while the verifier knows of one state only: it walks the loops again for each. */
    if (ends_idle && !is_open(cpu))
        update_busy(cpu, coarse_ns(), number);
    note_wake(cpu, number, ctx->args[0], ends_idle, 0);
    return 0;
}

/* A thread's first wake-up, by the one that created it: sched_waking does not see it. */
TYPED_TRACEPOINT_PROBE(sched_wakeup_new)
{
    int number;
    struct cpu_state *cpu = this_cpu_and_number(&number);
    if (cpu && is_waking_traced(cpu))
        note_wake(cpu, number, ctx->args[0], can_end_idle(cpu), 1);
    return 0;
}

RAW_TRACEPOINT_IF(HAVE_sched_wake_idle_without_ipi, sched_wake_idle_without_ipi)
{
    int target = ctx->args[0];   /* runs on the waker's CPU: the CPU that is woken is the argument */
    struct cpu_state *cpu = cpus.lookup(&target);
    if (cpu)
        idle_add_evidence(cpu, EVIDENCE_NO_IPI, 0);
    return 0;
}
