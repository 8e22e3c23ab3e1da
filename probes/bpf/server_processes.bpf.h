/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The traced process of a server. With FAMILY: the process that started all others, and these.
 *
 * FAMILY is the maximum number of processes. User space adds the existing ones; fork adds new ones.
 */
BPF_ARRAY(target, u64, 2);   /* its id, and the time at which the window began */
#ifdef FAMILY
BPF_HASH(members, u32, u64, FAMILY);
#endif

/* The id of the process; 0 while counting is off. */
static __always_inline u64 target_id(void)
{
    int zero = 0;
    u64 *pid = target.lookup(&zero);
    return pid ? *pid : 0;
}

/* The start of the window; 0: unknown. */
static __always_inline u64 window_start(void)
{
    int one = 1;
    u64 *at = target.lookup(&one);
    return at ? *at : 0;
}

/* Whether a thread (as in bpf_get_current_pid_tgid()) belongs to the server. `wanted` is the result of target_id(). */
static __always_inline int is_target_process(u64 pid_tgid, u64 wanted)
{
#ifdef FAMILY
    u32 tgid = pid_tgid >> 32;
    return members.lookup(&tgid) != 0;
#else
    return pid_tgid >> 32 == wanted;
#endif
}

/* Whether a thread belongs to the server and counting is on. */
static __always_inline int is_target(u64 pid_tgid)
{
    u64 wanted = target_id();
    return wanted && is_target_process(pid_tgid, wanted);
}

#ifdef FAMILY
static __always_inline void add_child(u32 parent, u32 child)
{
    u64 one = 1;
    if (parent != child && members.lookup(&parent))
        members.update(&child, &one);
}

/* The id of an exited process may be reused. */
static __always_inline void remove_process(u32 tgid)
{
    members.delete(&tgid);
}
#endif
