/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Processes that the target starts while it is traced: they are of it from their first instant on.
 *
 * GROWS: they join. GROWS_BY_NAME: only those stay that run the same program; else all do, as in a control group.
 * User space looks for what joins otherwise, and counts what it finds so late.
 */
/* Child and parent, until user space has taken them; no parent where it runs another program meanwhile. */
BPF_HASH(joined, u32, u32, ENTRIES_IF(GROWS, 8192));

TYPED_TRACEPOINT_IF(GROWS, sched_process_fork)
{
    u64 who = pid_tgid_of(ctx->args[ARG_sched_process_fork_child]);
    u32 parent = bpf_get_current_pid_tgid() >> 32, child = who >> 32;
    s64 *only = shared_at(SHARED_ONLY_TARGET);
    struct target *found, copy;

    if (parent == child)
        return 0;   /* a thread */
    found = targets.lookup(&parent);
    if (!found)
        return 0;
    /* It has its parent's memory: code lies where the parent's does. */
    copy = *found;
    if (targets.update(&child, &copy) || joined.update(&child, &parent)) {
        count(COUNT_UNJOINED);
        return 0;
    }
    if (only)
        *only = 0;
    return 0;
}

/* Another program has its code elsewhere, and is of no family. */
TYPED_TRACEPOINT_IF(GROWS, sched_process_exec)
{
    u64 task = CURRENT_TASK;
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    struct target *found = targets.lookup(&tgid);
    u32 nobody = 0;
    char own[COMM_BYTES] = {}, parents[COMM_BYTES] = {};
    u64 *mine = (u64 *)own, *theirs = (u64 *)parents;

    if (!found)
        return 0;
    found->text_low = found->text_bytes = found->library_low = found->library_bytes = 0;
    if (LOAD_TIME(GROWS_BY_NAME)) {
        comm_of(task, own);
        comm_of(FIELD_U64(task, OFFSET_task_struct_real_parent), parents);
        if (joined.lookup(&tgid) && (mine[0] != theirs[0] || mine[1] != theirs[1])) {
            targets.delete(&tgid);
            joined.delete(&tgid);
            return 0;
        }
    }
    joined.update(&tgid, &nobody);
    return 0;
}

/* The number of a process that has ended may be another's. */
TYPED_TRACEPOINT_IF(GROWS, sched_process_exit)
{
    u32 tgid = bpf_get_current_pid_tgid() >> 32;

    if (targets.lookup(&tgid) && !FIELD_U32(FIELD_U64(CURRENT_TASK, OFFSET_task_struct_signal), OFFSET_signal_struct_live))
        targets.delete(&tgid);
    return 0;
}
