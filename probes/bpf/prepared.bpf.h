/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Prepared statements: which text a connection's number means.
 *
 * The server tells the number in the first packet of its answer, which it puts together where the request had been, before
 * anything is encrypted: it is read there when the answer is sent. A number that was not seen is no guess: a pooled connection has
 * statements of before the window, and a new one may lie where a dead one lay. What such a one executes the server's memory has:
 * it is read there when its answer is sent, and is known by its number from then on.
 */
#define ANSWER_BYTES 16
#define ANSWER_OK 12         /* its least length: status, number, columns, parameters, filler, warnings */
#define ANSWER_ERROR 0xff

struct prepared_key {
    u64 connection;
    u64 statement;
    u64 epoch;
};

/* What is at an address of a connection: `epoch` is another one where what was known there may be another client's. */
struct connection {
    u64 epoch;
    u64 last_id;
    u64 unanswered;          /* the answer to its last prepare was not seen */
};

/* Where they are full the oldest go: their statements are unknown then. */
BPF_TABLE("lru_hash", struct prepared_key, u64, prepared, PREPARED);
BPF_TABLE("lru_hash", u64, struct connection, connections, PREPARED);

/* A connection prepares the statement `id` (255 at most: its text is not known), whose text lies at `address`. */
static __always_inline void remember(u64 thd, struct thread *thread, u32 tid, u64 id, u64 address, u64 now)
{
    struct connection *connection = connections.lookup(&thd);
    struct connection next = { .epoch = now, .last_id = id, .unanswered = 1 };

    if (connection && !connection->unanswered)
        next.epoch = connection->epoch;
    if (connections.update(&thd, &next))
        count(COUNT_NO_ROOM);
    thread->connection = thd;
    thread->answer_at = address - 1;   /* the request begins with its command's byte */
    thread->prepares = id;
    if (id > 255)
        keep_text(thread, id, COM_QUERY, tid, 0);
}

/* The answer to the thread's COM_STMT_PREPARE is there. */
static __always_inline void note_answer(struct thread *thread)
{
    struct connection *connection = connections.lookup(&thread->connection);
    struct prepared_key key = { .connection = thread->connection };
    u64 id = thread->prepares;
    u8 answer[ANSWER_BYTES] = {};
    u32 number;

    if (!connection || bpf_probe_read_user(answer, sizeof(answer), (void *)thread->answer_at))
        return;
    /* Length (3 bytes), number of the packet, status, number of the statement. */
    if (answer[3] != 1)
        return;
    if (answer[4] == ANSWER_ERROR) {
        connection->last_id = 0;
        connection->unanswered = 0;
    } else if (!answer[4] && !answer[1] && !answer[2] && (answer[0] == ANSWER_OK || answer[0] == ANSWER_OK + 1)) {
        number = answer[5] | answer[6] << 8 | answer[7] << 16 | (u32)answer[8] << 24;
        key.statement = number;
        key.epoch = connection->epoch;
        connection->unanswered = 0;
        if (id > 255)
            prepared.update(&key, &id);
        else
            prepared.delete(&key);
    }
}

static __always_inline u64 recall(u64 thd, struct thread *thread, u32 tid, u64 statement, u64 now)
{
    struct connection *connection = connections.lookup(&thd);
    struct prepared_key key = { .connection = thd, .statement = statement };
    struct connection next = {};
    u64 *id, unknown;

    if (connection && statement == LAST_PREPARED && connection->last_id > 255)
        return connection->last_id;
    if (connection) {
        if (connection->unanswered) {   /* whose the numbers are that were seen here is not known */
            connection->unanswered = 0;
            connection->epoch = now;
        }
        key.epoch = connection->epoch;
        id = prepared.lookup(&key);
        if (id)
            return *id;
    }
    unknown = ((statement << 32 | tid) * FNV_PRIME) | 256;
    thread->length = thread->hashed = thread->kept = 0;
    keep_text(thread, unknown, COM_STMT_EXECUTE, tid, statement);
    if (!connection) {
        next.epoch = now;
        connections.update(&thd, &next);
    }
    thread->nameless = thd;
    thread->number = statement;
    thread->walk.address = 0;
    return unknown;
}

/* The text of what it executes is known: the last one where it sends several packets, as procedures have texts within. */
static __always_inline void name(struct thread *thread, u32 tid, u64 id)
{
    struct connection *connection = connections.lookup(&thread->nameless);
    struct prepared_key key = { .connection = thread->nameless, .statement = thread->number };

    if (id < 256)
        return;
    keep_text(thread, id, COM_QUERY, tid, 0);
    thread->id = id;
    if (connection && !connection->unanswered && thread->number != LAST_PREPARED) {
        key.epoch = connection->epoch;
        prepared.update(&key, &id);
    }
}

BPF_TABLE("prog", u32, int, walks_sent, ENTRIES_IF(HAS_SEND, 2));

static __always_inline void name_executed(void *ctx, struct thread *thread, u32 tid)
{
    u64 text[2] = {};
    int zero = 0;
    struct place *place = place_of.lookup(&zero);

    if (!place || !place->text)
        return;
    bpf_probe_read_user(text, sizeof(text), (void *)(thread->nameless + place->text));
    if (!text[0] || !text[1] || (text[0] == thread->walk.address && (u32)text[1] == thread->walk.length))
        return;
    thread->walk.ansi = ansi_of(place, thread->nameless);
    walk_from(thread, text[0], text[1], 0);
    if ((u32)text[1] >= TEXT)
        walks_sent.call(ctx, WALK_ON);
    name(thread, tid, identify_text(thread, text[0], text[1]));
}

int FUNCTION_IF(HAS_SEND, called__walk)(struct bpf_raw_tracepoint_args *ctx)
{
    u32 tid = bpf_get_current_pid_tgid();
    struct thread *thread = threads.lookup(&tid);

    if (thread)
        walks_sent.call(ctx, walk_on(thread));
    return 0;
}

int FUNCTION_IF(HAS_SEND, called__walked)(struct bpf_raw_tracepoint_args *ctx)
{
    u32 tid = bpf_get_current_pid_tgid();
    struct thread *thread = threads.lookup(&tid);

    if (thread)
        name(thread, tid, walked(thread));
    return 0;
}

static __always_inline void forget(u64 thd)
{
    connections.delete(&thd);
}
