/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The one process that is looked at. */
BPF_ARRAY(target, u64, 1);

/* Its id, 0 while nothing is to be counted. */
static __always_inline u64 target_now(void)
{
    int zero = 0;
    u64 *found = target.lookup(&zero);
    return found ? *found : 0;
}

/* Whether a thread (as bpf_get_current_pid_tgid() has it) is the target's, and is to be counted. */
static __always_inline int is_target(u64 pid_tgid)
{
    u64 wanted = target_now();
    return wanted && pid_tgid >> 32 == wanted;
}
