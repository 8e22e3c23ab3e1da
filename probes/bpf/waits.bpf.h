/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a statement waits for while its thread does not run.
 *
 * For a CPU: the scheduler's own count (sched_info.run_delay), which it keeps for each thread. For anything else: by the system call in
 * which the thread left its CPU, and where the server says what it waits for, by that: MariaDB and MySQL call thd_wait_begin before they
 * wait for a lock or for the group that commits, PostgreSQL writes its wait event where my_wait_event_info points to. A thread that waits
 * uninterruptibly waits for a disk. What it waited for the CPU after it was woken is no part of the sleep.
 */
#define CALLS 512            /* system calls of x86-64 */
#define SERVER_WAITS 16      /* enum thd_wait_type: include/mysql/service_thd_wait.h */
#define STATE_UNINTERRUPTIBLE 0x2
#define STATE_NOLOAD 0x400   /* include/linux/sched.h: an idle one of the kernel */
#define REGISTER_CALL 15     /* orig_ax of struct pt_regs */

BPF_ARRAY(wait_of_call, u32, CALLS);
BPF_ARRAY(wait_of_type, u32, SERVER_WAITS);
BPF_ARRAY(event_place, u64, 1);   /* PostgreSQL: the address of my_wait_event_info */

/* What the thread waited for a CPU since it was born, until it got the last one. */
static __always_inline u64 delay_of(u64 task)
{
    return LOAD_TIME(HAS_RUN_DELAY) ? read_u64(task + OFFSET_task_struct_sched_info + OFFSET_sched_info_run_delay) : 0;
}

/* CALLS where it is not known. */
static __always_inline u64 current_call(void)
{
    if (!LOAD_TIME(HAS_REGISTERS))
        return CALLS;
    return read_u64((u64)bpf_task_pt_regs(bpf_get_current_task_btf()) + 8 * REGISTER_CALL);
}

static __always_inline u32 by_call(u32 state)
{
    u64 call = current_call();
    u32 at = call < CALLS ? call : 0, *wait = wait_of_call.lookup(&at);

    if ((state & STATE_UNINTERRUPTIBLE) && !(state & STATE_NOLOAD))
        return wait && *wait == WAIT_SYNC ? WAIT_SYNC : WAIT_DISK;
    return wait && call < CALLS ? *wait : WAIT_OTHER;
}

#if IS_POSTGRESQL
/* src/include/utils/wait_event.h: the class in the highest byte, since 9.6; of locks the kind (enum LockTagType) in the low ones. */
static __always_inline u32 by_event(void)
{
    int zero = 0;
    u64 *place = event_place.lookup(&zero), address = 0;
    u32 event = 0, kind;

    if (!place || !*place || bpf_probe_read_user(&address, sizeof(address), (void *)*place)
        || bpf_probe_read_user(&event, sizeof(event), (void *)address))
        return WAIT_OTHER;
    kind = event & 0xffff;
    switch (event >> 24) {
    case 0x01:               /* lightweight locks */
    case 0x04:               /* buffers that another one has pinned */
        return WAIT_LATCH;
    case 0x03:
        return kind == 4 || kind == 5 || kind == 7 ? WAIT_ROW_LOCK : WAIT_LOCK;   /* tuple, transaction, token */
    case 0x06:
        return WAIT_CLIENT;
    case 0x09:
        return WAIT_SLEEP;
    case 0x0a:
        return WAIT_DISK;
    }
    return WAIT_OTHER;
}
#endif

/* What a thread goes to wait for, in its own context. */
static __always_inline u32 why_out(struct thread *thread, u32 state)
{
    u32 why = by_call(state), *told, type;

#if IS_POSTGRESQL
    told = 0;
    type = by_event();
    return why == WAIT_SYNC || type == WAIT_OTHER ? why : type;
#else
    type = thread->waits_for;
    told = type && type < SERVER_WAITS ? wait_of_type.lookup(&type) : 0;
    return told && *told != WAIT_OTHER ? *told : why;
#endif
}

static __always_inline void add_wait(struct thread *thread, u32 why, u64 ns)
{
    if (why < WAITS)
        thread->waits[why] += ns;
    thread->has_waited = 1;
}

/* A sleep is over, and the scheduler has counted what came between it and the CPU. */
static __always_inline void settle(struct thread *thread, u64 delay)
{
    u64 queued = delay - thread->out_delay;

    if (thread->slept > queued)
        add_wait(thread, thread->why, thread->slept - queued);
    thread->slept = 0;
}

/* Within a statement. */
static __always_inline void goes_to_wait(struct thread *thread, u64 delay, u32 state)
{
    thread->out_delay = delay;
    if (!state)
        return;              /* preempted: the scheduler counts that */
    thread->why = why_out(thread, state);
    thread->out_at = bpf_ktime_get_ns();
}

static __always_inline void is_back(struct thread *thread, u64 now)
{
    if (thread->out_at)
        thread->slept = now - thread->out_at;
    thread->out_at = 0;
}

/* It sends more after all: what came since the packet before was a wait within it. */
static __always_inline void goes_on_sending(struct thread *thread, u64 task, u64 now, u64 ran)
{
    u64 past = now - thread->ended_at, used = ran - thread->ended_ns + delay_of(task) - thread->ended_delay;

    if (past > used)
        add_wait(thread, thread->why, past - used);
}

/* To the sums of its statement; the next one begins here. */
static __always_inline void hand_waits(struct thread *thread, u64 *sums, u64 delay)
{
    u64 until = thread->ended_at || thread->sent_at ? thread->ended_delay : delay;
    int i;

    if (sums && until > thread->began_delay)
        sums[WAIT_RUN_QUEUE] += until - thread->began_delay;
    if (thread->has_waited) {
#pragma unroll
        for (i = WAIT_ROW_LOCK; i < WAITS; i++) {
            if (sums)
                sums[i] += thread->waits[i];
            thread->waits[i] = 0;
        }
    }
    thread->has_waited = 0;
}

static __always_inline void begin_waits(struct thread *thread, u64 delay)
{
    thread->began_delay = thread->out_delay = delay;
    thread->out_at = thread->slept = 0;
    thread->waits_for = 0;
}
