/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Translate ids of processes and threads into the pid namespace of the reader.
 *
 * PID_LEVEL is the level of that namespace; 0: the kernel's first one, whose ids need no translation. PID_NAMESPACE is
 * its inode number. OFFSET_pid_number is the place of the level's entry in struct pid. A task of another namespace has
 * no id in this one: its id is the kernel's own with OUTSIDE_IDS added, so that no two tasks are mixed.
 */
#define OUTSIDE_IDS 0x40000000   /* above any id of the kernel (PID_MAX_LIMIT) */
#define TGID_PLACE 8             /* of PIDTYPE_TGID in signal_struct's `pids` (since Linux 4.19) */

/* Return the number of a struct pid in the reader's namespace. `id`: the kernel's own number. */
static __always_inline u32 number_in_namespace(u64 pid, u32 id)
{
    u64 number = pid + OFFSET_pid_number;

    if (!id)
        return 0;   /* the idle task */
    if (!pid || read_u32(pid + OFFSET_pid_level) < LOAD_TIME(PID_LEVEL) ||
        read_u32(read_u64(number + OFFSET_upid_ns) + OFFSET_pid_namespace_inum) != (u32)LOAD_TIME(PID_NAMESPACE))
        return id | OUTSIDE_IDS;
    return read_u32(number + OFFSET_upid_nr);
}

/* Whether these ids are of a task outside the reader's namespace. It is part of no target. */
static __always_inline int is_outside(u64 who)
{
    return LOAD_TIME(PID_LEVEL) && (u32)who & OUTSIDE_IDS;
}

static __always_inline u64 ids_in_namespace(u64 task)
{
    u64 thread = read_u64(task + OFFSET_task_struct_thread_pid);
    u64 process = read_u64(read_u64(task + OFFSET_task_struct_signal) + OFFSET_signal_struct_pids + TGID_PLACE);
    u64 tgid = number_in_namespace(process, read_u32(task + OFFSET_task_struct_tgid));

    return number_in_namespace(thread, read_u32(task + OFFSET_task_struct_pid)) | tgid << 32;
}

static __always_inline u64 current_pid_tgid(void)
{
    if (LOAD_TIME(PID_LEVEL))
        return ids_in_namespace(bpf_get_current_task());
    return bpf_get_current_pid_tgid();
}
