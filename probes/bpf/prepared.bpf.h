/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Prepared statements: which text a connection's number means. */
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

BPF_HASH(prepared, struct prepared_key, u64, PREPARED);
BPF_HASH(connections, u64, struct connection, THREADS);

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
