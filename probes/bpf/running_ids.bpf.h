/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Keep the ids of the running thread in a pid namespace (pid_namespaces.bpf.h), for programs at sched_switch. */
/* The thread that runs on each CPU. A thread that exits loses its numbers before its last switch-out. */
struct running_ids {
    u64 who;
    u64 id;   /* the kernel's own thread id */
};
BPF_PERCPU_ARRAY(running, struct running_ids, 1);

/* A thread is switched in on this CPU. */
static __always_inline void note_running(u64 task)
{
    int zero = 0;
    struct running_ids *ids;

    if (!LOAD_TIME(PID_LEVEL))
        return;
    ids = running.lookup(&zero);
    if (!ids)
        return;
    ids->id = read_u32(task + OFFSET_task_struct_pid);
    ids->who = ids_in_namespace(task);
}

/* Return the ids of the thread that is switched out on this CPU, with PID_LEVEL. */
static __always_inline u64 ids_of_previous(u64 task)
{
    int zero = 0;
    struct running_ids *ids = running.lookup(&zero);
    u64 who = ids_in_namespace(task);

    if ((u32)who & OUTSIDE_IDS && ids && ids->id == read_u32(task + OFFSET_task_struct_pid))
        return ids->who;
    return who;
}
