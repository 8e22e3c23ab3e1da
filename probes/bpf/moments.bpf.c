/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sample the statements that a server's threads execute on CPUs.
 *
 * Question: which statements use the server's CPU time, if a probe at each statement is too expensive?
 * Cost: SAMPLE_HZ timer interrupts per second on every CPU, which also wake an idle CPU: 2 to 20 µs each in a guest. A
 *       sample of the server needs 3 µs more to read and hash the text (1,023 bytes; at most 3 µs per further 1,000
 *       bytes). The programs send no data in the window. The scheduler's own ticks would need no extra interrupts, but
 *       they sample long statements more often than short ones if CPUs idle in between (measured).
 * Privileges: CAP_BPF and CAP_PERFMON (or root). It uses only perf software events. x86-64, arm64.
 * Tests compare the samples with statements of known CPU time (tests/system).
 *
 * A server has the texts of its running statements in its memory. In PostgreSQL's processes the address is the same in
 * all (debug_query_string). PostgreSQL clears that text at the end of each message, before the commit at a later Sync
 * and before it sends its answer. The last text is then in the process's row of pg_stat_activity. In MariaDB and MySQL
 * the text is in the object of the connection, and each thread has its address in thread-local memory. User space
 * finds the places (tracing/statement_places.py). A sampled thread is interrupted, so its text does not change while it
 * is read.
 *
 * The loader defines: TEXT and STATES (powers of two), TEXTS, MOMENTS, LAYOUT, OFFSET_*.
 */
#define COM_QUERY 3          /* include/my_command.h */
#define COM_STMT_PREPARE 22
#define GENERATIONS 3        /* a child of a server's process can have children */

enum counter { COUNT_EVENTS, COUNT_NO_ROOM, COUNT_UNREADABLE, COUNT_CUT, COUNTERS };

#include "hash_progress.bpf.h"

/* The buffer of a text that is being hashed. */
struct thread {
    u32 command;
    u32 length;
    u32 hashed_bytes, kept_bytes;        /* texts.bpf.h */
    u32 limit;               /* a text of this length may be cut; 0: whole texts */
    struct hash_progress progress;
    char text[TEXT];
};

struct moment {
    u64 id;                  /* of the statement; 0: none */
    u32 tid;
    u32 is_client;
};

struct sample_count {
    u64 count;
    char comm[16];
};

#include "kernel_memory.bpf.h"
#include "server_processes.bpf.h"
#include "counters.bpf.h"
#include "texts.bpf.h"
#include "long_texts.bpf.h"
#include "text_places.bpf.h"

BPF_HASH(moments, struct moment, struct sample_count, MOMENTS);
BPF_PERCPU_ARRAY(thread_scratch, struct thread, 1);

#if IS_POSTGRESQL
/* Return the generations between a process and the server's first process; -1: it is not a descendant. */
static __always_inline int generation_of(u64 who, u64 task, u64 first)
{
    int generation;

    if (who >> 32 == first)
        return 0;
#pragma unroll
    for (generation = 1; generation <= GENERATIONS; generation++) {
        task = read_u64(task + OFFSET_task_struct_real_parent);
        if (pid_tgid_of(task) >> 32 == first)
            return generation;
    }
    return -1;
}

/* Whether the interrupted process sends data. */
static __always_inline int is_sending(void)
{
    if (!LOAD_TIME(HAS_REGISTERS))
        return 0;
    return read_u32((u64)bpf_task_pt_regs(bpf_get_current_task_btf()) + LOAD_TIME(CALL_OFFSET))
           == (u32)LOAD_TIME(CALL_SENDTO);
}

/* Return the address of the text that the interrupted thread executes (0: none), and set its length if it does not end
 * with a zero byte. */
static __always_inline u64 find_text(struct thread *thread, struct place *place, u64 task, u32 *length)
{
    u64 address = read_user(place->text);
    int is_running = 0;

    thread->limit = 0;
    if (address || !place->client || !read_user(place->client))
        return address;
    address = find_last_activity(place, &is_running);
    if (!address || !(is_running || is_sending()))
        return 0;
    thread->limit = place->limit;
    return address;
}
#else
static __always_inline u64 find_text(struct thread *thread, struct place *place, u64 task, u32 *length)
{
    u64 text[2] = {}, connection;

    connection = read_user(read_u64(task + OFFSET_task_struct_thread + OFFSET_thread_struct_pointer) + place->client);
    if (!connection)
        return 0;
    bpf_probe_read_user(text, sizeof(text), (void *)(connection + place->text));
    *length = text[1];
    thread->progress.has_ansi_quotes = has_ansi_quotes(place, connection);
    return text[1] ? text[0] : 0;
}
#endif

