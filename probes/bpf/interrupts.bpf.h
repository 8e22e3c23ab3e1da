/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Collect evidence from interrupts: vectors, IPIs, devices, softirqs and timers. */
#define VECTOR_PROBE(tracepoint, evidence)              \
    RAW_TRACEPOINT_IF(HAVE_##tracepoint, tracepoint)    \
    {                                                   \
        struct cpu_state *cpu = this_cpu();             \
        if (cpu)                                        \
            idle_add_evidence(cpu, evidence, (u32)ctx->args[0]); \
        return 0;                                       \
    }

/* Vectors with handlers that wake threads and raise softirqs. */
#define WAKING_VECTOR_PROBE(name, evidence)             \
    RAW_TRACEPOINT_IF(HAVE_##name##_entry, name##_entry) \
    {                                                   \
        struct cpu_state *cpu = this_cpu();             \
        if (!cpu)                                       \
            return 0;                                   \
        if (LOAD_TIME(VECTORS_IN_PAIRS))                \
            cpu->vector = 1;                            \
        idle_add_evidence(cpu, evidence, (u32)ctx->args[0]); \
        return 0;                                       \
    }                                                   \
    RAW_TRACEPOINT_IF_BOTH(HAVE_##name##_entry, VECTORS_IN_PAIRS, name##_exit) \
    {                                                   \
        struct cpu_state *cpu = this_cpu();             \
        if (cpu)                                        \
            cpu->vector = 0;                            \
        return 0;                                       \
    }

VECTOR_PROBE(local_timer_entry, EVIDENCE_LOCAL_TIMER)
VECTOR_PROBE(reschedule_entry, EVIDENCE_RESCHEDULE)
WAKING_VECTOR_PROBE(call_function, EVIDENCE_CALL_FUNCTION)
WAKING_VECTOR_PROBE(call_function_single, EVIDENCE_CALL_FUNCTION)
WAKING_VECTOR_PROBE(irq_work, EVIDENCE_IRQ_WORK)
VECTOR_PROBE(x86_platform_ipi_entry, EVIDENCE_OTHER_VECTOR)
VECTOR_PROBE(thermal_apic_entry, EVIDENCE_OTHER_VECTOR)
VECTOR_PROBE(threshold_apic_entry, EVIDENCE_OTHER_VECTOR)
VECTOR_PROBE(deferred_error_apic_entry, EVIDENCE_OTHER_VECTOR)
/* arm64 has one tracepoint for all IPIs. Their names differ (arch/arm64/kernel/smp.c: ipi_types). */
RAW_TRACEPOINT_IF(HAVE_ipi_entry, ipi_entry)
{
    struct cpu_state *cpu = this_cpu();
    u32 evidence = EVIDENCE_CALL_FUNCTION;
    char first = 0;

    if (!cpu || !is_open(cpu))
        return 0;
    bpf_probe_read_kernel(&first, sizeof(first), (void *)ctx->args[0]);
    if (first == 'R')
        evidence = EVIDENCE_RESCHEDULE;
    else if (first == 'I')
        evidence = EVIDENCE_IRQ_WORK;
    else if (first == 'T')
        evidence = EVIDENCE_LOCAL_TIMER;
    idle_refine_evidence(cpu, evidence, 0);
    return 0;
}

RAW_TRACEPOINT_PROBE(irq_handler_entry)
{
    struct cpu_state *cpu = this_cpu();
    if (cpu)
        idle_enter_hardirq(cpu, (u32)ctx->args[0]);
    return 0;
}

RAW_TRACEPOINT_PROBE(irq_handler_exit)
{
    struct cpu_state *cpu = this_cpu();
    if (cpu)
        idle_exit_hardirq(cpu, (u32)ctx->args[2]);
    return 0;
}

RAW_TRACEPOINT_PROBE(softirq_entry)
{
    struct cpu_state *cpu = this_cpu();
    if (cpu)
        idle_enter_softirq(cpu, (u32)ctx->args[0]);
    return 0;
}

RAW_TRACEPOINT_PROBE(softirq_raise)
{
    struct cpu_state *cpu = this_cpu();
    if (cpu)
        idle_raise_softirq(cpu, (u32)ctx->args[0], cpu->hardirq || cpu->timer_active || cpu->vector || in_interrupt());
    return 0;
}

RAW_TRACEPOINT_PROBE(softirq_exit)
{
    struct cpu_state *cpu = this_cpu();
    if (cpu)
        idle_exit_softirq(cpu);
    return 0;
}

TYPED_TRACEPOINT_PROBE(hrtimer_expire_entry)
{
    struct cpu_state *cpu = this_cpu();
    s64 *tick = shared_at(SHARED_TICK_HANDLER);
    u64 function;
    if (!cpu || !tick)
        return 0;
    function = FIELD_U64(ctx->args[0], OFFSET_hrtimer_function);
    idle_enter_timer(cpu, function, function == (u64)*tick, 0);
    return 0;
}

RAW_TRACEPOINT_PROBE(hrtimer_expire_exit)
{
    struct cpu_state *cpu = this_cpu();
    if (cpu)
        idle_exit_timer(cpu);
    return 0;
}

TYPED_TRACEPOINT_PROBE(timer_expire_entry)
{
    struct cpu_state *cpu = this_cpu();
    if (!cpu)
        return 0;
    idle_enter_timer(cpu, FIELD_U64(ctx->args[0], OFFSET_timer_list_function), 0, 1);
    return 0;
}

RAW_TRACEPOINT_PROBE(timer_expire_exit)
{
    struct cpu_state *cpu = this_cpu();
    if (cpu)
        idle_exit_timer(cpu);
    return 0;
}
