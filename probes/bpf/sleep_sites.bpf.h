/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Record the call sites where target threads sleep, and where they wake other threads.
 *
 * Every waking of a target thread is counted by its sleep site and its waker, on idle and on busy CPUs.
 */
#include "targets.bpf.h"
#include "threads.bpf.h"
#include "stacks.bpf.h"
#include "exited_cgroups.bpf.h"

#define WOKEN_SITES 32768

/* A sleep site and the cause of the waking, as in struct waking. `context` includes CAUSE_HALF. */
struct woken_key {
    u64 ip, sp, code, timer_function;
    u32 tid, tgid, context, irq, waker_tgid, waker_tid;
};

BPF_TABLE("hash", struct woken_key, u64, woken, ENTRIES_IF(STACKS, WOKEN_SITES));

/* Count the end of a sleep at a site. If the table is full, COUNT_LOST_WAKINGS counts it. */
static __always_inline void count_waking(struct site *site, u32 tid, u32 tgid, u64 timer, u32 context, u32 irq, u64 waker)
{
    struct woken_key key = {};
    u64 one = 1, *wakings;
    s64 *half = shared_at(SHARED_WOKEN_HALF);

    key.ip = site->ip;
    key.sp = site->sp;
    key.code = site->code;
    key.tid = tid;
    key.tgid = tgid;
    key.context = context | (half ? (u32)*half : 0);
    key.timer_function = timer;
    key.irq = irq;
    if (context == WAKER_TASK) {
        key.waker_tid = (u32)waker;
        key.waker_tgid = waker >> 32;
    }
    wakings = woken.lookup(&key);
    if (wakings)
        __sync_fetch_and_add(wakings, 1);
    else if (woken.update(&key, &one))
        count(COUNT_LOST_WAKINGS);
    else
        note_filled(TABLE_WOKEN, 1);
}

static __always_inline int is_counting(struct cpu_state *cpu)
{
    s64 *counting;

    if (!LOAD_TIME(STACKS))
        return 0;
    counting = shared_at(SHARED_COUNTING);
    return counting && *counting && !is_loaded(cpu);
}

/* Return whether a thread sleeps: it is off its CPU and not in the run queue, or remains there only until a delayed
 * dequeue (sched_delayed, since 6.12). If its timeout expires before it calls schedule(), a thread is woken without a
 * sleep. */
static __always_inline int is_asleep(u64 task)
{
    if (LOAD_TIME(HAS_ON_CPU) && FIELD_U8(task, OFFSET_task_struct_on_cpu))
        return 0;
    /* By kernel, on_rq is a byte or the low byte of an int. */
    return !FIELD_U8(task, OFFSET_task_struct_on_rq) || FIELD_U8(task, OFFSET_task_struct_sched_delayed);
}

/* Note that a thread is being woken. If it slept when the trace began, only its registers show the site. */
static __always_inline void note_waking(struct cpu_state *cpu, u64 task, u32 tid, u32 tgid, u32 context, u32 irq, u64 waker)
{
    struct thread *thread = thread_at(tid);
    struct site found = {};
    u64 registers;

    if (!thread || (u32)waker == tid || !is_process_measured(tgid))
        return;   /* the current thread does not sleep: a timer interrupted it */
    if (thread->tid == tid) {
        if (!thread->asleep)
            return;   /* it was not asleep yet */
        thread->asleep = 0;
        count_waking(&thread->sleeper, tid, thread->tgid, cpu->timer_active, context, irq, waker);
        return;
    }
    if (!is_target(tgid) || !is_asleep(task))
        return;
    registers = user_registers(task);
    if (!registers)
        return;
    if (read_ip_sp(registers, &found.ip, &found.sp))
        send_registers(registers, found.ip, found.sp, tid, tgid, bpf_ktime_get_ns());
    else if (!set_worker_site(&found, task))
        return;
    count_waking(&found, tid, tgid, cpu->timer_active, context, irq, waker);
}

/* Assign a slot to a thread. */
static __always_inline void take_slot(struct thread *thread, u32 tid, u32 tgid)
{
    __builtin_memset(thread, 0, sizeof(*thread));
    thread->tid = tid;
    thread->tgid = tgid;
}

/* Note the first waking of a new thread. It is at the start of threads and has no stack to copy. A new process has its
 * parent's stack. */
