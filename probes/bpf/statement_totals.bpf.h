/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sum the resources that threads use, by statement. */
#define BEGAN_BEFORE 0x100000000   /* in `tid`: the part of a statement that began before the window */

struct total_key {
    u64 id;
    u64 tid;
};

struct total {
    u64 calls, wakeups, faults, wall_ns;
    s64 cpu_ns;
    u64 waits[WAITS];
    u64 squares;             /* squares of the CPU time per call, in units of 1 << SQUARED_NS_LOG */
};

struct latency_key {
    u64 id;
    u64 bucket;
};

BPF_HASH(totals, struct total_key, struct total, TOTALS);
#define SQUARED_NS_LOG 8      /* 256 ns: the square of 1,000 s fits a u64 */

BPF_ARRAY(new_total, struct total, 1);   /* zeros */
BPF_HASH(latencies, struct latency_key, u64, TOTALS);

static __always_inline u64 run_time(u64 task)
{
    return read_u64(task + OFFSET_task_struct_se + OFFSET_sched_entity_sum_exec_runtime);
}

static __always_inline u64 faults_of(u64 task)
{
    u64 faults[2] = {};
    bpf_probe_read_kernel(faults, sizeof(faults), (void *)(task + OFFSET_task_struct_min_flt));
    return faults[0] + faults[1];
}

/* A thread that leaves its CPU, and was not switched in since the window began, ran in all of it. */
static __always_inline u64 run_since_start(u64 ran)
{
    u64 start = window_start(), since = start ? bpf_ktime_get_ns() - start : 0;

    return since < ran ? since : ran;
}

/* The state of a thread. A new one begins with the scheduler's count of its run time. */
static __always_inline struct thread *thread_state(u32 tid, u64 task, u64 now, int running)
{
    struct thread *thread = thread_entry(tid);

    if (thread && !thread->is_known) {
        thread->is_known = 1;
        thread->first_ns = thread->last_ns = run_time(task);
        thread->first_seen_running = running;
        if (!running && !thread->first_ns)
            thread->open = OPEN_NONE;   /* a new thread */
        if (running && !now)
            thread->first_ns -= run_since_start(thread->first_ns);
        thread->in_at = now;
    }
    return thread;
}

static __always_inline u64 cpu_time(struct thread *thread, u64 now)
{
    return thread->last_ns + (thread->in_at && now > thread->in_at ? now - thread->in_at : 0);
}

/* Eight buckets of equal width per octave: within 7 % of the value. */
static __always_inline u64 latency_bucket(u64 value)
{
    u32 octave = bpf_log2l(value);
    octave = octave > 3 ? octave - 1 : 3;   /* bcc counts bits from 1 */
    return ((u64)octave << 3) | ((value >> (octave - 3)) & 7);
}

static __always_inline struct total *total_entry(struct total_key *key)
{
    int zero = 0;
    struct total *empty = new_total.lookup(&zero);

    if (empty)
        totals.insert(key, empty);
    return totals.lookup(key);
}

/* End the open statement: at the wait after its last packet if there was one, else now. */
static __always_inline void end_statement(struct thread *thread, u32 tid, u64 now, u64 task)
{
    struct total_key key = { .id = thread->id, .tid = thread->began_before ? BEGAN_BEFORE | tid : tid };
    struct latency_key latency = { .id = thread->id };
    u64 faults = faults_of(task), end = now, cpu, one = 1;
    u64 delay = delay_of(task);
    u32 wakeups = thread->wakeups;
    struct total *total = 0;
    u64 *calls, cpu_units;
    int is_complete = thread->command != COM_PART && !thread->began_before;

    settle_wait(thread, delay);
    if (thread->id) {
        cpu = cpu_time(thread, now);
        if (thread->ended_at) {
            cpu = thread->ended_ns;
            end = thread->ended_at;
            wakeups = thread->ended_wakeups;
        }
        if (thread->sent_at)
            end = thread->sent_at;
        total = totals.lookup(&key);
        if (!total) {
            total = total_entry(&key);
            if (thread->began_before)
                thread->before_id = thread->id;
            else if (total && thread->own_count < OWN_STATEMENTS)
                thread->own_ids[thread->own_count++ & (OWN_STATEMENTS - 1)] = thread->id;
            if (thread->command == COM_QUERY || thread->command == COM_STMT_PREPARE)
                keep_text(thread, thread->id, thread->command, tid, 0);
        }
        if (total) {
            total->calls += thread->command != COM_PART;
            total->cpu_ns += (s64)(cpu - thread->began_ns);
            if (is_complete && cpu > thread->began_ns) {
                cpu_units = (cpu - thread->began_ns) >> SQUARED_NS_LOG;
                total->squares += cpu_units * cpu_units;
            }
            total->wall_ns += end - thread->began_at;
            total->wakeups += wakeups - thread->began_wakeups;
            total->faults += faults - thread->began_faults;
        } else {
            count(COUNT_NO_ROOM);
        }
        if (is_complete) {
            latency.bucket = latency_bucket(end - thread->began_at);
            calls = latencies.lookup(&latency);
            if (calls)
                __sync_fetch_and_add(calls, 1);
            else
                latencies.update(&latency, &one);
        }
        thread->id = 0;
        thread->began_before = 0;
    }
    move_waits(thread, total ? total->waits : 0, delay);
    reset_waits(thread, delay);
    thread->began_wakeups = wakeups;
    thread->began_faults = faults;
    thread->ended_at = 0;
    thread->sent_at = 0;
}
