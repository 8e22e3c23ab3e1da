/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sum how long threads sleep and wait for a CPU, and count their wakers. Sums are kept per thread; no event is sent.
 *
 * Question: what does a thread wait for while it does not run?
 * Cost: per switch, two table look-ups and one clock read; per waking, one look-up and one clock read; per interrupt,
 *       one counter.
 * Privileges: CAP_BPF and CAP_PERFMON (or root). Raw tracepoints only; all offsets come from the running kernel's BTF.
 * Checked against a program that counts its own sleeps (tests/system).
 *
 * The loader defines OFFSET_*, ARG_*, HAVE_*, DIRECT, EVERY_PROCESS, THREADS and WAKERS.
 */
#define COMM_BYTES 16
#include "kernel_memory.bpf.h"
#include "running_ids.bpf.h"
#include "comms.bpf.h"

#define STATE_INTERRUPTIBLE 0x1
#define STATE_UNINTERRUPTIBLE 0x2
#define STATE_DEAD 0x80
#define STATE_WAKEKILL 0x100
#define STATE_NOLOAD 0x400

/* Why a thread left its CPU. OffCpuReason of shared_numbers.py is generated from this enum. */
enum reason {
    REASON_INTERRUPTIBLE, REASON_UNINTERRUPTIBLE, REASON_KILLABLE, REASON_IDLE, REASON_OTHER, REASON_PREEMPTED,
    REASONS = 8,
};

struct thread {
    u64 out_ns;      /* time of the last switch-out; 0: it runs, or left its CPU before the window */
    u64 woken_ns;    /* time of the last waking; 0: not woken since it ran */
    u64 waker;       /* process and thread; 0: an interrupt */
    u64 counts[REASONS];
    u64 off_ns[REASONS];
    u64 sleep_max_ns, waits, wait_ns, wait_max_ns;
    u64 reason;
    char comm[COMM_BYTES];
    char waker_comm[COMM_BYTES];
};

struct waker_key {
    u64 sleeper, waker;
};

struct waker {
    u64 count;
    char comm[COMM_BYTES];
};

/* Interrupt state of one CPU. `raised`: one bit per softirq that an interrupt raised and that is still pending.
 * `soft`: such a softirq is running. `depth`: nesting of interrupts, used if the kernel's own count is out of reach. */
struct interrupt {
    u64 depth, raised, soft;
};

BPF_HASH(targets, u32, u64, 4096);
BPF_HASH(threads, u64, struct thread, THREADS);
BPF_HASH(wakers, struct waker_key, struct waker, WAKERS);
BPF_ARRAY(window_open, u64, 1);
BPF_PERCPU_ARRAY(interrupts, struct interrupt, 1);
/* COUNT_UNSEEN: switches to a thread that did not call this program. Some kernels skip the call. */
enum counter { COUNT_LOST, COUNT_UNSEEN, COUNTERS };
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);

static __always_inline int window_is_open(void)
{
    int zero = 0;
    u64 *open = window_open.lookup(&zero);
    return open && *open;
}

static __always_inline void count(int counter)
{
    u64 *value = counters.lookup(&counter);
    if (value)
        *value += 1;
}

static __always_inline struct interrupt *this_interrupt(void)
{
    int zero = 0;
    return interrupts.lookup(&zero);
}

static __always_inline int is_in_interrupt(struct interrupt *interrupt)
{
    return in_interrupt() || interrupt->depth;
}

static __always_inline int is_traced(u64 who)
{
    u32 tgid = who >> 32;

    if (LOAD_TIME(EVERY_PROCESS))
        return (u32)who != 0 && !is_outside(who);
    return targets.lookup(&tgid) != 0;
}

static __always_inline u64 switch_reason(int preempted, u32 state)
{
    if (preempted || !state)
        return REASON_PREEMPTED;
    if (state & STATE_INTERRUPTIBLE)
        return REASON_INTERRUPTIBLE;
    if (!(state & STATE_UNINTERRUPTIBLE))
        return REASON_OTHER;
    return state & STATE_WAKEKILL ? REASON_KILLABLE : state & STATE_NOLOAD ? REASON_IDLE : REASON_UNINTERRUPTIBLE;
}

static __always_inline void count_waker(struct thread *thread, u64 who)
{
    struct waker_key key = { .sleeper = who, .waker = thread->waker };
    struct waker *entry = wakers.lookup(&key), new_waker = {};

    if (entry) {
        entry->count += 1;   /* only one CPU at a time switches this thread in */
        return;
    }
    new_waker.count = 1;
    __builtin_memcpy(new_waker.comm, thread->waker_comm, COMM_BYTES);
    if (wakers.update(&key, &new_waker))
        count(COUNT_LOST);
}

/* A thread is switched in at `now`. 0: the time is unknown. The sleep then ends at the waking, and the time from the
 * waking to the switch is left out of all sums. */
