/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Of which control group a process was that has ended: /proc does not tell any more. The oldest entries make room. */
BPF_TABLE("lru_hash", u32, u64, ended_groups, ENTRIES_IF(TARGET_ALL, 8192));

RAW_TRACEPOINT_IF(TARGET_ALL, sched_process_exit)
{
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    u64 group = bpf_get_current_cgroup_id();

    ended_groups.update(&tgid, &group);
    return 0;
}
