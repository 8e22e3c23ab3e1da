/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* CPU time, waits, wake-ups and page faults of each statement that a MariaDB or MySQL server executes.
 *
 * Question: which statements use the server's CPU time, and wake it?
 * Cost: one uprobe a statement (dispatch_command's first instruction, which the kernel emulates: about 1 µs), and 2.2 µs
 *       in these programs for a point select: its text (1,023 bytes at most), the sums, four context switches, two packets
 *       (measured on a busy guest; each report prints its own). Nothing is sent in the window: no wake-up of ours.
 * Privileges: CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN for uprobes (or root). x86-64, because arguments are read by register.
 * Checked against clients that count their own statements, and CPU time against the scheduler's own count of the
 * process (tests/root).
 *
 * A statement begins where dispatch_command is entered. It ends, for what it used, where its thread goes to wait after
 * the last packet that it sent, else at the thread's next statement; for the client, with that packet. No probe is put
 * where the function returns: an exception that passes a return probe ends the process, and a probe on `ret` costs 20
 * times as much. Kernels before 6.3 do not tell when a socket is written: there the next entry of do_command ends it.
 *
 * The time of a thread is the scheduler's own (sum_exec_runtime at each switch-out); in between, the wall clock since it
 * was switched in. What interrupts and the hypervisor took meanwhile is corrected at the switch-out.
 *
 * A statement's identity is a hash of its text without comments, and with literals, and lists of them, alike; the table
 * that tells these apart comes from user space. The first text of each identity is kept.
 *
 * The loader puts in front: TEXT and STATES (powers of two), THREADS, TOTALS, TEXTS, PREPARED, LAYOUT, OFFSET_*, ARG_*,
 * HAS_SEND where the kernel has sock_send_length.
 */

#define REGISTER_CX 11
#define REGISTER_DX 12
#define REGISTER_SI 13
#define REGISTER_DI 14

/* include/my_command.h: the same numbers in every MySQL and MariaDB. */
#define COM_QUIT 1
#define COM_QUERY 3
#define COM_CHANGE_USER 17
#define COM_STMT_PREPARE 22
#define COM_STMT_EXECUTE 23
#define COM_STMT_CLOSE 25
#define COM_STMT_BULK_EXECUTE 250

#define PREPARING 0x9e3779b97f4a7c15ULL   /* tells the making of a statement from its execution */
#define FNV_OFFSET 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

enum counter { COUNT_DISPATCHES, COUNT_NO_ROOM, COUNT_UNREADABLE, COUNT_CUT, COUNT_ENDINGS, COUNTERS };

struct settings {
    u32 enabled;
    u32 target;              /* process id */
};

/* What a byte of a text does in a state: the next state, and what is mixed into the hash (0: nothing). */
struct table {
    u8 next[STATES * 256];
    u8 mixed[STATES * 256];
};

struct thread {
    u64 first_ns;            /* the scheduler's count when the thread was first seen */
    u64 last_ns;             /* ... and at its last switch-out */
    u64 in_at;               /* when it was switched in; 0 while it is out */
    u64 past_ns;             /* of threads before that had this number */
    u64 id;                  /* of the open statement; 0: none */
    u64 began_at, began_ns;  /* on the clock, and in CPU time */
    u64 ended_at, ended_ns;  /* where it would end if no more is sent; 0: it goes on */
    u64 sent_at;             /* the last packet; 0: none yet */
    u64 began_faults;
    u64 before_ns;           /* CPU time when its first statement of the window began */
    u32 wakeups;             /* switches from the idle task to this one */
    u32 began_wakeups, ended_wakeups;
    u32 command;
    u32 length;              /* of the whole text */
    u32 statements;          /* begun in the window */
    u32 first_seen_running;
    u32 dead;
    char text[TEXT];
};

struct total_key {
    u64 id;
    u64 tid;
};

struct total {
    u64 calls, wakeups, faults, wall_ns;
    s64 cpu_ns;
};

struct latency_key {
    u64 id;
    u64 bucket;
};

struct text {
    u32 command;
    u32 length;
    u64 statement;           /* COM_STMT_EXECUTE of an unknown one: its number, and the thread that executed it */
    u64 tid;
    char text[TEXT];
};

struct prepared_key {
    u64 connection;
    u64 statement;
};

/* A connection that prepares statements. The server numbers them 1, 2, 3, … for each connection, and tells the number in
 * an answer that is not seen here: `base` + how many were prepared is taken for it, and corrected by a statement that is
 * executed right after it was prepared. */
struct connection {
    u64 last_id;
    u32 prepared;
    s32 base;
    u32 known;
    u32 just_prepared;
};

BPF_HASH(threads, u32, struct thread, THREADS);
BPF_HASH(totals, struct total_key, struct total, TOTALS);
BPF_HASH(latencies, struct latency_key, u64, TOTALS);
BPF_HASH(texts, u64, struct text, TEXTS);
BPF_HASH(prepared, struct prepared_key, u64, PREPARED);
BPF_HASH(connections, u64, struct connection, THREADS);
BPF_ARRAY(new_thread, struct thread, 1);
BPF_ARRAY(table, struct table, 1);
BPF_ARRAY(settings, struct settings, 1);
BPF_PERCPU_ARRAY(new_text, struct text, 1);
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);

