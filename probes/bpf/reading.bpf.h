/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Words of kernel memory, and who a task is. */
static __always_inline u32 read_u32(u64 address)
{
    u32 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
    return value;
}

static __always_inline u64 read_u64(u64 address)
{
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
    return value;
}

/* Thread and, above it, process: as bpf_get_current_pid_tgid() has them, of any task. The two lie side by side, but on
 * kernels whose structs are shuffled. */
static __always_inline u64 pid_tgid_of(u64 task)
{
#if OFFSET_task_struct_tgid == OFFSET_task_struct_pid + 4
    return read_u64(task + OFFSET_task_struct_pid);
#else
    return read_u32(task + OFFSET_task_struct_pid) | (u64)read_u32(task + OFFSET_task_struct_tgid) << 32;
#endif
}
