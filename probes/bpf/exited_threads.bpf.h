/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Limit the entries of exited threads. A server with one thread per connection and short connections would fill the
 * tables. The first ENDED_KEPT exited threads keep their entries. The sums of later ones are merged, and their entries
 * are deleted. */

struct exited_total {
    u64 threads, cpu_ns, wakeups, statements, before_ns;
};

/* Of threads without a statement, of threads with statements, and of helpers. */
BPF_ARRAY(exited_totals, struct exited_total, 3);
BPF_ARRAY(exited_count, u64, 1);

#if !IS_POSTGRESQL
/* Run time of exited threads that is missing in the clock of their process. While a thread exits, the kernel adds its
 * run time so far to that clock; the rest, until its last switch, is lost. No tracepoint shows the moment of the
 * addition. While no thread exits, the missing time is the run time of all exited threads, minus the additions to the
 * clock since the first of them. */
struct off_clock {
    u64 exiting;             /* number of threads that exit now */
    u64 is_begun, first_ns;  /* additions to the clock before the first of them */
    u64 ran_ns;
    u64 off_ns;
};

BPF_ARRAY(off_clock, struct off_clock, 1);

static __always_inline u64 process_clock(u64 task)
{
    return read_u64(read_u64(task + OFFSET_task_struct_signal) + OFFSET_signal_struct_sum_sched_runtime);
}

static __always_inline void note_exit_begin(u64 task)
{
    int zero = 0;
    struct off_clock *clock = off_clock.lookup(&zero);

    if (!clock)
        return;
    if (!clock->is_begun) {
        clock->is_begun = 1;
        clock->first_ns = process_clock(task);
    }
    __sync_fetch_and_add(&clock->exiting, 1);
}

static __always_inline void note_exit_end(u64 task, u64 ran)
{
    int zero = 0;
    struct off_clock *clock = off_clock.lookup(&zero);
    u64 added;

    if (!clock)
        return;
    __sync_fetch_and_add(&clock->ran_ns, ran);
    __sync_fetch_and_add(&clock->exiting, -1);
    if (clock->exiting)
        return;
    added = process_clock(task) - clock->first_ns;
    if (clock->ran_ns > added)
        clock->off_ns = clock->ran_ns - added;
}
#endif

/* Add the sums of a thread for one statement to the common sums of exited threads: thread 0 in `totals`. `before`:
 * BEGAN_BEFORE or 0. */
static __always_inline void merge_totals(u64 id, u32 tid, u64 before)
{
    struct total_key key = { .id = id, .tid = before | tid }, common = { .id = id, .tid = before };
    struct total *own = totals.lookup(&key), *all = totals.lookup(&common);
    int i;

    if (!own)
        return;
    if (!all)
        all = total_entry(&common);
    if (!all)
        return;   /* the table is full: the thread keeps its entry */
    __sync_fetch_and_add(&all->calls, own->calls);
    __sync_fetch_and_add(&all->wakeups, own->wakeups);
    __sync_fetch_and_add(&all->faults, own->faults);
    __sync_fetch_and_add(&all->wall_ns, own->wall_ns);
    __sync_fetch_and_add(&all->cpu_ns, own->cpu_ns);
    __sync_fetch_and_add(&all->squares, own->squares);
#pragma unroll
    for (i = 0; i < WAITS; i++)
        __sync_fetch_and_add(&all->waits[i], own->waits[i]);
    totals.delete(&key);
}

static __always_inline int has_statements(struct thread *thread)
{
    return thread->statements || thread->open == OPEN_FOUND;
}

/* Called at the last switch of a thread. */
static __always_inline void release_thread(struct thread *thread, u32 tid)
{
    int zero = 0, kind = thread->is_helper ? 2 : has_statements(thread), i;
    u64 *exited = exited_count.lookup(&zero);
    struct exited_total *exited_total = exited_totals.lookup(&kind);

    if (!exited || !exited_total)
        return;
    __sync_fetch_and_add(exited, 1);
    if (*exited <= LOAD_TIME(ENDED_KEPT))
        return;
    __sync_fetch_and_add(&exited_total->threads, 1);
    __sync_fetch_and_add(&exited_total->cpu_ns, thread->past_ns);
    __sync_fetch_and_add(&exited_total->wakeups, thread->wakeups);
    __sync_fetch_and_add(&exited_total->statements, thread->statements + (thread->open == OPEN_FOUND));
    if (kind)
        __sync_fetch_and_add(&exited_total->before_ns, thread->before_ns);
#pragma unroll
    for (i = 0; i < OWN_STATEMENTS; i++) {
        if (i < thread->own_count)
            merge_totals(thread->own_ids[i], tid, 0);
    }
    if (thread->before_id)
        merge_totals(thread->before_id, tid, BEGAN_BEFORE);
    threads.delete(&tid);
}
