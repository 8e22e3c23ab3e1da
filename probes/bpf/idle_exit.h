/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The idle-exit state machine: the event that ended each idle period of a CPU, and the thread that ran afterwards.
 *
 * Question: why did this CPU leave idle, and which thread ran?
 *
 * It is plain C without BPF helpers. The tests compile the same code natively and feed it with recorded events.
 *
 * A period lasts from one idle entry to the next. Everything that happens on the CPU between the entry and the first
 * switch to a task (or the next entry) is evidence for the end of idle. It may come before the exit event (HLT:
 * handlers run inside the halt) or after it (MWAIT with interrupts disabled), so no order is assumed. The first
 * evidence names the mechanism. A period is reported when the CPU idles again, so it includes the running time after
 * the exit. The first period of a CPU began before tracing and is not reported.
 */
#ifndef POWERPROF_IDLE_EXIT_H
#define POWERPROF_IDLE_EXIT_H

#include "idle_period.h"

static __always_inline int is_open(struct cpu_state *cpu)
{
    return cpu->phase == PHASE_IDLE || cpu->phase == PHASE_LEFT;
}

/* Forget the evidence so far: it did not end the period. */
static __always_inline void idle_clear_evidence(struct idle_exit *period)
{
    period->evidence = EVIDENCE_NONE;
    period->irq = 0;
    period->timer_function = 0;
    period->woken_tid = 0;
    period->flags &= ~(IDLE_TICK | IDLE_TIMER_WHEEL);
}

/* Enter idle. Returns 1 if the previous period is complete: copy cpu->period before idle_restart(). */
static __always_inline int idle_enter(struct cpu_state *cpu, u64 now)
{
    int whole = cpu->phase == PHASE_LEFT || cpu->phase == PHASE_RUNNING;

    if (cpu->phase == PHASE_LEFT) {
        cpu->period.flags |= IDLE_NO_TASK;
        cpu->own_ns = 0;
        cpu->kernel_ns = now - cpu->period.exit_ns;
        /* No CPU set the flag that ends a poll. The poll ended at its own limit, independent of interrupts. */
        if (cpu->period.flags & IDLE_POLLED && cpu->period.evidence != EVIDENCE_NO_IPI)
            idle_clear_evidence(&cpu->period);
    }
    cpu->is_task_awake = 0;
    /* A CPU that was taken offline ran until it went offline. */
    cpu->period.next_ns = cpu->offline_ns > cpu->period.exit_ns ? cpu->offline_ns : now;
    cpu->offline_ns = 0;
    return whole;
}

/* Begin the next period. `flags` is IDLE_POLLED or 0. */
static __always_inline void idle_restart(struct cpu_state *cpu, u64 now, u32 cpu_number, u32 state, u32 flags)
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
    /* The idle loop runs outside all handlers, so a handler without an exit event has ended. */
    cpu->hardirq = 0;
    cpu->softirq = 0;
    cpu->vector = 0;
    cpu->threaded_irq = 0;
    cpu->timer_active = 0;
}

static __always_inline void idle_leave(struct cpu_state *cpu, u64 now)
{
    if (cpu->phase != PHASE_IDLE)
        return;
    cpu->period.exit_ns = now;
    cpu->idled_ns += now - cpu->period.enter_ns;
    cpu->phase = PHASE_LEFT;
}

/* A poll continues after an interrupt. A later interrupt may end it, and then replaces the evidence of the earlier
 * one. Softirqs and hrtimers belong to an interrupt that was seen already. */
static __always_inline int can_replace_evidence(struct idle_exit *period, u32 by)
{
    return period->flags & IDLE_POLLED && period->evidence != EVIDENCE_NO_IPI && by != EVIDENCE_HRTIMER &&
           by != EVIDENCE_SOFTIRQ;
}

/* Keep the first evidence. Later events are its consequences, or came too late. Polls are the exception. */
static __always_inline void idle_add_evidence(struct cpu_state *cpu, u32 evidence, u32 irq)
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

/* Set the kind of the device interrupt in progress. On arm64 the CPU's timer and its IPIs have interrupt numbers like
 * devices, and x86 has such timers besides the local one. An expiring hrtimer or the IPI's own tracepoint, seen in the
 * handler, gives the real kind. */
static __always_inline void idle_refine_evidence(struct cpu_state *cpu, u32 evidence, u32 irq)
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

/* A task is woken on this CPU. Copy the state of the CPU into `waking`. The caller sets ip, sp, code and waker_comm. */
static __always_inline void idle_fill_waking(struct cpu_state *cpu, struct waking *waking, u32 number, u32 wakee_tid,
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

/* The state of a thread at its last switch-out (include/linux/sched.h, since Linux 4.14). */
#define STATE_DEAD 0x80

/* Whether a switch-out puts the thread to sleep. A preempted thread stays on the run queue in any state: between
 * set_current_state() and schedule() it does not sleep yet, and no waking follows. `state` is the state after
 * schedule(): it is 0 for a thread with a pending signal, and dead threads are never woken. */
static __always_inline int is_sleep(int preempted, u32 state)
{
    return !preempted && state && !(state & STATE_DEAD);
}

/* Whether a waking made the thread run: the thread has not been switched out since. A thread that was woken during its
 * switch-out may have one switch more. */
static __always_inline int is_waking_of(struct waking *waking, u32 tid, u64 switches)
{
    return waking && waking->wakee_tid == tid &&
           (waking->switches == switches || (waking->on_cpu && waking->switches + 1 == switches));
}

/* Switch from idle to a task. */
static __always_inline void idle_start_task(struct cpu_state *cpu, u64 now, u32 tid, u32 tgid)
{
    idle_leave(cpu, now);   /* if the exit event was missed, the switch is the latest possible time of the exit */
    cpu->phase = PHASE_RUNNING;
    cpu->period.next_tid = tid;
    cpu->period.next_tgid = tgid;
    cpu->own_ns = 0;
    cpu->is_task_awake = 1;
    cpu->kernel_ns = now - cpu->period.exit_ns;
}

/* A thread leaves the CPU after it ran for `ns`. If the period ended because of it, all its time until it sleeps
 * counts. */
static __always_inline void idle_add_task_time(struct cpu_state *cpu, u32 tid, u64 ns, int preempted)
{
    if (!cpu->is_task_awake || cpu->period.next_tid != tid)
        return;
    cpu->own_ns += ns;
    cpu->is_task_awake = preempted;
}

/* A poll ends when a flag is set: by the interrupt that woke the next thread, or by another CPU. In the second case the
 * evidence is an IPI, or the other CPU sent no interrupt. For other threads, the last interrupt is the best
 * evidence. */
static __always_inline void idle_set_poll_evidence(struct idle_exit *period, struct waking *waking)
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

/* This CPU is going offline. Called at each step. */
static __always_inline void idle_set_offline(struct cpu_state *cpu, u64 now)
{
    cpu->offline_ns = now;
}

/* Switch from the idle task to a task with `switches` switch-outs so far; `waking` may be null. Returns 1 if this
 * ended an idle period. A task that was not woken since it last ran was runnable all the time. */
static __always_inline int idle_switch(struct cpu_state *cpu, u64 now, u32 tid, u32 tgid, u64 switches,
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
