/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which statement the threads of a server were met at, on a CPU, many times a second.
 *
 * Question: which statements use the server's CPU time, where a probe at each of them is too dear?
 * Cost: SAMPLE_HZ timer interrupts a second on every CPU, also on one that idles (it is woken for them): 2 to 20 µs each in a
 *       guest. Where one meets the server, 3 µs more for the reading and hashing of the statement's text (of 1,023 bytes; 3 µs for each 1,000 more, at
 *       most). Nothing is sent in the window. The scheduler's own ticks would cost no interrupt, and meet long statements
 *       more often than short ones where CPUs idle in between (tried).
 * Privileges: CAP_BPF and CAP_PERFMON (or root). No tracepoint, no probe: perf software events. x86-64, arm64.
 * Checked against statements of known CPU time (tests/system).
 *
 * A server has the text of what a thread executes in its memory: PostgreSQL's processes at an address that is the same in
 * all (debug_query_string); MariaDB's and MySQL's in the object of the connection, whose address each thread has in
 * memory of its own. Where exactly is told by user space (tracing/statement_places.py). The thread is the one that was
 * interrupted, so its text does not change meanwhile.
 *
 * The loader puts in front: TEXT and STATES (powers of two), TEXTS, MOMENTS, LAYOUT, OFFSET_*.
 */
#define COM_QUERY 3          /* include/my_command.h */
#define COM_STMT_PREPARE 22
#define GENERATIONS 3        /* a program that a server's process starts may start another */

enum counter { COUNT_EVENTS, COUNT_NO_ROOM, COUNT_UNREADABLE, COUNT_CUT, COUNTERS };

#include "walk.bpf.h"

/* A text on its way to the hash. */
struct thread {
    u32 command;
    u32 length;
    u32 hashed, kept;        /* texts.bpf.h */
    struct walk walk;
    char text[TEXT];
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
#include "server_processes.bpf.h"
#include "counters.bpf.h"
#include "texts.bpf.h"
#include "whole.bpf.h"
#include "place.bpf.h"

BPF_HASH(moments, struct moment, struct met, MOMENTS);
BPF_PERCPU_ARRAY(looked_at, struct thread, 1);

#if IS_POSTGRESQL
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

/* Where the text is that the interrupted thread executes, 0: nowhere; and its length where it does not end with a zero. */
static __always_inline u64 text_of(struct thread *thread, struct place *place, u64 task, u32 *length)
{
    return read_user(place->text);
}
#else
static __always_inline u64 text_of(struct thread *thread, struct place *place, u64 task, u32 *length)
{
    u64 text[2] = {}, connection;

    connection = read_user(read_u64(task + OFFSET_task_struct_thread + OFFSET_thread_struct_pointer) + place->client);
    if (!connection)
        return 0;
    bpf_probe_read_user(text, sizeof(text), (void *)(connection + place->text));
    *length = text[1];
    thread->walk.ansi = ansi_of(place, connection);
    return text[1] ? text[0] : 0;
}
#endif

/* The long text that a thread was met at last. To hash one takes 3 µs for each 1,000 bytes, with interrupts off, and a thread is
 * met at one again and again: if address, length, both ends of 512 bytes are the same, the text is. */
struct memo {
    u64 address, ends, id;
    u32 length, unused;
};

BPF_TABLE("lru_hash", u32, struct memo, memos, 4096);

static __always_inline u64 ends_of(struct thread *thread, u64 address, u32 length)
{
    u64 *words = (u64 *)thread->text, hash = length;
    int i;

    if (bpf_probe_read_user(thread->text, TEXT / 2, (void *)address) ||
        bpf_probe_read_user(thread->text + TEXT / 2, TEXT / 2, (void *)(address + length - TEXT / 2)))
        return 0;
#pragma nounroll
    for (i = 0; i < TEXT / 8; i++)
        hash = (hash ^ words[i]) * FNV_PRIME ^ hash >> 29;
    return hash;
}

/* The statement that it was met at last, if it is at that text still; else 0. */
static __always_inline u64 same_again(struct thread *thread, u32 tid, u64 address, u32 length)
{
    struct memo *memo = memos.lookup(&tid);

    if (!memo || memo->address != address || (length && memo->length != length))
        return 0;
    return ends_of(thread, address, memo->length) == memo->ends ? memo->id : 0;
}

/* The interrupted thread is at this statement. */
static __always_inline int met_at(struct thread *thread, struct place *place, u32 tid, u64 id)
{
    struct moment moment = { .id = id, .tid = tid };
    struct met *met;

#if IS_POSTGRESQL
    moment.is_client = place->client && read_user(place->client);
#endif
    if (id > 255)
        keep_text(thread, id, COM_QUERY, tid, 0);
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

int sample__moment(struct bpf_perf_event_data *ctx)
{
    u64 who = bpf_get_current_pid_tgid(), wanted = target_id(), task, address, id = 0;
    u32 tid = who, length = 0;
    struct thread *thread;
    struct place *place;
    int zero = 0;

    count(COUNT_EVENTS);
    if (!wanted || !tid)
        return 0;
    task = bpf_get_current_task();
    place = place_of.lookup(&zero);
    thread = looked_at.lookup(&zero);
    if (!place || !thread)
        return 0;
    thread->command = COM_QUERY;
    thread->length = 0;
#if IS_POSTGRESQL
    {
        int generation = generation_of(who, task, wanted);
        if (generation < 0)
            return 0;
        /* What a process of the server starts is another program, with something else at that address. */
        if (generation > 1) {
            struct place nowhere = {};
            return met_at(thread, &nowhere, tid, 0);
        }
    }
#else
    if (who >> 32 != wanted)
        return 0;
#endif
    address = text_of(thread, place, task, &length);
    if (address) {
#if IS_POSTGRESQL
        id = identify_string(thread, address);
        if (thread->length >= TEXT) {
#else
        if (length >= TEXT) {
#endif
            id = same_again(thread, tid, address, length);
            if (id)
                return met_at(thread, place, tid, id);
            walk_from(thread, address, length, 0);
            walks.call(ctx, WALK_ON);
#if IS_POSTGRESQL
            count(COUNT_CUT);
#endif
        }
#if !IS_POSTGRESQL
        id = identify_text(thread, address, length);
#endif
    }
    return met_at(thread, place, tid, id);
}

/* ... at one with a long text, which is hashed by and by: nothing else runs on this CPU meanwhile. */
int sample__walk(struct bpf_perf_event_data *ctx)
{
    int zero = 0;
    struct thread *thread = looked_at.lookup(&zero);

    if (thread)
        walks.call(ctx, walk_on(thread));
    return 0;
}

int sample__walked(struct bpf_perf_event_data *ctx)
{
    u32 tid = bpf_get_current_pid_tgid();
    int zero = 0;
    struct place *place = place_of.lookup(&zero);
    struct thread *thread = looked_at.lookup(&zero);
    struct memo memo = {};

    if (!place || !thread)
        return 0;
    memo.id = walked(thread);
    met_at(thread, place, tid, memo.id);
    if (thread->walk.goes_on)
        return 0;
    memo.address = thread->walk.address;
    memo.length = thread->walk.at;
    memo.ends = ends_of(thread, memo.address, memo.length);
    if (memo.ends)
        memos.update(&tid, &memo);
    return 0;
}
