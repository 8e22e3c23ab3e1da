/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The idle-exit state machine: what ended each idle period of a CPU, and who ran because of it.
 *
 * Question: why did this CPU leave idle, and which thread ran?
 * It is plain C without helpers, so that the very code that runs in the kernel is compiled natively by the tests
 * and fed with recorded event streams.
 *
 * One period runs from one idle entry to the next. Everything seen on the CPU between the entry and the first
 * switch to a task (or the next entry) is evidence about its end, whether it comes before the exit event (HLT:
 * handlers run inside the halt) or after it (MWAIT entered with interrupts off): no order is assumed.
 * The first piece of evidence names the mechanism. A period is reported when the CPU idles again, so that the
 * running time that followed is part of it. A CPU's first period is cut by the start and never reported.
 */
#ifndef POWERPROF_IDLE_EXIT_H
#define POWERPROF_IDLE_EXIT_H

#include "idle_period.h"

static __attribute__((always_inline)) inline int is_open(struct cpu_state *cpu)
{
    return cpu->phase == PHASE_IDLE || cpu->phase == PHASE_LEFT;
}

/* What was seen so far did not end the period. */
static __attribute__((always_inline)) inline void idle_clear_evidence(struct idle_exit *period)
{
    period->evidence = EVIDENCE_NONE;
    period->irq = 0;
    period->timer_function = 0;
    period->woken_tid = 0;
    period->flags &= ~(IDLE_TICK | IDLE_TIMER_WHEEL);
}

/* The CPU goes idle. Returns 1 when the period before is whole: the caller then takes a copy of cpu->period
 * before idle_restart(). */
static __attribute__((always_inline)) inline int idle_enter(struct cpu_state *cpu, u64 now)
{
    int whole = cpu->phase == PHASE_LEFT || cpu->phase == PHASE_RUNNING;

    if (cpu->phase == PHASE_LEFT) {
        cpu->period.flags |= IDLE_NO_TASK;
        cpu->own_ns = 0;
        cpu->kernel_ns = now - cpu->period.exit_ns;
        /* Nobody set the flag that ends a poll: it came to its own end, whatever interrupts there were. */
        if (cpu->period.flags & IDLE_POLLED && cpu->period.evidence != EVIDENCE_NO_IPI)
            idle_clear_evidence(&cpu->period);
    }
    cpu->is_own = 0;
    /* A CPU that was offline meanwhile ran until it went. */
    cpu->period.next_ns = cpu->down_ns > cpu->period.exit_ns ? cpu->down_ns : now;
    cpu->down_ns = 0;
    return whole;
}

/* Begin the next period; `flags` are IDLE_POLLED or none. */
static __attribute__((always_inline)) inline void idle_restart(struct cpu_state *cpu, u64 now, u32 cpu_number, u32 state, u32 flags)
{
    struct idle_exit *period = &cpu->period;
    u32 sequence = period->sequence + 1;

    __builtin_memset(period, 0, sizeof(*period));
    period->enter_ns = now;
    period->cpu = cpu_number;
    period->state = state;
    period->sequence = sequence;
    period->flags = flags;
    cpu->phase = PHASE_IDLE;
    /* The idle loop is no handler: whatever was not seen to end has ended. */
    cpu->hardirq = 0;
    cpu->softirq = 0;
    cpu->vector = 0;
    cpu->threaded = 0;
    cpu->timer_active = 0;
}

static __attribute__((always_inline)) inline void idle_leave(struct cpu_state *cpu, u64 now)
{
    if (cpu->phase != PHASE_IDLE)
        return;
    cpu->period.exit_ns = now;
    cpu->idled_ns += now - cpu->period.enter_ns;
    cpu->phase = PHASE_LEFT;
}

/* A poll goes on after an interrupt: the next one may be what ends it, and forgets the one before. Softirqs and hrtimers are part
 * of the interrupt that was seen already. */
static __attribute__((always_inline)) inline int can_replace_evidence(struct idle_exit *period, u32 by)
{
    return period->flags & IDLE_POLLED && period->evidence != EVIDENCE_NO_IPI && by != EVIDENCE_HRTIMER && by != EVIDENCE_SOFTIRQ;
}

/* The first evidence wins: what comes later is a consequence, or came too late to matter. Polls are the exception. */
static __attribute__((always_inline)) inline void idle_add_evidence(struct cpu_state *cpu, u32 evidence, u32 irq)
{
    if (!is_open(cpu))
        return;
    if (cpu->period.evidence) {
        if (!can_replace_evidence(&cpu->period, evidence))
            return;
        idle_clear_evidence(&cpu->period);
    }
    cpu->period.evidence = evidence;
    cpu->period.irq = irq;
}

/* What the device interrupt that is being handled really is. On arm64 the CPU's timer and its IPIs are interrupts
 * with numbers like any device's, and so are x86's timers beside the local one: an expiring hrtimer, or the IPI's own
 * tracepoint, tells them apart from within the handler. */
static __attribute__((always_inline)) inline void idle_refine_evidence(struct cpu_state *cpu, u32 evidence, u32 irq)
{
    if (!is_open(cpu))
        return;
    if (cpu->period.evidence == EVIDENCE_DEVICE && cpu->hardirq && cpu->hardirq - 1 == cpu->period.irq) {
        cpu->period.evidence = evidence;
        cpu->period.irq = irq;
        return;
    }
    idle_add_evidence(cpu, evidence, irq);
}

