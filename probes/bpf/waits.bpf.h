/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Classify and sum the waits of a statement while its thread does not run.
 *
 * The time in the run queue is the scheduler's count (sched_info.run_delay). Other waits are classified by the system
 * call in which the thread left its CPU, and by the server's own report if there is one: MariaDB and MySQL call
 * thd_wait_begin before they wait for a lock or for a group commit, and PostgreSQL writes its wait event to the address
 * in my_wait_event_info. An uninterruptible wait is a wait for a disk. Time in the run queue after a wakeup is not part
 * of the wait before it.
 */
#define CALLS 512            /* system calls of x86-64 */
#define SERVER_WAITS 16      /* enum thd_wait_type: include/mysql/service_thd_wait.h */
#define STATE_UNINTERRUPTIBLE 0x2
#define STATE_NOLOAD 0x400   /* include/linux/sched.h: idle kernel threads */
#define REGISTER_CALL 15     /* orig_ax of struct pt_regs */

BPF_ARRAY(wait_of_syscall, u32, CALLS);
BPF_ARRAY(wait_of_type, u32, SERVER_WAITS);
BPF_ARRAY(event_place, u64, 1);   /* PostgreSQL: the address of my_wait_event_info */

/* Return the time in ns that a thread has waited for a CPU since it was created, until its last switch-in. */
static __always_inline u64 delay_of(u64 task)
{
    return LOAD_TIME(HAS_RUN_DELAY) ? read_u64(task + OFFSET_task_struct_sched_info + OFFSET_sched_info_run_delay) : 0;
}

/* Return the number of the current system call; CALLS if it is unknown. */
static __always_inline u64 current_syscall(void)
{
    if (!LOAD_TIME(HAS_REGISTERS))
        return CALLS;
    return read_u64((u64)bpf_task_pt_regs(bpf_get_current_task_btf()) + 8 * REGISTER_CALL);
}

static __always_inline u32 classify_by_syscall(u32 state)
{
    u64 call = current_syscall();
    u32 at = call < CALLS ? call : 0, *wait = wait_of_syscall.lookup(&at);

    if ((state & STATE_UNINTERRUPTIBLE) && !(state & STATE_NOLOAD))
        return wait && *wait == WAIT_SYNC ? WAIT_SYNC : WAIT_DISK;
    return wait && call < CALLS ? *wait : WAIT_OTHER;
}

#if IS_POSTGRESQL
/* The wait event of src/include/utils/wait_event.h (since 9.6) has its class in the highest byte, and for locks the
 * enum LockTagType in the low bytes. */
static __always_inline u32 classify_by_event(void)
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
    case 0x04:               /* buffers that another process has pinned */
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

/* Return the kind of the wait that the current thread begins. */
static __always_inline u32 classify_wait(struct thread *thread, u32 state)
{
    u32 kind = classify_by_syscall(state), *reported, type;

#if IS_POSTGRESQL
    reported = 0;
    type = classify_by_event();
    return kind == WAIT_SYNC || type == WAIT_OTHER ? kind : type;
#else
    type = thread->server_wait;
    reported = type && type < SERVER_WAITS ? wait_of_type.lookup(&type) : 0;
    return reported && *reported != WAIT_OTHER ? *reported : kind;
#endif
}

static __always_inline void add_wait(struct thread *thread, u32 kind, u64 ns)
{
    if (kind < WAITS)
        thread->waits[kind] += ns;
    thread->has_waited = 1;
}

/* Add the last wait, without the time in the run queue after it, which the scheduler has counted by now. */
static __always_inline void settle_wait(struct thread *thread, u64 delay)
{
    u64 queued = delay - thread->wait_delay;

    if (thread->wait_ns > queued)
        add_wait(thread, thread->wait_kind, thread->wait_ns - queued);
    thread->wait_ns = 0;
}

/* The thread leaves its CPU within a statement. */
static __always_inline void begin_wait(struct thread *thread, u64 delay, u32 state)
{
    thread->wait_delay = delay;
    if (!state)
        return;              /* preempted: the scheduler counts that */
    thread->wait_kind = classify_wait(thread, state);
    thread->wait_began_at = bpf_ktime_get_ns();
}

static __always_inline void end_wait(struct thread *thread, u64 now)
{
    if (thread->wait_began_at)
        thread->wait_ns = now - thread->wait_began_at;
    thread->wait_began_at = 0;
}

/* The statement sends another packet: the time since its last packet, without CPU time, was a wait within it. */
static __always_inline void add_send_pause(struct thread *thread, u64 task, u64 now, u64 ran)
{
    u64 past = now - thread->ended_at, used = ran - thread->ended_ns + delay_of(task) - thread->ended_delay;

    if (past > used)
        add_wait(thread, thread->wait_kind, past - used);
}

/* Add the waits to the totals of the statement, and clear them for the next one. */
static __always_inline void move_waits(struct thread *thread, u64 *sums, u64 delay)
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

static __always_inline void reset_waits(struct thread *thread, u64 delay)
{
    thread->began_delay = thread->wait_delay = delay;
    thread->wait_began_at = thread->wait_ns = 0;
    thread->server_wait = 0;
}