/* Uprobe programs can be preempted by another thread's on the same CPU: per-CPU values need atomic adds. */
static __always_inline void count(int what)
{
    u64 *value = counters.lookup(&what);
    if (value)
        __sync_fetch_and_add(value, 1);
}

static __always_inline u64 read_u64(u64 address)
{
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
    return value;
}

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

static __always_inline struct thread *thread_of(u32 tid, u64 task, u64 now, int running)
{
    struct thread *thread = threads.lookup(&tid);
    int zero = 0;

    if (!thread) {
        struct thread *empty = new_thread.lookup(&zero);
        if (empty)
            threads.update(&tid, empty);
        thread = threads.lookup(&tid);
        if (!thread) {
            count(COUNT_NO_ROOM);
            return 0;
        }
        thread->first_ns = thread->last_ns = run_time(task);
        thread->first_seen_running = running;
        thread->in_at = now;
    }
    return thread;
}

static __always_inline u64 cpu_of(struct thread *thread, u64 now)
{
    return thread->last_ns + (thread->in_at && now > thread->in_at ? now - thread->in_at : 0);
}

/* Eight classes of equal width in each octave: within 7 % of the value. */
static __always_inline u64 class_of(u64 value)
{
    u32 octave = bpf_log2l(value);
    octave = octave > 3 ? octave - 1 : 3;   /* bcc counts from 1 */
    return ((u64)octave << 3) | ((value >> (octave - 3)) & 7);
}

/* Put the text that a thread has in its own buffer where it outlives it. */
static __always_inline void keep_text(struct thread *thread, u64 id, u32 command, u32 tid, u64 statement)
{
    int zero = 0;
    struct text *text;

    if (texts.lookup(&id))
        return;
    text = new_text.lookup(&zero);
    if (!text)
        return;
    text->command = command;
    text->length = thread->length;
    text->statement = statement;
    text->tid = tid;
    /* Preempted here, another thread's text may get in: both are kept again the next time that they are new. */
    bpf_probe_read_kernel(text->text, TEXT, thread->text);
    if (texts.update(&id, text))
        count(COUNT_NO_ROOM);
}

/* The open statement is over: where it went to wait after its last packet, else here. */
static __always_inline void finish(struct thread *thread, u32 tid, u64 now, u64 task)
{
    struct total_key key = { .id = thread->id, .tid = tid };
    struct latency_key where = { .id = thread->id };
    u64 faults = faults_of(task), end = now, cpu, one = 1;
    u32 wakeups = thread->wakeups;
    struct total *total;
    u64 *calls;

    if (thread->id) {
        cpu = cpu_of(thread, now);
        if (thread->ended_at) {
            cpu = thread->ended_ns;
            end = thread->ended_at;
            wakeups = thread->ended_wakeups;
        }
        if (thread->sent_at)
            end = thread->sent_at;
        total = totals.lookup(&key);
        if (!total) {
            struct total empty = {};
            totals.update(&key, &empty);
            total = totals.lookup(&key);
            if (thread->command == COM_QUERY || thread->command == COM_STMT_PREPARE)
                keep_text(thread, thread->id, thread->command, tid, 0);
        }
        if (total) {
            total->calls++;
            total->cpu_ns += (s64)(cpu - thread->began_ns);
            total->wall_ns += end - thread->began_at;
            total->wakeups += wakeups - thread->began_wakeups;
            total->faults += faults - thread->began_faults;
        } else {
            count(COUNT_NO_ROOM);
        }
        where.bucket = class_of(end - thread->began_at);
        calls = latencies.lookup(&where);
        if (calls)
            __sync_fetch_and_add(calls, 1);
        else
            latencies.update(&where, &one);
        thread->id = 0;
    }
    thread->began_wakeups = wakeups;
    thread->began_faults = faults;
    thread->ended_at = 0;
    thread->sent_at = 0;
}

