/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Track whether all CPUs are busy. If they are, a waking does not end an idle period.
 *
 * A count of idle CPUs would be written at every idle entry and read at every waking. Instead, each group of CPUs has
 * a mark, and SHARED_ALL_BUSY is the mark of all groups. A CPU that wakes threads checks the others from time to time
 * and sets marks; a CPU that goes idle clears them. A check covers at most two groups, because it runs under the lock
 * of a run queue and the verifier follows only some thousand steps: 8,192 CPUs are 128 groups.
 */
#define UPDATE_EVERY_NS 10000000ULL
#define GROUP_SPAN 64   /* GROUP_CPUS: CPUs per group, or fewer on a small host; CPU_GROUPS: number of groups */

/* Read at every idle entry of the group and written rarely, so it has its own cache lines. */
struct cpu_group {
    u64 is_busy;
    u8 gap[2 * CACHE_GAP_BYTES - 8];
};

BPF_ARRAY(groups, struct cpu_group, CPU_GROUPS);

/* A CPU of the group idles. The barrier is on a cache line of the calling CPU: the CPU that sets the second mark
 * either sees that the first one is cleared, or sees this CPU idle. It adds 1 ns, which does not matter: adding 0
 * would compile to an instruction that kernels before 5.12 lack. */
static __always_inline void clear_busy(struct cpu_group *group, s64 *all_busy, u64 *own_line)
{
    if (group->is_busy) {
        group->is_busy = 0;
        __sync_fetch_and_add(own_line, 1);
    }
    if (*all_busy)
        *all_busy = 0;
}

/* CPU `number` went idle; its state shows that already. The barrier: a CPU that marks the group either sees this CPU
 * idle or is seen here. */
static __always_inline void mark_idle(struct cpu_state *cpu, u32 number, s64 *all_busy)
{
    int group_number = number / GROUP_SPAN;
    struct cpu_group *group = groups.lookup(&group_number);

    __sync_fetch_and_add(&cpu->busy_checked_ns, 1);
    if (group)
        clear_busy(group, all_busy, &cpu->busy_checked_ns);
}

/* Check the CPUs of a group, starting with this one. An idle CPU nearby is then found first. */
static __always_inline int has_idle_cpu(u32 group_number, u32 from)
{
    u32 step, cpus_of_group = LOAD_TIME(GROUP_CPUS);

#pragma clang loop unroll(disable)
    for (step = 0; step < cpus_of_group; step++) {
        u32 index = from % GROUP_SPAN + step;
        int number = group_number * GROUP_SPAN + (index < cpus_of_group ? index : index - cpus_of_group);
        struct cpu_state *cpu = cpus.lookup(&number);
        if (cpu && is_open(cpu))
            return 1;
    }
    return 0;
}

/* The first group without a mark; CPU_GROUPS if all are marked. The result is stored in the CPU's state and read back,
 * so that the verifier forgets it. Otherwise it would verify the following code once per group. */
static __always_inline u32 find_first_not_busy(struct cpu_state *cpu)
{
    u32 group_number, groups_of_host = LOAD_TIME(CPU_GROUPS);

#pragma clang loop unroll(disable)
    for (group_number = 0; group_number < groups_of_host; group_number++) {
        int index = group_number;
        struct cpu_group *group = groups.lookup(&index);
        if (group && !group->is_busy)
            break;
    }
    *(volatile u32 *)&cpu->first_not_busy = group_number;
    return *(volatile u32 *)&cpu->first_not_busy;
}

/* Whether a group is marked, or can be marked now. The second check finds a CPU that went idle during the first check,
 * before the mark was set. */
static __always_inline int is_busy_group(u32 group_number, u32 from, s64 *all_busy, u64 *own_line)
{
    int index = group_number;
    struct cpu_group *group = groups.lookup(&index);

    if (!group)
        return 0;
    if (group->is_busy)
        return 1;
    if (has_idle_cpu(group_number, from))
        return 0;
    __sync_fetch_and_add(&group->is_busy, 1);
    if (!has_idle_cpu(group_number, from))
        return 1;
    clear_busy(group, all_busy, own_line);
    return 0;
}

/* Called by each CPU that wakes threads, at most once per UPDATE_EVERY_NS. It checks its own group, and if that is
 * busy, one group that is not marked. */
static __always_inline void update_busy(struct cpu_state *cpu, u64 now, u32 number)
{
    s64 *all_busy = shared_at(SHARED_ALL_BUSY);
    u32 group_number, group_count = LOAD_TIME(CPU_GROUPS);

    if (!all_busy || *all_busy || now - cpu->busy_checked_ns < UPDATE_EVERY_NS)
        return;
    cpu->busy_checked_ns = now;
    if (!is_busy_group(number / GROUP_SPAN, number, all_busy, &cpu->busy_checked_ns))
        return;
    group_number = find_first_not_busy(cpu);
    if (group_number < group_count && (!is_busy_group(group_number, 0, all_busy, &cpu->busy_checked_ns) ||
                                       find_first_not_busy(cpu) < group_count))
        return;
    __sync_fetch_and_add(all_busy, 1);
    if (find_first_not_busy(cpu) < group_count)
        *all_busy = 0;
}
