/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which statement the threads of a server were met at, on a CPU, many times a second.
 *
 * Question: which statements use the server's CPU time, where a probe at each of them is too dear?
 * Cost: SAMPLE_HZ timer interrupts a second on every CPU, also on one that idles (it is woken for them): 2 to 20 µs each in a
 *       guest. Where one meets the server, 3 µs more for the reading and hashing of the statement's text (1,023 bytes at
 *       most). Nothing is sent in the window. The scheduler's own ticks would cost no interrupt, and meet long statements
 *       more often than short ones where CPUs idle in between (tried).
 * Privileges: CAP_BPF and CAP_PERFMON (or root). No tracepoint, no probe: perf software events. x86-64.
 * Checked against statements of known CPU time (tests/root).
 *
 * A server has the text of what a thread executes in its memory: PostgreSQL's processes at an address that is the same in
 * all (debug_query_string); MariaDB's and MySQL's in the object of the connection, whose address each thread has in
 * memory of its own. Where exactly is told by user space (tracing/statements/textplace.py). The thread is the one that was
 * interrupted, so its text does not change meanwhile.
 *
 * The loader puts in front: TEXT and STATES (powers of two), TEXTS, MOMENTS, LAYOUT, OFFSET_*.
 */
#define COM_QUERY 3          /* include/my_command.h */
#define COM_STMT_PREPARE 22
#define POSTGRESQL 2         /* of the layouts */
#define GENERATIONS 3        /* a program that a server's process starts may start another */

enum counter { COUNT_EVENTS, COUNT_NO_ROOM, COUNT_UNREADABLE, COUNT_CUT, COUNTERS };

/* A text on its way to the hash. */
struct thread {
    u32 command;
    u32 length;
    char text[TEXT];
};

/* PostgreSQL: `text` is where the text's address lies, `client` where there is one in the processes of clients alone (0: not
 * known). Else `client` is the place of the connection's address, from the thread's own pointer on, `text` that of the text's
 * address and length from there on. */
struct place {
    u64 text, client;
};

struct moment {
    u64 id;                  /* of the statement; 0: none */
    u32 tid;
    u32 is_client;
};

struct met {
    u64 count;
    char comm[16];
};

#include "reading.bpf.h"
#include "target.bpf.h"
#include "counts.bpf.h"
#include "texts.bpf.h"

BPF_ARRAY(place_of, struct place, 1);
BPF_HASH(moments, struct moment, struct met, MOMENTS);
BPF_PERCPU_ARRAY(looked_at, struct thread, 1);

static __always_inline u64 read_user(u64 address)
{
    u64 value = 0;
    bpf_probe_read_user(&value, sizeof(value), (void *)address);
    return value;
}

#if LAYOUT == POSTGRESQL
/* How many generations a process is below the first of the server; -1: it is none of its. */
static __always_inline int generation_of(u64 who, u64 task, u64 first)
{
    int generation;

    if (who >> 32 == first)
        return 0;
#pragma unroll
    for (generation = 1; generation <= GENERATIONS; generation++) {
        task = read_u64(task + OFFSET_task_struct_real_parent);
        if (read_u32(task + OFFSET_task_struct_tgid) == first)
            return generation;
    }
    return -1;
}

static __always_inline u64 statement_of(struct thread *thread, struct place *place, u64 task)
{
    u64 address = read_user(place->text);
    return address ? identify_string(thread, address) : 0;
}
#else
static __always_inline u64 statement_of(struct thread *thread, struct place *place, u64 task)
{
    u64 text[2] = {}, connection;

    connection = read_user(read_u64(task + OFFSET_task_struct_thread + OFFSET_thread_struct_fsbase) + place->client);
    if (!connection)
        return 0;
    bpf_probe_read_user(text, sizeof(text), (void *)(connection + place->text));
    return text[0] && text[1] ? identify_text(thread, text[0], text[1]) : 0;
}
#endif

int sample__moment(struct bpf_perf_event_data *ctx)
{
    u64 who = bpf_get_current_pid_tgid(), wanted = target_now(), task;
    struct moment moment = { .tid = who };
    struct thread *thread;
    struct place *place;
    struct met *met;
    int zero = 0;

    count(COUNT_EVENTS);
    if (!wanted || !(u32)who)
        return 0;
    task = bpf_get_current_task();
    place = place_of.lookup(&zero);
    thread = looked_at.lookup(&zero);
    if (!place || !thread)
        return 0;
    thread->command = COM_QUERY;
    thread->length = 0;
#if LAYOUT == POSTGRESQL
    {
        int generation = generation_of(who, task, wanted);
        if (generation < 0)
            return 0;
        /* What a process of the server starts is another program, with something else at that address. */
        if (generation < 2) {
            moment.id = statement_of(thread, place, task);
            moment.is_client = place->client && read_user(place->client);
        }
    }
#else
    if (who >> 32 != wanted)
        return 0;
    moment.id = statement_of(thread, place, task);
#endif
    if (moment.id > 255)
        keep_text(thread, moment.id, COM_QUERY, moment.tid, 0);
    met = moments.lookup(&moment);
    if (met) {
        /* A thread is on one CPU at a time. */
        met->count++;
        return 0;
    }
    {
        struct met fresh = { .count = 1 };
        bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
        if (moments.update(&moment, &fresh))
            count(COUNT_NO_ROOM);
    }
    return 0;
}