static __always_inline u64 hashed(struct thread *thread, u32 length)
{
    int zero = 0;
    struct table *how = table.lookup(&zero);
    u64 hash = FNV_OFFSET;
    u32 state = 0, i;

    if (!how)
        return 1;
#pragma nounroll
    for (i = 0; i < TEXT; i++) {
        u32 at, mixed;
        if (i >= length)
            break;
        at = (state & (STATES - 1)) << 8 | (u8)thread->text[i];
        mixed = how->mixed[at];
        state = how->next[at];
        if (mixed)
            hash = (hash ^ mixed) * FNV_PRIME;
    }
    return hash | 256;   /* below are commands */
}

/* The text of `length` bytes at `address`, in the thread's own buffer. */
static __always_inline u64 identify_text(struct thread *thread, u64 address, u32 length)
{
    u32 size = length;

    thread->length = length;
    if (size >= TEXT) {
        size = TEXT - 1;
        count(COUNT_CUT);
    }
    asm volatile("" : "+r"(size));   /* or the bound is forgotten */
    size &= TEXT - 1;
    if (bpf_probe_read_user(thread->text, size, (void *)address)) {
        count(COUNT_UNREADABLE);
        return thread->command;
    }
    return hashed(thread, size);
}

static __always_inline void remember(u64 thd, struct thread *thread, u32 tid, u64 id)
{
    struct connection *connection = connections.lookup(&thd);
    struct prepared_key key = { .connection = thd };

    if (!connection) {
        struct connection fresh = { .known = 1 };
        connections.update(&thd, &fresh);
        connection = connections.lookup(&thd);
        if (!connection) {
            count(COUNT_NO_ROOM);
            return;
        }
    }
    connection->prepared++;
    connection->last_id = id;
    connection->just_prepared = 1;
    if (connection->known) {
        key.statement = (u64)(connection->prepared + connection->base);
        prepared.update(&key, &id);
    }
    keep_text(thread, id, COM_QUERY, tid, 0);
}

static __always_inline u64 recall(u64 thd, struct thread *thread, u32 tid, u64 statement)
{
    struct prepared_key key = { .connection = thd, .statement = statement };
    struct connection *connection = connections.lookup(&thd);
    u64 *id, unknown;

    if (!connection) {
        struct connection fresh = {};   /* it executes what it prepared before: its numbers are not known */
        connections.update(&thd, &fresh);
    } else if (connection->just_prepared) {
        connection->just_prepared = 0;
        if (!connection->known || (s64)statement > (s64)connection->prepared + connection->base) {
            connection->base = (s32)statement - (s32)connection->prepared;
            connection->known = 1;
            prepared.update(&key, &connection->last_id);
        }
    }
    id = prepared.lookup(&key);
    if (id)
        return *id;
    unknown = ((statement << 32 | tid) * FNV_PRIME) | 256;
    keep_text(thread, unknown, COM_STMT_EXECUTE, tid, statement);
    return unknown;
}

static __always_inline void forget(u64 thd)
{
    struct connection *connection = connections.lookup(&thd);
    if (connection)
        connections.delete(&thd);
}

int uprobe__entry(u64 *ctx)
{
    u64 who = bpf_get_current_pid_tgid(), now, task, thd, id = 0;
    u32 tid = who, command;
    int zero = 0;
    struct settings *set = settings.lookup(&zero);
    struct thread *thread;
#if LAYOUT == 1
    u64 data[2] = {};
#endif

    if (!set || !set->enabled || who >> 32 != set->target)
        return 0;
    task = bpf_get_current_task();
    now = bpf_ktime_get_ns();
    count(COUNT_DISPATCHES);
    thread = thread_of(tid, task, now, 1);
    if (!thread)
        return 0;
    finish(thread, tid, now, task);
#if LAYOUT == 1
    /* dispatch_command(THD *, const COM_DATA *, enum_server_command), MySQL from 5.7 */
    thd = ctx[REGISTER_DI];
    command = ctx[REGISTER_DX];
    bpf_probe_read_user(data, sizeof(data), (void *)ctx[REGISTER_SI]);
#else
    /* dispatch_command(enum_server_command, THD *, char *packet, uint length, …), MySQL to 5.6 and MariaDB */
    thd = ctx[REGISTER_SI];
    command = ctx[REGISTER_DI];
#endif
    command &= 255;
    thread->command = command;
    thread->length = 0;
    id = command;
    if (command == COM_QUERY || command == COM_STMT_PREPARE) {
#if LAYOUT == 1
        id = identify_text(thread, data[0], data[1]);
#else
        id = identify_text(thread, ctx[REGISTER_DX], ctx[REGISTER_CX]);
#endif
        if (command == COM_STMT_PREPARE && id > 255) {
            remember(thd, thread, tid, id);
            id = (id ^ PREPARING) | 256;
        }
    } else if (command == COM_STMT_EXECUTE || command == COM_STMT_BULK_EXECUTE) {
#if LAYOUT == 1
        id = recall(thd, thread, tid, (u32)data[0]);
#else
        u32 number = 0;
        bpf_probe_read_user(&number, sizeof(number), (void *)ctx[REGISTER_DX]);
        if (number == 0xffffffff) {   /* MariaDB: the one that was prepared last */
            struct connection *connection = connections.lookup(&thd);
            if (connection)
                number = connection->prepared + connection->base;
        }
        id = recall(thd, thread, tid, number);
#endif
    } else if (command == COM_QUIT || command == COM_CHANGE_USER) {
        forget(thd);
    }
    thread->id = id ? id : 256;
    thread->began_at = now;
    thread->began_ns = cpu_of(thread, now);
    if (!thread->statements++)
        thread->before_ns = thread->began_ns;
    return 0;
}