static __always_inline void note_switch_in(struct thread *thread, u64 who, u64 now)
{
    u64 out_ns = thread->out_ns, woken_ns = thread->woken_ns, reason = thread->reason & (REASONS - 1);
    u64 off_ns = now ? now - out_ns : 0;

    thread->out_ns = thread->woken_ns = 0;
    if (!out_ns)
        return;
    if (reason != REASON_PREEMPTED && woken_ns) {
        /* The thread was woken after it decided to sleep and before the switch: the sleep took no time. */
        woken_ns = woken_ns < out_ns ? out_ns : now && woken_ns > now ? now : woken_ns;
        off_ns = woken_ns - out_ns;
        if (now) {
            thread->waits += 1;
            thread->wait_ns += now - woken_ns;
            if (now - woken_ns > thread->wait_max_ns)
                thread->wait_max_ns = now - woken_ns;
        }
        count_waker(thread, who);
    }
    thread->counts[reason] += 1;
    thread->off_ns[reason] += off_ns;
    if (reason != REASON_PREEMPTED && off_ns > thread->sleep_max_ns)
        thread->sleep_max_ns = off_ns;
}

TYPED_TRACEPOINT_PROBE(sched_switch)
{
    u64 prev = ctx->args[ARG_sched_switch_prev], next = ctx->args[ARG_sched_switch_next];
    u64 now, who;
    struct thread *thread;
    u32 state;

    if (!window_is_open())
        return 0;
    now = bpf_ktime_get_ns();
    who = LOAD_TIME(PID_LEVEL) ? ids_of_previous(prev) : pid_tgid_of(prev);
    if (is_traced(who)) {
        thread = threads.lookup(&who);
        if (!thread) {
            struct thread new_thread = {};
            if (threads.update(&who, &new_thread))
                count(COUNT_LOST);
            thread = threads.lookup(&who);
        }
        if (LOAD_TIME(HAS_PREV_STATE))
            state = (u32)ctx->args[ARG_sched_switch_prev_state];
        else
            state = FIELD_U32(prev, OFFSET_task_struct_state);
        if (thread && thread->out_ns) {
            /* Two switch-outs in sequence: the switch-in between them was missed. */
            count(COUNT_UNSEEN);
            note_switch_in(thread, who, 0);
        }
        if (thread)
            comm_of(prev, thread->comm);   /* a thread may name itself after its last sleep */
        if (thread && !(state & STATE_DEAD)) {
            thread->out_ns = now;
            thread->reason = switch_reason((int)ctx->args[ARG_sched_switch_preempt], state);
        }
    }
    note_running(next);
    who = pid_tgid_of(next);
    thread = threads.lookup(&who);
    if (thread)
        note_switch_in(thread, who, now);
    return 0;
}

TYPED_TRACEPOINT_PROBE(sched_waking)
{
    u64 who, waker;
    struct thread *thread;
    struct interrupt *interrupt;

    if (!window_is_open())
        return 0;
    who = pid_tgid_of(ctx->args[0]);
    thread = threads.lookup(&who);
    if (!thread)
        return 0;
    interrupt = this_interrupt();
    waker = current_pid_tgid();
    thread->woken_ns = bpf_ktime_get_ns();
    if (interrupt && (is_in_interrupt(interrupt) || interrupt->soft))
        waker = 0;
    thread->waker = waker;
    if (waker)
        own_comm(thread->waker_comm);
    return 0;
}

/* A thread that is woken in an interrupt was not woken by the interrupted thread. The same holds for a waking in a
 * softirq that an interrupt raised, on any CPU and in any context. A softirq that a thread raised is the thread's own
 * work: the loopback device, for example, delivers a sender's packet in one. */
RAW_TRACEPOINT_PROBE(softirq_raise)
{
    struct interrupt *interrupt = this_interrupt();
    if (interrupt && (is_in_interrupt(interrupt) || interrupt->soft))
        interrupt->raised |= 1ULL << (ctx->args[0] & 63);
    return 0;
}

RAW_TRACEPOINT_PROBE(softirq_entry)
{
    struct interrupt *interrupt = this_interrupt();
    u64 bit = 1ULL << (ctx->args[0] & 63);
    if (interrupt) {
        interrupt->soft = (interrupt->raised & bit) != 0;
        interrupt->raised &= ~bit;
    }
    return 0;
}

RAW_TRACEPOINT_PROBE(softirq_exit)
{
    struct interrupt *interrupt = this_interrupt();
    if (interrupt)
        interrupt->soft = 0;
    return 0;
}

static __always_inline int enter_interrupt(void)
{
    struct interrupt *interrupt = this_interrupt();
    if (interrupt)
        interrupt->depth += 1;
    return 0;
}

static __always_inline int leave_interrupt(void)
{
    struct interrupt *interrupt = this_interrupt();
    if (interrupt)
        interrupt->depth -= interrupt->depth ? 1 : 0;   /* the first exit may have no entry */
    return 0;
}

RAW_TRACEPOINT_IF(VECTORS_IN_PAIRS, irq_handler_entry) { return enter_interrupt(); }
RAW_TRACEPOINT_IF(VECTORS_IN_PAIRS, irq_handler_exit) { return leave_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_local_timer_entry, local_timer_entry) { return enter_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_local_timer_entry, local_timer_exit) { return leave_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_irq_work_entry, irq_work_entry) { return enter_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_irq_work_entry, irq_work_exit) { return leave_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_call_function_single_entry, call_function_single_entry)
{
    return enter_interrupt();
}

RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_call_function_single_entry, call_function_single_exit)
{
    return leave_interrupt();
}
