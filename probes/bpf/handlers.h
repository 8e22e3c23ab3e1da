/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Track the handler that a CPU runs: a device interrupt, a softirq or a timer callback. Each one marks the CPU's
 * state, is evidence for an open idle period, and gives the context of wakings. */
#ifndef POWERPROF_HANDLERS_H
#define POWERPROF_HANDLERS_H

static __always_inline void idle_enter_hardirq(struct cpu_state *cpu, u32 irq)
{
    cpu->hardirq = irq + 1;
    cpu->threaded_irq = 0;
    idle_add_evidence(cpu, EVIDENCE_DEVICE, irq);
}

/* Return value of a handler with a threaded part. The kernel wakes the thread right after it, in the interrupt. */
#define IRQ_WAKES_THREAD 2

static __always_inline void idle_exit_hardirq(struct cpu_state *cpu, u32 returned)
{
    cpu->threaded_irq = returned & IRQ_WAKES_THREAD ? cpu->hardirq : 0;
    cpu->hardirq = 0;
}

/* A softirq is raised. If an interrupt raised it, it counts as the interrupt's wherever it runs: at the end of the
 * interrupt, or when the interrupted task enables softirqs again. A softirq that it raises in turn counts too. */
static __always_inline void idle_raise_softirq(struct cpu_state *cpu, u32 number, int in_interrupt)
{
    if (in_interrupt || is_open(cpu) || (cpu->softirq && cpu->softirq_by_irq))
        cpu->raised_by_irq |= 1U << (number & 31);
}

static __always_inline void idle_enter_softirq(struct cpu_state *cpu, u32 number)
{
    u32 bit = 1U << (number & 31);

    cpu->threaded_irq = 0;
    cpu->softirq = number + 1;
    cpu->softirq_by_irq = (cpu->raised_by_irq & bit) != 0;
    cpu->raised_by_irq &= ~bit;
    idle_add_evidence(cpu, EVIDENCE_SOFTIRQ, number);
}

static __always_inline void idle_exit_softirq(struct cpu_state *cpu)
{
    cpu->softirq = 0;
}

static __always_inline void idle_exit_timer(struct cpu_state *cpu)
{
    cpu->timer_active = 0;
}

/* A timer callback starts. The tick only sets a flag: any other callback in the same interrupt is a better name. */
static __always_inline void idle_enter_timer(struct cpu_state *cpu, u64 function, int is_tick, int is_wheel)
{
    cpu->timer_active = function;
    if (!is_open(cpu))
        return;
    if (!is_wheel)
        idle_refine_evidence(cpu, cpu->period.evidence == EVIDENCE_DEVICE ? EVIDENCE_LOCAL_TIMER : EVIDENCE_HRTIMER, 0);
    if (is_tick) {
        cpu->period.flags |= IDLE_TICK;
    } else if (!cpu->period.timer_function) {
        cpu->period.timer_function = function;
        if (is_wheel)
            cpu->period.flags |= IDLE_TIMER_WHEEL;
    }
}

/* The context of a waking on this CPU. `in_interrupt`: the kernel's own count. It also covers interrupts that
 * tracepoints do not show: threaded handlers are woken after irq_handler_exit, irq_work has no end, some vectors have
 * no tracepoint. */
static __always_inline u32 idle_waker_context(struct cpu_state *cpu, u32 *irq, int in_interrupt)
{
    *irq = 0;
    if (cpu->timer_active)
        return WAKER_TIMER;
    if (cpu->hardirq) {
        *irq = cpu->hardirq - 1;
        return WAKER_DEVICE;
    }
    if (cpu->threaded_irq) {
        *irq = cpu->threaded_irq - 1;
        cpu->threaded_irq = 0;
        return WAKER_DEVICE;
    }
    if (in_interrupt)
        return WAKER_INTERRUPT;
    if (cpu->softirq && (is_open(cpu) || cpu->softirq_by_irq)) {
        *irq = cpu->softirq - 1;
        return WAKER_SOFTIRQ;
    }
    /* The current task is the idle task, so the waker is an interrupt without a tracepoint. */
    return is_open(cpu) ? WAKER_INTERRUPT : WAKER_TASK;
}

#endif