/* do_command: the thread is about to wait for a packet. */
int uprobe__exit(u64 *ctx)
{
    u64 who = bpf_get_current_pid_tgid(), now;
    u32 tid = who;
    int zero = 0;
    struct settings *set = settings.lookup(&zero);
    struct thread *thread;

    if (!set || !set->enabled || who >> 32 != set->target)
        return 0;
    now = bpf_ktime_get_ns();
    thread = threads.lookup(&tid);
    count(COUNT_ENDINGS);
    if (thread && thread->id && !thread->ended_at) {
        thread->ended_at = now;
        thread->ended_ns = cpu_of(thread, now);
        thread->ended_wakeups = thread->wakeups;
    }
    return 0;
}

#ifdef HAS_SEND
RAW_TRACEPOINT_PROBE(sock_send_length)
{
    u64 who = bpf_get_current_pid_tgid();
    u32 tid = who;
    int zero = 0;
    struct settings *set = settings.lookup(&zero);
    struct thread *thread;

    if (!set || !set->enabled || who >> 32 != set->target)
        return 0;
    thread = threads.lookup(&tid);
    if (thread && thread->id) {
        thread->sent_at = bpf_ktime_get_ns();
        thread->ended_at = 0;
    }
    return 0;
}
#endif

RAW_TRACEPOINT_PROBE(sched_switch)
{
    u64 who = bpf_get_current_pid_tgid(), now, ids;
    int zero = 0;
    struct settings *set = settings.lookup(&zero);
    struct thread *thread;
    u64 task = ctx->args[ARG_sched_switch_prev];

    if (!set || !set->enabled)
        return 0;
    now = bpf_ktime_get_ns();
    if (who >> 32 == set->target) {
        u32 tid = who;
        thread = thread_of(tid, task, now, 1);
        if (thread) {
            u64 ran = run_time(task);
#ifdef ARG_sched_switch_prev_state
            u32 state = ctx->args[ARG_sched_switch_prev_state];
#else
            u32 state = read_u64(task + OFFSET_task_struct_state);
#endif
            thread->last_ns = ran;
            thread->in_at = 0;
            if (thread->sent_at && !thread->ended_at && state) {
                thread->ended_at = now;
                thread->ended_ns = ran;
                thread->ended_wakeups = thread->wakeups;
            }
            if (thread->dead) {
                thread->past_ns += ran - thread->first_ns;
                thread->first_ns = thread->last_ns = 0;
                thread->dead = 0;
            }
        }
    }
    task = ctx->args[ARG_sched_switch_next];
    ids = read_u64(task + OFFSET_task_struct_pid);   /* pid, and tgid behind it */
    if (ids >> 32 == set->target) {
        u32 tid = ids;
        thread = thread_of(tid, task, now, 0);
        if (thread) {
            thread->in_at = now;
            if (!(u32)who)
                thread->wakeups++;
        }
    }
    return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
    u64 who = bpf_get_current_pid_tgid();
    u32 tid = who;
    int zero = 0;
    struct settings *set = settings.lookup(&zero);
    struct thread *thread;

    if (!set || !set->enabled || who >> 32 != set->target)
        return 0;
    thread = threads.lookup(&tid);
    if (thread) {
        finish(thread, tid, bpf_ktime_get_ns(), bpf_get_current_task());
        thread->dead = 1;
    }
    return 0;
}