static __always_inline void note_birth(u64 task, u32 tid, u32 tgid)
{
    struct thread *thread = thread_at(tid);
    u64 registers = user_registers(task);

    if (!thread || !registers || tid == tgid || !is_target(tgid))
        return;
    take_slot(thread, tid, tgid);
    read_ip_sp(registers, &thread->sleeper.ip, &thread->sleeper.sp);
    thread->sleeper.code = CODE_NEWBORN;
}

/* Return the slot of a target thread whose stack is to be captured now, or null. `is_known`: the slot is assigned to
 * it. */
static __always_inline struct thread *slot_to_capture(struct cpu_state *cpu, u32 tid, u32 tgid, int *is_known)
{
    struct thread *thread;

    if (is_not_target(tgid) || is_capture_skipped(cpu, tid, tgid))
        return 0;
    thread = thread_at(tid);
    if (!thread)
        return 0;
    *is_known = thread->tid == tid && thread->tgid == tgid;
    if (!*is_known && !is_target(tgid))
        return 0;
    count_capture(cpu);
    return thread;
}

/* Note that a target thread goes to sleep. */
static __always_inline void note_sleep(struct cpu_state *cpu, u64 task, u64 pid_tgid)
{
    u32 tid = (u32)pid_tgid, tgid = pid_tgid >> 32;
    struct thread *thread;
    int is_known;

    /* Any process shows where registers are. Do this first, because the first event of a quiet target is a waking. */
    find_registers(task);
    thread = slot_to_capture(cpu, tid, tgid, &is_known);
    if (!thread || !is_sleep(0, FIELD_U32(task, OFFSET_task_struct_state)))
        return;   /* or a signal was pending */
    count(COUNT_SLEEPS);
    if (!is_known)
        take_slot(thread, tid, tgid);
    else if (thread->asleep && is_counting(cpu) && is_process_measured(tgid))
        /* It was woken between the switch-out and this probe, by an unknown waker. */
        count_waking(&thread->sleeper, tid, tgid, 0, WAKER_UNSEEN, 0, 0);
    thread->asleep = capture_current(cpu, &thread->sleeper, task, pid_tgid, STACK_SLEEPER) && is_process_measured(tgid);
}

/* Record the sleep site of a thread that an idle CPU switches to. If its switch-out was not captured (it slept before
 * the trace began, or the CPU was loaded), send its registers. User space joins them with stack bytes from another
 * source. */
static __always_inline void note_site(struct cpu_state *cpu, u64 task, u32 tid, u32 tgid)
{
    int slot = tid & (SITE_SLOTS - 1);
    struct thread *thread = thread_at(tid);
    struct site worker = {};
    u64 registers, ip, sp;
    u32 *request;

    if (!is_target(tgid))
        return;
    registers = user_registers(task);
    if (!registers)
        return;
    if (!read_ip_sp(registers, &ip, &sp)) {
        if (!set_worker_site(&worker, task))
            return;
        cpu->period.site_ip = cpu->period.site_sp = 0;
        cpu->period.site_code = CODE_WORKER;
        cpu->period.flags |= IDLE_SITE | IDLE_SITE_FRESH;
        return;
    }
    cpu->period.site_ip = ip;
    cpu->period.site_sp = sp;
    cpu->period.flags |= IDLE_SITE;
    request = requested.lookup(&slot);
    if (LOAD_TIME(ON_DEMAND) && request)
        *request = tid;
    if (thread && thread->tid == tid && thread->sleeper.ip == cpu->period.site_ip &&
        thread->sleeper.sp == cpu->period.site_sp) {
        cpu->period.site_code = thread->sleeper.code;
        cpu->period.flags |= IDLE_SITE_FRESH;
        return;
    }
    if (request)
        *request = tid;
    send_registers(registers, cpu->period.site_ip, cpu->period.site_sp, tid, tgid, cpu->period.enter_ns);
}

/* Record the site where the current thread wakes another thread. */
static __always_inline void note_waker(struct cpu_state *cpu, struct waking *waking, u64 pid_tgid)
{
    u32 tid = (u32)pid_tgid, tgid = pid_tgid >> 32;
    int is_known;
    struct thread *thread = slot_to_capture(cpu, tid, tgid, &is_known);

    if (!thread)
        return;
    if (!is_known)
        take_slot(thread, tid, tgid);
    if (!capture_current(cpu, &thread->waker, CURRENT_TASK, pid_tgid, STACK_WAKER))
        return;
    waking->ip = thread->waker.ip;
    waking->sp = thread->waker.sp;
    waking->code = thread->waker.code;
}
