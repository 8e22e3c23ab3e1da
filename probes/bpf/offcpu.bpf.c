/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* How long threads sleep and wait for a CPU, and who wakes them: summed by thread, nothing is sent.
 *
 * Question: what does a thread that does not run wait for?
 * Cost: two looks at a table a switch, one a waking, a clock each; a count at each interrupt.
 * Privileges: CAP_BPF and CAP_PERFMON (or root). Raw tracepoints only; every offset comes from the running kernel's BTF.
 * Checked against a program that counts its own sleeps (tests/system).
 *
 * The loader puts in front: OFFSET_*, ARG_*, HAVE_*, DIRECT, EVERY_PROCESS, THREADS, WAKERS.
 */
#define COMM_BYTES 16
#include "reading.bpf.h"
#include "comms.bpf.h"

#define STATE_INTERRUPTIBLE 0x1
#define STATE_UNINTERRUPTIBLE 0x2
#define STATE_DEAD 0x80
#define STATE_WAKEKILL 0x100
#define STATE_NOLOAD 0x400

/* Why a thread gave up its CPU. STATES of tracing/offcpu.py are in this order. */
enum reason { REASON_INTERRUPTIBLE, REASON_UNINTERRUPTIBLE, REASON_KILLABLE, REASON_IDLE, REASON_OTHER, REASON_PREEMPTED, REASONS = 8 };

struct thread {
    u64 out_ns;      /* when it was switched out; 0: it runs, or was switched out before the window */
    u64 woken_ns;    /* when it was woken last, 0: not since it ran */
    u64 waker;       /* process and thread; 0 is an interrupt */
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

/* `raised`: softirqs that interrupts raised and that have not run yet, a bit each. `soft`: such a one runs. `depth`: of
 * interrupts, where the kernel's own count is out of reach. */
struct interrupt {
    u64 depth, raised, soft;
};

BPF_HASH(targets, u32, u64, 4096);
BPF_HASH(threads, u64, struct thread, THREADS);
BPF_HASH(wakers, struct waker_key, struct waker, WAKERS);
BPF_ARRAY(window_open, u64, 1);
BPF_PERCPU_ARRAY(interrupts, struct interrupt, 1);
/* COUNT_UNSEEN: switches to a thread that this program was not called for, where the kernel calls none. */
enum counter { COUNT_LOST, COUNT_UNSEEN, COUNTERS };
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);

static __always_inline int window_is_open(void)
{
    int zero = 0;
    u64 *open = window_open.lookup(&zero);
    return open && *open;
}

static __always_inline void count(int what)
{
    u64 *value = counters.lookup(&what);
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
        return (u32)who != 0;
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
    struct waker *entry = wakers.lookup(&key), fresh = {};

    if (entry) {
        entry->count += 1;   /* one thread is switched in at a time */
        return;
    }
    fresh.count = 1;
    __builtin_memcpy(fresh.comm, thread->waker_comm, COMM_BYTES);
    if (wakers.update(&key, &fresh))
        count(COUNT_LOST);
}

/* A thread runs again since `now`; 0 where that is not known: then its sleep ended when it was woken, and what came after it until
 * it ran is in no sum. */
static __always_inline void note_switch_in(struct thread *thread, u64 who, u64 now)
{
    u64 out = thread->out_ns, woken = thread->woken_ns, reason = thread->reason & (REASONS - 1), off = now ? now - out : 0;

    thread->out_ns = thread->woken_ns = 0;
    if (!out)
        return;
    if (reason != REASON_PREEMPTED && woken) {
        /* Woken in the instant between leaving and the switch: it slept for no time. */
        woken = woken < out ? out : now && woken > now ? now : woken;
        off = woken - out;
        if (now) {
            thread->waits += 1;
            thread->wait_ns += now - woken;
            if (now - woken > thread->wait_max_ns)
                thread->wait_max_ns = now - woken;
        }
        count_waker(thread, who);
    }
    thread->counts[reason] += 1;
    thread->off_ns[reason] += off;
    if (reason != REASON_PREEMPTED && off > thread->sleep_max_ns)
        thread->sleep_max_ns = off;
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
    who = pid_tgid_of(prev);
    if (is_traced(who)) {
        thread = threads.lookup(&who);
        if (!thread) {
            struct thread fresh = {};
            if (threads.update(&who, &fresh))
                count(COUNT_LOST);
            thread = threads.lookup(&who);
        }
        if (LOAD_TIME(HAS_PREV_STATE))
            state = (u32)ctx->args[ARG_sched_switch_prev_state];
        else
            state = FIELD_U32(prev, OFFSET_task_struct_state);
        if (thread && thread->out_ns) {
            /* Switched out twice: it ran in between. */
            count(COUNT_UNSEEN);
            note_switch_in(thread, who, 0);
        }
        if (thread && !(state & STATE_DEAD)) {
            thread->out_ns = now;
            thread->reason = switch_reason((int)ctx->args[ARG_sched_switch_preempt], state);
            comm_of(prev, thread->comm);
        }
    }
    who = pid_tgid_of(next);
    thread = threads.lookup(&who);
    if (thread)
        note_switch_in(thread, who, now);
    return 0;
}

TYPED_TRACEPOINT_PROBE(sched_waking)
{
    u64 who, own;
    struct thread *thread;
    struct interrupt *interrupt;

    if (!window_is_open())
        return 0;
    who = pid_tgid_of(ctx->args[0]);
    thread = threads.lookup(&who);
    if (!thread)
        return 0;
    interrupt = this_interrupt();
    own = bpf_get_current_pid_tgid();
    thread->woken_ns = bpf_ktime_get_ns();
    if (interrupt && (is_in_interrupt(interrupt) || interrupt->soft))
        own = 0;
    thread->waker = own;
    if (own)
        own_comm(thread->waker_comm);
    return 0;
}

/* Who is woken within an interrupt is not woken by the thread that it came upon. Nor is he whom a softirq wakes that an interrupt
 * raised, wherever it runs; one that a thread raised is its own work: the loopback device hands a sender's packet on. */
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
        interrupt->depth -= interrupt->depth ? 1 : 0;   /* the first exit may lack its entry */
    return 0;
}

RAW_TRACEPOINT_IF(VECTORS_IN_PAIRS, irq_handler_entry) { return enter_interrupt(); }
RAW_TRACEPOINT_IF(VECTORS_IN_PAIRS, irq_handler_exit) { return leave_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_local_timer_entry, local_timer_entry) { return enter_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_local_timer_entry, local_timer_exit) { return leave_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_irq_work_entry, irq_work_entry) { return enter_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_irq_work_entry, irq_work_exit) { return leave_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_call_function_single_entry, call_function_single_entry) { return enter_interrupt(); }
RAW_TRACEPOINT_IF_BOTH(VECTORS_IN_PAIRS, HAVE_call_function_single_entry, call_function_single_exit) { return leave_interrupt(); }
