/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The target's threads: which they are, what is remembered of each, and how often they may be looked at.
 *
 * Under load (a CPU that saw more than LOADED_PER_100MS switch-outs and wakings by target threads in a tenth of a
 * second) only one in SAMPLE_1_IN is looked at, besides threads whose wake-up was blamed on a site not yet seen, and
 * wakings are not counted. The tenth before decides, so that a lasting load pays for the sample only. A CPU that hardly
 * idled in it has hardly an idle exit to be named, and is loaded from SATURATED_PER_100MS on: looks that nobody needs are
 * what tracing would cost it.
 *
 * ON_DEMAND is for readers that stay: a sleep is looked at only where the thread's last one ended an idle period, or where
 * the process is judged now. Then what a host pays goes by its idle exits, whatever else it does.
 */
#define SITE_SLOTS 16384
/* A CPU that idled for less than this part of a tenth of a second hardly idled. */
#define IDLE_1_IN 10
/* More looks than this on one CPU: a thread that is where it always was need not show its call path each time. */
#define BRISK_PER_100MS 100

/* Where a thread was seen: a site. */
struct site {
    u64 ip, sp, code;
    u64 window;       /* in which its stack was seen */
    u32 same_path_count;        /* looks at its call path that found it there, one after the other */
    u32 skipped_reads;       /* looks since, at its registers alone */
};

/* A thread: a slot is another's as soon as that one sleeps. What its waker on another CPU needs is in the first cache line. */
struct thread {
    u32 tid, tgid;
    u32 asleep;       /* its waking has not been seen yet */
    u32 sent;         /* stacks of this thread that were copied … */
    struct site sleeper;
    u64 window;       /* … in this window */
    struct site waker;
    u8 gap[24];
};

ALIGNED_ARRAY(threads, struct thread, ENTRIES_IF(STACKS, SITE_SLOTS));
BPF_ARRAY(requested, u32, ENTRIES_IF(STACKS, SITE_SLOTS));

static __always_inline struct thread *thread_at(u32 tid)
{
    int slot = tid & (SITE_SLOTS - 1);
    return threads.lookup(&slot);
}

static __always_inline int is_loaded(struct cpu_state *cpu)
{
    return cpu->was_loaded || cpu->meter_captures > LOADED_PER_100MS;
}

#define REQUEST_SERVED 0x80000000U   /* in `wanted`: above any thread id */

/* A sleep that is not looked at: it may be on another call path than the one before. */
static __always_inline void clear_path(u32 tid)
{
    struct thread *thread = thread_at(tid);

    if (!thread || thread->tid != tid)
        return;
    thread->sleeper.code = 0;
    thread->sleeper.same_path_count = 0;
}

/* ON_DEMAND: a thread is asked for by each idle exit that is blamed on it, which looks at its next sleep. Of all other sleeps on
 * the host nothing is read but this one word. */
static __always_inline int is_not_requested(struct cpu_state *cpu, u32 tid, u32 tgid)
{
    int slot = tid & (SITE_SLOTS - 1);
    u32 *request = requested.lookup(&slot);

    if (request && *request == tid) {
        *request = tid | REQUEST_SERVED;
        return 0;
    }
    if (is_process_measured(tgid))
        return 0;
    if (request && *request == (tid | REQUEST_SERVED)) {
        *request = 0;
        clear_path(tid);
    }
    return 1;
}

/* Under load: is this one of the looks that are left out? */
static __always_inline int is_skipped_under_load(struct cpu_state *cpu, u32 tid, u32 tgid)
{
    int slot = tid & (SITE_SLOTS - 1);
    u32 *request;

    if (!is_loaded(cpu) || ++cpu->captures_skipped % SAMPLE_1_IN == 0)
        return 0;
    request = requested.lookup(&slot);
    if (!request || *request != tid)
        return 1;
    *request = 0;
    return 0;
}

/* To be asked before anything that costs. */
static __always_inline int is_capture_skipped(struct cpu_state *cpu, u32 tid, u32 tgid)
{
    if (LOAD_TIME(ON_DEMAND))
        return is_not_requested(cpu, tid, tgid);
    return is_skipped_under_load(cpu, tid, tgid);
}

/* One look in so many asks for the time: fewer in a tenth of a second are no load. */
#define CAPTURES_PER_CLOCK 16

/* The load meter; a look under load stands for those that were left out before it. */
static __always_inline void count_capture(struct cpu_state *cpu)
{
    u64 now = cpu->meter_captures % CAPTURES_PER_CLOCK ? 0 : coarse_ns();

    if (now > cpu->meter_start_ns + 100000000ULL) {
        u64 span = now - cpu->meter_start_ns;
        u32 most = cpu->idled_ns * IDLE_1_IN > span ? LOADED_PER_100MS : SATURATED_PER_100MS;

        cpu->was_loaded = cpu->meter_captures > most && span < 200000000ULL;
        cpu->was_brisk = cpu->meter_captures > BRISK_PER_100MS && span < 200000000ULL;
        cpu->idled_ns = 0;
        cpu->meter_start_ns = now;
        cpu->meter_captures = 0;
    }
    if (is_loaded(cpu)) {
        cpu->meter_captures += SAMPLE_1_IN;
        count(COUNT_LOADED);
    } else {
        cpu->meter_captures++;
    }
}

static __always_inline int is_brisk(struct cpu_state *cpu)
{
    return cpu->was_brisk || cpu->meter_captures > BRISK_PER_100MS;
}
