/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Find the text of a prepared statement by the number that its connection executes.
 *
 * The server sends the number in the first packet of its answer to a prepare request. It builds the packet in the
 * buffer of the request and encrypts it later, so the number is read there at the time of sending. Numbers that were
 * not seen are not guessed: connections of a pool have statements from before the window, and a new connection can have
 * the address of a closed one. The text of such a statement is read from the server's memory at the time of its answer,
 * and is remembered by its number.
 */
#define ANSWER_BYTES 16
#define ANSWER_OK 12         /* its minimum length: status, number, columns, parameters, filler, warnings */
#define ANSWER_ERROR 0xff

struct prepared_key {
    u64 connection;
    u64 statement;
    u64 epoch;
};

/* The connection at an address. A new `epoch` invalidates its numbers when they can be those of another client. */
struct connection {
    u64 epoch;
    u64 last_id;
    u64 unanswered;          /* the answer to its last prepare request was not seen */
};

/* If a table is full, the oldest entries are evicted, and their statements become unknown. */
BPF_TABLE("lru_hash", struct prepared_key, u64, prepared, PREPARED);
BPF_TABLE("lru_hash", u64, struct connection, connections, PREPARED);

/* Note that a connection prepares the statement `id`, with its text at `address`. Up to 255: the text is unknown. */
static __always_inline void note_prepare(u64 thd, struct thread *thread, u32 tid, u64 id, u64 address, u64 now)
{
    struct connection *connection = connections.lookup(&thd);
    struct connection next = { .epoch = now, .last_id = id, .unanswered = 1 };

    if (connection && !connection->unanswered)
        next.epoch = connection->epoch;
    if (connections.update(&thd, &next))
        count(COUNT_NO_ROOM);
    thread->connection = thd;
    thread->answer_address = address - 1;   /* the request begins with its command's byte */
    thread->prepared_id = id;
    if (id > 255)
        keep_text(thread, id, COM_QUERY, tid, 0);
}

/* Read the answer to the thread's COM_STMT_PREPARE. */
static __always_inline void read_prepare_answer(struct thread *thread)
{
    struct connection *connection = connections.lookup(&thread->connection);
    struct prepared_key key = { .connection = thread->connection };
    u64 id = thread->prepared_id;
    u8 answer[ANSWER_BYTES] = {};
    u32 number;

    if (!connection || bpf_probe_read_user(answer, sizeof(answer), (void *)thread->answer_address))
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

/* Return the identity of the statement that a connection executes by its number. */
static __always_inline u64 find_prepared(u64 thd, struct thread *thread, u32 tid, u64 statement, u64 now)
{
    struct connection *connection = connections.lookup(&thd);
    struct prepared_key key = { .connection = thd, .statement = statement };
    struct connection next = {};
    u64 *id, unknown;

    if (connection && statement == LAST_PREPARED && connection->last_id > 255)
        return connection->last_id;
    if (connection) {
        if (connection->unanswered) {   /* the numbers that were seen here can be another client's */
            connection->unanswered = 0;
            connection->epoch = now;
        }
        key.epoch = connection->epoch;
        id = prepared.lookup(&key);
        if (id)
            return *id;
    }
    unknown = ((statement << 32 | tid) * FNV_PRIME) | 256;
    thread->length = thread->hashed_bytes = thread->kept_bytes = 0;
    keep_text(thread, unknown, COM_STMT_EXECUTE, tid, statement);
    if (!connection) {
        next.epoch = now;
        connections.update(&thd, &next);
    }
    thread->unnamed_connection = thd;
    thread->unnamed_number = statement;
    thread->progress.address = 0;
    return unknown;
}

/* Name the open statement by its text. With several packets the last text is used, because procedures contain texts. */
static __always_inline void name_statement(struct thread *thread, u32 tid, u64 id)
{
    struct connection *connection = connections.lookup(&thread->unnamed_connection);
    struct prepared_key key = { .connection = thread->unnamed_connection, .statement = thread->unnamed_number };

    if (id < 256)
        return;
    keep_text(thread, id, COM_QUERY, tid, 0);
    thread->id = id;
    if (connection && !connection->unanswered && thread->unnamed_number != LAST_PREPARED) {
        key.epoch = connection->epoch;
        prepared.update(&key, &id);
    }
}

/* Read the text of a statement that was executed by an unknown number. */
static __always_inline void name_executed(void *ctx, struct thread *thread, u32 tid)
{
    u64 text[2] = {};
    int zero = 0;
    struct place *place = text_places.lookup(&zero);

    if (!place || !place->text)
        return;
    bpf_probe_read_user(text, sizeof(text), (void *)(thread->unnamed_connection + place->text));
    if (!text[0] || !text[1] || (text[0] == thread->progress.address && (u32)text[1] == thread->progress.length))
        return;
    thread->progress.has_ansi_quotes = has_ansi_quotes(place, thread->unnamed_connection);
    start_hash(thread, text[0], text[1], 0);
    if ((u32)text[1] >= TEXT)
        open_hash_programs.call(ctx, HASH_PIECES);
    name_statement(thread, tid, identify_text(thread, text[0], text[1]));
}

/* A connection ends, or resets its statements. */
static __always_inline void forget_connection(u64 thd)
{
    connections.delete(&thd);
}
