/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Handle wakings: store the waker of a thread and its context until the thread runs, and count wakings of target
 * threads by site. */

/* `ends_idle`: the waking may end an idle period. */
static __always_inline void note_wake(struct cpu_state *cpu, u32 number, u64 task, int ends_idle, int newborn)
{
    struct waking *waking;
    u64 pid_tgid, who = pid_tgid_of(task);
    u32 tid = (u32)who, irq, context;
    int slot, is_counted = !is_not_target(who >> 32);

    if (!ends_idle && !is_counted)
        return;
    pid_tgid = current_pid_tgid();
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
    /* Most threads are always woken by the same thread, so the name is mostly there already. */
    if (waking->waker_tid != (u32)pid_tgid || !waking->waker_comm[0])
        own_comm(waking->waker_comm);
    idle_fill_waking(cpu, waking, number, tid, pid_tgid, context, irq);
    /* Read on_cpu before the switches: the kernel counts a switch first, and then clears on_cpu. */
    if (LOAD_TIME(HAS_ON_CPU))
        /* on_cpu is a byte, or the low byte of an int, depending on the kernel. The verifier rejects reads beyond the
         * member. */
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
    /* This call comes first, because the verifier repeats its loops for each known state. */
    if (ends_idle && !is_open(cpu))
        update_busy(cpu, bpf_ktime_get_ns(), number);
    note_wake(cpu, number, ctx->args[0], ends_idle, 0);
    return 0;
}

/* The first waking of a new thread, by its creator. sched_waking does not report it. */
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
    int target = ctx->args[0];   /* this runs on the waker's CPU; the argument is the woken CPU */
    struct cpu_state *cpu = cpus.lookup(&target);
    if (cpu)
        idle_add_evidence(cpu, EVIDENCE_NO_IPI, 0);
    return 0;
}
