/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The target's threads: the last known site of each, and the limit of captures under load.
 *
 * A CPU is under load if it saw more than LOADED_PER_100MS switch-outs and wakings of target threads in a tenth of a
 * second. It then captures one in SAMPLE_1_IN and does not count wakings. It still captures threads with a wake-up at
 * an unknown site. The last tenth of a second decides, so a constant load costs the sample only. A CPU that was hardly
 * idle has few idle exits to explain, and is under load from SATURATED_PER_100MS on, because captures would be pure
 * overhead.
 *
 * ON_DEMAND is for readers that run permanently. A sleep is captured only if the thread's last sleep ended an idle
 * period, or if its process is measured now. The cost on a host then depends on its idle exits only.
 */
#define SITE_SLOTS 16384
/* A CPU was hardly idle if it idled for less than this part of a tenth of a second. */
#define IDLE_1_IN 10
/* Above this number of captures on one CPU, threads that stay on the same call path are not read each time. */
#define BRISK_PER_100MS 100

/* The last known place of a thread. */
struct site {
    u64 ip, sp, code;
    u64 window;       /* window in which its stack was copied */
    u32 same_path_count;        /* captures in sequence with this call path */
    u32 skipped_reads;       /* captures since then that read the registers only */
};

/* A slot of a thread. The next thread with the same slot number takes it when it sleeps. The first cache line has all
 * members that a waker on another CPU reads. */
struct thread {
    u32 tid, tgid;
    u32 asleep;       /* it sleeps and its waking was not seen yet */
    u32 sent;         /* number of its stacks that were copied */
    struct site sleeper;
    u64 window;       /* window of `sent` */
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

#define REQUEST_SERVED 0x80000000U   /* a flag in `requested`, above any thread id */

/* A sleep without a capture: the call path may differ from the last one. */
static __always_inline void clear_path(u32 tid)
{
    struct thread *thread = thread_at(tid);

    if (!thread || thread->tid != tid)
        return;
    thread->sleeper.code = 0;
    thread->sleeper.same_path_count = 0;
}

/* ON_DEMAND: each idle exit requests a capture of its thread at the next sleep. Other sleeps read only this word. */
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

/* Whether this capture is skipped because of load. */
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

/* Whether this capture is skipped. This check is cheap, so it comes first. */
static __always_inline int is_capture_skipped(struct cpu_state *cpu, u32 tid, u32 tgid)
{
    if (LOAD_TIME(ON_DEMAND))
        return is_not_requested(cpu, tid, tgid);
    return is_skipped_under_load(cpu, tid, tgid);
}

/* One capture in this many reads the clock. Fewer in a tenth of a second are not a load. */
#define CAPTURES_PER_CLOCK 16

/* Update the load meter. Under load, a capture also counts for the skipped ones before it. */
static __always_inline void count_capture(struct cpu_state *cpu)
{
    u64 now = cpu->meter_captures % CAPTURES_PER_CLOCK ? 0 : bpf_ktime_get_ns();

    if (now > cpu->meter_start_ns + 100000000ULL) {
        u64 span = now - cpu->meter_start_ns;
        u32 limit = cpu->idled_ns * IDLE_1_IN > span ? LOADED_PER_100MS : SATURATED_PER_100MS;

        cpu->was_loaded = cpu->meter_captures > limit && span < 200000000ULL;
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
