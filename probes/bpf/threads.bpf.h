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

/* Where a process has code: its own text, and the hull of its libraries. `judged`: ON_DEMAND, it is looked at and its
 * wakings are counted while a window is open. */
struct target {
    u64 text_low, text_bytes;
    u64 library_low, library_bytes;
    u64 judged;
};

/* Where a thread was seen: a site. */
struct look {
    u64 ip, sp, code;
    u64 window;       /* in which its stack was seen */
    u32 alike;        /* looks at its call path that found it there, one after the other */
    u32 unread;       /* looks since, at its registers alone */
};

/* A thread: a slot is another's as soon as that one sleeps. What its waker on another CPU needs is in the first cache line. */
struct thread {
    u32 tid, tgid;
    u32 asleep;       /* its waking has not been seen yet */
    u32 sent;         /* stacks of this thread that were copied … */
    struct look sleeper;
    u64 window;       /* … in this window */
    struct look waker;
    u8 gap[24];
};

BPF_HASH(targets, u32, struct target, ENTRIES_IF(STACKS, 8192));
ALIGNED_ARRAY(threads, struct thread, ENTRIES_IF(STACKS, SITE_SLOTS));
BPF_ARRAY(wanted, u32, ENTRIES_IF(STACKS, SITE_SLOTS));

/* Whether a process cannot be of the target, before anything is looked up: where there is but one. */
static __always_inline int is_other(u32 tgid)
{
    s64 *only;

    if (!LOAD_TIME(STACKS))
        return 1;
    only = shared_at(SHARED_ONLY_TARGET);
    return only && *only && (u32)*only != tgid;
}

static __always_inline struct target *target_of(u32 tgid)
{
    struct target *found;
    u32 everyone = 0;
    s64 *own;

    if (is_other(tgid))
        return 0;
    found = targets.lookup(&tgid);
    if (LOAD_TIME(TARGET_ALL) && !found) {
        own = shared_at(SHARED_OWN_PID);
        if (own && tgid != (u32)*own)
            found = targets.lookup(&everyone);
    }
    return found;
}

/* As target_of(), where it does not matter what the process has: where the target is but one no table is asked. */
static __always_inline int is_target(u32 tgid)
{
    s64 *only;

    if (!LOAD_TIME(STACKS))
        return 0;
    only = shared_at(SHARED_ONLY_TARGET);
    return only && *only ? (u32)*only == tgid : target_of(tgid) != 0;
}

static __always_inline struct thread *thread_at(u32 tid)
{
    int slot = tid & (SITE_SLOTS - 1);
    return threads.lookup(&slot);
}

static __always_inline int is_loaded(struct cpu_state *cpu)
{
    return cpu->looks_loaded || cpu->looks_count > LOADED_PER_100MS;
}

/* Whether the wakings of a process are counted, where a window is open. */
static __always_inline int is_judged(u32 tgid)
{
    s64 *counting;
    struct target *target;

    if (!LOAD_TIME(ON_DEMAND))
        return 1;
    counting = shared_at(SHARED_COUNTING);
    if (!counting || !*counting)
        return 0;
    target = targets.lookup(&tgid);
    return target && target->judged;
}

#define WAS_LOOKED_AT 0x80000000U   /* in `wanted`: above any thread id */

/* A sleep that is not looked at: it may be on another call path than the one before. */
static __always_inline void forget_path(u32 tid)
{
    struct thread *thread = thread_at(tid);

    if (!thread || thread->tid != tid)
        return;
    thread->sleeper.code = 0;
    thread->sleeper.alike = 0;
}

/* ON_DEMAND: a thread is asked for by each idle exit that is blamed on it, which looks at its next sleep. Of all other sleeps on
 * the host nothing is read but this one word. */
static __always_inline int is_unasked(struct cpu_state *cpu, u32 tid, u32 tgid)
{
    int slot = tid & (SITE_SLOTS - 1);
    u32 *asked = wanted.lookup(&slot);

    if (asked && *asked == tid) {
        *asked = tid | WAS_LOOKED_AT;
        return 0;
    }
    if (is_judged(tgid))
        return 0;
    if (asked && *asked == (tid | WAS_LOOKED_AT)) {
        *asked = 0;
        forget_path(tid);
    }
    return 1;
}

/* Under load: is this one of the looks that are left out? */
static __always_inline int is_left_out(struct cpu_state *cpu, u32 tid, u32 tgid)
{
    int slot = tid & (SITE_SLOTS - 1);
    u32 *asked;

    if (!is_loaded(cpu) || ++cpu->looks_skipped % SAMPLE_1_IN == 0)
        return 0;
    asked = wanted.lookup(&slot);
    if (!asked || *asked != tid)
        return 1;
    *asked = 0;
    return 0;
}

/* To be asked before anything that costs. */
static __always_inline int is_skipped(struct cpu_state *cpu, u32 tid, u32 tgid)
{
    if (LOAD_TIME(ON_DEMAND))
        return is_unasked(cpu, tid, tgid);
    return is_left_out(cpu, tid, tgid);
}

/* One look in so many asks for the time: fewer in a tenth of a second are no load. */
#define LOOKS_PER_CLOCK 16

/* The load meter; a look under load stands for those that were left out before it. */
static __always_inline void note_look(struct cpu_state *cpu)
{
    u64 now = cpu->looks_count % LOOKS_PER_CLOCK ? 0 : coarse_ns();

    if (now > cpu->looks_window_ns + 100000000ULL) {
        u64 span = now - cpu->looks_window_ns;
        u32 most = cpu->idled_ns * IDLE_1_IN > span ? LOADED_PER_100MS : SATURATED_PER_100MS;

        cpu->looks_loaded = cpu->looks_count > most && span < 200000000ULL;
        cpu->looks_brisk = cpu->looks_count > BRISK_PER_100MS && span < 200000000ULL;
        cpu->idled_ns = 0;
        cpu->looks_window_ns = now;
        cpu->looks_count = 0;
    }
    if (is_loaded(cpu)) {
        cpu->looks_count += SAMPLE_1_IN;
        count(COUNT_LOADED);
    } else {
        cpu->looks_count++;
    }
}

static __always_inline int is_brisk(struct cpu_state *cpu)
{
    return cpu->looks_brisk || cpu->looks_count > BRISK_PER_100MS;
}