/* The last long text of a thread. Hashing takes 3 µs per 1,000 bytes with interrupts off, and consecutive samples often
 * meet the same text. A text with the same address, length, first and last 512 bytes counts as the same. */
struct last_text {
    u64 address, ends, id;
    u32 length, unused;
};

BPF_TABLE("lru_hash", u32, struct last_text, last_texts, 4096);

static __always_inline u64 hash_ends(struct thread *thread, u64 address, u32 length)
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

/* Return the thread's last statement if the text at this address is still the same, else 0. */
static __always_inline u64 find_last_text(struct thread *thread, u32 tid, u64 address, u32 length)
{
    struct last_text *last = last_texts.lookup(&tid);

    if (!last || last->address != address || (length && last->length != length))
        return 0;
    return hash_ends(thread, address, last->length) == last->ends ? last->id : 0;
}

/* Count a sample of a thread in this statement. */
static __always_inline int count_sample(struct thread *thread, struct place *place, u32 tid, u64 id)
{
    struct moment moment = { .id = id, .tid = tid };
    struct sample_count *row;

#if IS_POSTGRESQL
    moment.is_client = place->client && read_user(place->client);
#endif
    if (id > 255)
        keep_text(thread, id, COM_QUERY, tid, 0);
    row = moments.lookup(&moment);
    if (row) {
        /* A thread is on one CPU at a time. */
        row->count++;
        return 0;
    }
    {
        struct sample_count fresh = { .count = 1 };
        bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
        if (moments.update(&moment, &fresh))
            count(COUNT_NO_ROOM);
    }
    return 0;
}

int sample__moment(struct bpf_perf_event_data *ctx)
{
    u64 who = current_pid_tgid(), wanted = target_id(), task, address, id = 0;
    u32 tid = who, length = 0;
    struct thread *thread;
    struct place *place;
    int zero = 0;

    count(COUNT_EVENTS);
    if (!wanted || !tid)
        return 0;
    task = bpf_get_current_task();
    place = text_places.lookup(&zero);
    thread = thread_scratch.lookup(&zero);
    if (!place || !thread)
        return 0;
    thread->command = COM_QUERY;
    thread->length = 0;
#if IS_POSTGRESQL
    {
        int generation = generation_of(who, task, wanted);
        if (generation < 0)
            return 0;
        /* A child of a server's process is another program, with other data at that address. */
        if (generation > 1) {
            struct place nowhere = {};
            return count_sample(thread, &nowhere, tid, 0);
        }
    }
#else
    if (who >> 32 != wanted)
        return 0;
#endif
    address = find_text(thread, place, task, &length);
    if (address) {
#if IS_POSTGRESQL
        id = identify_string(thread, address);
        if (thread->limit && thread->length + 1 >= (thread->limit < TEXT ? thread->limit : TEXT))
            return count_sample(thread, place, tid, 0);
        if (thread->length >= TEXT) {
#else
        if (length >= TEXT) {
#endif
            id = find_last_text(thread, tid, address, length);
            if (id)
                return count_sample(thread, place, tid, id);
            start_hash(thread, address, length, 0);
            hash_programs.call(ctx, HASH_PIECES);
#if IS_POSTGRESQL
            count(COUNT_CUT);
#endif
        }
#if !IS_POSTGRESQL
        id = identify_text(thread, address, length);
#endif
    }
    return count_sample(thread, place, tid, id);
}

/* Hash a long text in several calls. They run in one interrupt, so no other sample changes the buffer. */
int sample__hash_pieces(struct bpf_perf_event_data *ctx)
{
    int zero = 0;
    struct thread *thread = thread_scratch.lookup(&zero);

    if (thread)
        hash_programs.call(ctx, hash_pieces(thread));
    return 0;
}

int sample__finish_hash(struct bpf_perf_event_data *ctx)
{
    u32 tid = current_pid_tgid();
    int zero = 0;
    struct place *place = text_places.lookup(&zero);
    struct thread *thread = thread_scratch.lookup(&zero);
    struct last_text last = {};

    if (!place || !thread)
        return 0;
    last.id = finish_hash(thread);
    count_sample(thread, place, tid, last.id);
    if (thread->progress.has_more)
        return 0;
    last.address = thread->progress.address;
    last.length = thread->progress.position;
    last.ends = hash_ends(thread, last.address, last.length);
    if (last.ends)
        last_texts.update(&tid, &last);
    return 0;
}
