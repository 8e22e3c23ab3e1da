/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Record the control group of each process that exits, because /proc no longer shows it. If the table is full, the
 * oldest entries are evicted. */
BPF_TABLE("lru_hash", u32, u64, exited_cgroups, ENTRIES_IF(TARGET_ALL, 8192));

RAW_TRACEPOINT_IF(TARGET_ALL, sched_process_exit)
{
    u32 tgid = current_pid_tgid() >> 32;
    u64 group = bpf_get_current_cgroup_id();

    exited_cgroups.update(&tgid, &group);
    return 0;
}