/* A task is woken from this CPU: everything about the waking that the CPU's state tells. Its own fields (ip, sp, code,
 * waker_comm) are the caller's. */
static __attribute__((always_inline)) inline void idle_fill_waking(struct cpu_state *cpu, struct waking *waking, u32 number, u32 wakee_tid,
                                                              u64 waker, u32 context, u32 irq)
{
    waking->wakee_tid = wakee_tid;
    waking->waker_tid = (u32)waker;
    waking->waker_tgid = waker >> 32;
    waking->waker_cpu = number;
    waking->context = context;
    waking->irq = irq;
    waking->timer_function = cpu->timer_active;
    waking->ip = 0;
    waking->evidence = cpu->period.evidence;
    waking->evidence_irq = cpu->period.irq;
    waking->sequence = cpu->period.sequence;
    if (is_open(cpu) && !cpu->period.woken_tid)
        cpu->period.woken_tid = wakee_tid;
}

/* The state of a thread that is switched out for the last time (include/linux/sched.h, since Linux 4.14). */
#define STATE_DEAD 0x80

/* Whether a switch-out puts the thread to sleep. A thread that is preempted stays on the run queue, whatever state it
 * has set: between set_current_state() and schedule() it is no sleeper yet, and no waking follows. `state` is the
 * task's own: one that had a signal pending was set running again, and nothing wakes one that is dead. */
static __attribute__((always_inline)) inline int is_sleep(int preempted, u32 state)
{
    return !preempted && state && !(state & STATE_DEAD);
}

/* Whether a waking is what made the thread run now: it has not been switched out since. One that was woken on its way out may
 * have been counted once more. */
static __attribute__((always_inline)) inline int is_waking_of(struct waking *waking, u32 tid, u64 switches)
{
    return waking && waking->wakee_tid == tid &&
           (waking->switches == switches || (waking->on_cpu && waking->switches + 1 == switches));
}

/* The CPU goes on from idle to a task. */
static __attribute__((always_inline)) inline void idle_start_task(struct cpu_state *cpu, u64 now, u32 tid, u32 tgid)
{
    idle_leave(cpu, now);   /* where the exit event was not seen: the switch is the latest it can have been */
    cpu->phase = PHASE_RUNNING;
    cpu->period.next_tid = tid;
    cpu->period.next_tgid = tgid;
    cpu->own_ns = 0;
    cpu->is_own = 1;
    cpu->kernel_ns = now - cpu->period.exit_ns;
}

/* A thread that ran for so long leaves the CPU. Of the thread that the period was ended for, all until it sleeps is because of that. */
static __attribute__((always_inline)) inline void idle_add_task_time(struct cpu_state *cpu, u32 tid, u64 ns, int preempted)
{
    if (!cpu->is_own || cpu->period.next_tid != tid)
        return;
    cpu->own_ns += ns;
    cpu->is_own = preempted;
}

/* What ended a poll is what set the flag: the interrupt that woke the thread that now runs, or another CPU, which sent no interrupt
 * where the poll's own did not come. Of other threads the last interrupt is the best that is known. */
static __attribute__((always_inline)) inline void idle_set_poll_evidence(struct idle_exit *period, struct waking *waking)
{
    if (waking->waker_cpu == period->cpu) {
        if (waking->sequence != period->sequence || waking->evidence == period->evidence)
            return;
        period->evidence = waking->evidence;
        period->irq = waking->evidence_irq;
    } else if (period->evidence != EVIDENCE_RESCHEDULE && period->evidence != EVIDENCE_CALL_FUNCTION) {
        idle_clear_evidence(period);
        period->evidence = EVIDENCE_NO_IPI;
    }
}

/* This CPU is being taken offline; called again until it is. */
static __attribute__((always_inline)) inline void idle_set_offline(struct cpu_state *cpu, u64 now)
{
    cpu->down_ns = now;
}

/* The CPU switches from the idle task to a task that had been switched out so often; `waking` may be null. Returns 1 if this
 * ended an idle period. A task that nothing woke since it last ran was runnable all the time. */
static __attribute__((always_inline)) inline int idle_switch(struct cpu_state *cpu, u64 now, u32 tid, u32 tgid, u64 switches,
                                                             struct waking *waking)
{
    struct idle_exit *period = &cpu->period;

    if (!is_open(cpu))
        return 0;
    idle_start_task(cpu, now, tid, tgid);
    if (is_waking_of(waking, tid, switches)) {
        if (period->flags & IDLE_POLLED)
            idle_set_poll_evidence(period, waking);
        period->flags |= IDLE_WAKER;
        if (waking->is_kernel && waking->context == WAKER_TASK)
            period->flags |= IDLE_WAKER_KERNEL;
        period->waker_timer_function = waking->timer_function;
        period->waker_tid = waking->waker_tid;
        period->waker_tgid = waking->waker_tgid;
        period->waker_cpu = waking->waker_cpu;
        period->waker_context = waking->context;
        period->waker_irq = waking->irq;
        if (waking->ip) {
            period->flags |= IDLE_WAKER_SITE;
            period->waker_ip = waking->ip;
            period->waker_sp = waking->sp;
            period->waker_code = waking->code;
        }
        __builtin_memcpy(period->waker_comm, waking->waker_comm, COMM_BYTES);
    } else {
        period->flags |= IDLE_RUNNABLE;
    }
    return 1;
}

#endif
