/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The processes of the target, and the processes that they start while tracing runs.
 *
 * With GROWS, a new process belongs to the target from its fork. With GROWS_BY_NAME, it leaves the target if it
 * executes a program with another name; otherwise it stays, as in a control group. Without GROWS, user space searches
 * for new processes and counts those that it finds late.
 */
/* The code ranges of a process: its own text, and the range of its libraries. `is_measured`: with ON_DEMAND, the
 * sleeps and wakings of the process are captured while a window is open. */
struct target {
    u64 text_low, text_bytes;
    u64 library_low, library_bytes;
    u64 is_measured;
};

BPF_HASH(targets, u32, struct target, ENTRIES_IF(STACKS, 8192));

/* Whether a process cannot be in the target. A target of one process needs no look-up. */
static __always_inline int is_not_target(u32 tgid)
{
    s64 *only;

    if (!LOAD_TIME(STACKS))
        return 1;
    only = shared_at(SHARED_ONLY_TARGET);
    return only && *only && (u32)*only != tgid;
}

static __always_inline struct target *target_of(u32 tgid)
{
    struct target *target;
    u32 everyone = 0;
    s64 *own_pid;

    if (is_not_target(tgid))
        return 0;
    target = targets.lookup(&tgid);
    if (LOAD_TIME(TARGET_ALL) && !target) {
        own_pid = shared_at(SHARED_OWN_PID);
        if (own_pid && tgid != (u32)*own_pid && !is_outside(tgid))
            target = targets.lookup(&everyone);
    }
    return target;
}

/* The same as target_of(), without the code ranges. A target of one process needs no look-up. */
static __always_inline int is_target(u32 tgid)
{
    s64 *only;

    if (!LOAD_TIME(STACKS))
        return 0;
    only = shared_at(SHARED_ONLY_TARGET);
    return only && *only ? (u32)*only == tgid : target_of(tgid) != 0;
}

/* Whether the wakings of a process are counted while a window is open. */
static __always_inline int is_process_measured(u32 tgid)
{
    s64 *counting;
    struct target *target;

    if (!LOAD_TIME(ON_DEMAND))
        return 1;
    counting = shared_at(SHARED_COUNTING);
    if (!counting || !*counting)
        return 0;
    target = targets.lookup(&tgid);
    return target && target->is_measured;
}

/* Child and parent, until user space reads them. The parent is 0 if the child executed another program. */
BPF_HASH(new_processes, u32, u32, ENTRIES_IF(GROWS, 8192));

TYPED_TRACEPOINT_IF(GROWS, sched_process_fork)
{
    u64 who = pid_tgid_of(ctx->args[ARG_sched_process_fork_child]);
    u32 parent = current_pid_tgid() >> 32, child = who >> 32;
    s64 *only = shared_at(SHARED_ONLY_TARGET);
    struct target *target, copy;

    if (parent == child)
        return 0;   /* a new thread */
    target = targets.lookup(&parent);
    if (!target)
        return 0;
    /* The child has a copy of its parent's memory, so its code is at the same addresses. */
    copy = *target;
    if (targets.update(&child, &copy) || new_processes.update(&child, &parent)) {
        count(COUNT_LOST_PROCESSES);
        return 0;
    }
    if (only)
        *only = 0;
    return 0;
}

/* A process executes another program. Its code is elsewhere, and its memory is unrelated to the parent. */
TYPED_TRACEPOINT_IF(GROWS, sched_process_exec)
{
    u64 task = CURRENT_TASK;
    u32 tgid = current_pid_tgid() >> 32;
    struct target *target = targets.lookup(&tgid);
    u32 no_parent = 0;
    char own_name[COMM_BYTES] = {}, parent_name[COMM_BYTES] = {};
    u64 *own_words = (u64 *)own_name, *parent_words = (u64 *)parent_name;

    if (!target)
        return 0;
    target->text_low = target->text_bytes = target->library_low = target->library_bytes = 0;
    if (LOAD_TIME(GROWS_BY_NAME)) {
        comm_of(task, own_name);
        comm_of(FIELD_U64(task, OFFSET_task_struct_real_parent), parent_name);
        if (new_processes.lookup(&tgid) && (own_words[0] != parent_words[0] || own_words[1] != parent_words[1])) {
            targets.delete(&tgid);
            new_processes.delete(&tgid);
            return 0;
        }
    }
    new_processes.update(&tgid, &no_parent);
    return 0;
}

/* The id of an exited process may be reused. */
TYPED_TRACEPOINT_IF(GROWS, sched_process_exit)
{
    u32 tgid = current_pid_tgid() >> 32;

    if (targets.lookup(&tgid) &&
        !FIELD_U32(FIELD_U64(CURRENT_TASK, OFFSET_task_struct_signal), OFFSET_signal_struct_live))
        targets.delete(&tgid);
    return 0;
}
