/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* PostgreSQL: a message begins at a call of pgstat_report_activity with a text, and ends at a call without one.
 *
 * A message Query is a whole statement. Parse, Bind and Execute of one statement follow each other, each with its
 * text; they are one call. A Parse without the others is counted as one; an Execute without them fetches more rows of
 * a call that is counted already. The return address identifies the message (tracing/postgresql_places.py). A parallel
 * worker is part of its leader's statement from its start.
 */
#define FASTPATH 200         /* fast-path call of a function: no text; not a packet of MySQL */

enum message { WHOLE, PARSE, BIND, EXECUTE, WORKER, UNSURE };

BPF_HASH(messages, u64, u32, 256);   /* return address → enum message */

static __always_inline u32 message_of(u64 stack)
{
    u64 from = 0;
    u32 *kind;

    bpf_probe_read_user(&from, sizeof(from), (void *)stack);
    kind = messages.lookup(&from);
    return kind ? *kind : WHOLE;
}

/* Whether a message continues the open statement of its process. */
static __always_inline int continues_statement(struct thread *thread, u32 message, u64 id)
{
    u64 making = (id ^ PREPARING) | 256;

    if (!thread->id || thread->is_done)
        return 0;
    if (thread->began_before && message != PARSE && message != WHOLE)
        return thread->id == id;
    if (message == BIND)
        return thread->command == COM_STMT_PREPARE && thread->id == making;
    if (message == EXECUTE)
        return thread->command != COM_STMT_PREPARE && thread->id == id;
    return message == UNSURE && thread->id == id;
}

/* The statement is finished. If there is a client, the last packet follows. */
static __always_inline void report_idle(u32 tid)
{
    struct thread *thread = threads.lookup(&tid);

    count(COUNT_ENDINGS);
    if (!thread || !thread->id || thread->is_done)
        return;
    thread->is_done = 1;
    thread->sent_at = bpf_ktime_get_ns();
    thread->ended_delay = delay_of(bpf_get_current_task());
    if (!LOAD_TIME(HAS_SEND)) {
        thread->ended_at = thread->sent_at;
        thread->ended_ns = cpu_time(thread, thread->ended_at);
        thread->ended_wakeups = thread->wakeups;
    }
}

/* A process reports `id` at `now`. */
static __always_inline void report(struct thread *thread, u32 tid, u32 message, u64 id, u64 now)
{
    if (continues_statement(thread, message, id)) {
        if (message == BIND) {
            thread->command = COM_QUERY;
            thread->id = id;
            keep_text(thread, id, COM_QUERY, tid, 0);
        }
        return;
    }
    end_statement(thread, tid, now, bpf_get_current_task());
    thread->command = message == PARSE ? COM_STMT_PREPARE
                    : message == EXECUTE || message == WORKER ? COM_PART : COM_QUERY;
    if (message == PARSE)
        id = (id ^ PREPARING) | 256;
    thread->id = id;
    thread->is_done = 0;
    thread->began_at = now;
    thread->began_ns = cpu_time(thread, now);
    if (message == WORKER) {
        thread->is_helper = 1;
        if (!thread->statements)
            thread->began_ns = thread->first_ns;
    }
    if (!thread->statements++)
        thread->before_ns = thread->began_ns;
    /* Keep the text now: the next message of this statement has its own text, which may be a different one. */
    keep_text(thread, id, thread->command, tid, 0);
}

int uprobe__entry(u64 *ctx)
{
    u64 who = current_pid_tgid(), address = ctx[REGISTER_SI], now, id = FASTPATH;
    u32 tid = who, message = WHOLE;
    struct thread *thread;

    if (!is_target(who))
        return 0;
    if (!address && (u32)ctx[REGISTER_DI] != (u32)LOAD_TIME(STATE_FASTPATH)) {
        report_idle(tid);
        return 0;
    }
    count(COUNT_DISPATCHES);
    now = bpf_ktime_get_ns();
    thread = thread_state(tid, bpf_get_current_task(), now, 1);
    if (!thread)
        return 0;
    if (address) {
        message = message_of(ctx[REGISTER_SP]);
        id = identify_string(thread, address);
        if (id > 255 && thread->length >= TEXT) {
            start_hash(thread, address, 0, now);
            hash_programs.call(ctx, HASH_PIECES);
            count(COUNT_CUT);
        }
    }
    report(thread, tid, message, id, now);
    return 0;
}

/* Rows of a cursor belong to its query: the text that declared the cursor, at any earlier time. */
static __always_inline void fetch_from(struct thread *thread, u32 tid, u64 id)
{
    if (id < 256)
        return;
    keep_text(thread, id, COM_QUERY, tid, 0);
    thread->command = COM_PART;
    thread->id = id;
}

/* PortalRunFetch(Portal, …): FETCH and MOVE, and loops in functions. The latter belong to their caller. */
int uprobe__fetch(u64 *ctx)
{
    u64 who = current_pid_tgid(), address;
    u32 tid = who;
    struct thread *thread;
    char first;

    if (!LOAD_TIME(PORTAL_TEXT) || !is_target(who))
        return 0;
    count(COUNT_ENDINGS);
    thread = threads.lookup(&tid);
    if (!thread || !thread->id || thread->is_done || thread->command == COM_PART)
        return 0;
    first = thread->text[0] & ~0x20;
    if ((first != 'F' || (thread->text[1] & ~0x20) != 'E') && (first != 'M' || (thread->text[2] & ~0x20) != 'V'))
        return 0;
    address = read_user(ctx[REGISTER_DI] + LOAD_TIME(PORTAL_TEXT));
    if (!address)
        return 0;
    thread->length = 0;
    start_hash(thread, address, 0, 0);
    hash_programs.call(ctx, HASH_PIECES);
    return 0;
}

/* A long text, or the text of a cursor. */
int uprobe__hash_pieces(u64 *ctx)
{
    u32 tid = current_pid_tgid();
    struct thread *thread = threads.lookup(&tid);

    if (thread)
        hash_programs.call(ctx, hash_pieces(thread));
    return 0;
}

int uprobe__finish_hash(u64 *ctx)
{
    u32 tid = current_pid_tgid();
    struct thread *thread = threads.lookup(&tid);

    if (!thread)
        return 0;
    if (thread->progress.began_at)
        report(thread, tid, message_of(ctx[REGISTER_SP]), finish_hash(thread), thread->progress.began_at);
    else
        fetch_from(thread, tid, finish_hash(thread));
    return 0;
}
