/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The one process that is looked at; with FAMILY the one that started all the others that are.
 *
 * FAMILY is how many there may be: user space fills in those that there are, and those that they start join by themselves.
 */
BPF_ARRAY(target, u64, 1);
#ifdef FAMILY
BPF_HASH(members, u32, u64, FAMILY);
#endif

/* Its id, 0 while nothing is to be counted. */
static __always_inline u64 target_id(void)
{
    int zero = 0;
    u64 *found = target.lookup(&zero);
    return found ? *found : 0;
}

/* Whether a thread (as bpf_get_current_pid_tgid() has it) is of the target that target_now() told. */
static __always_inline int is_target_process(u64 pid_tgid, u64 wanted)
{
#ifdef FAMILY
    u32 tgid = pid_tgid >> 32;
    return members.lookup(&tgid) != 0;
#else
    return pid_tgid >> 32 == wanted;
#endif
}

/* ... and is to be counted. */
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

/* Its number may be another's from now on. */
static __always_inline void remove_process(u32 tgid)
{
    members.delete(&tgid);
}
#endif
