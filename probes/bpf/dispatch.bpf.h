/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* MariaDB and MySQL: a statement begins at the entry of dispatch_command. */

/* include/my_command.h: the same numbers in all versions of MySQL and MariaDB. */
#define COM_QUIT 1
#define COM_CHANGE_USER 17
#define COM_STMT_EXECUTE 23
#define COM_RESET_CONNECTION 31
#define COM_STMT_BULK_EXECUTE 250
#define COM_EVENT 1001       /* an event of the server's scheduler; it has no packet */
#define LAST_PREPARED 0xffffffff   /* MariaDB: execute the statement that was prepared last */

#include "prepared.bpf.h"

/* A request of a client. `length` is the length of its text, `number` the id of its prepared statement. */
struct packet {
    u64 thd, address;
    u32 command, length, number;
};

static __always_inline void read_packet(u64 *ctx, struct packet *packet)
{
    /* dispatch_command(THD *, const COM_DATA *, enum_server_command), MySQL from 5.7 */
    if (LOAD_TIME(LAYOUT) == 1) {
        u64 data[2] = {};

        bpf_probe_read_user(data, sizeof(data), (void *)ctx[REGISTER_SI]);
        packet->thd = ctx[REGISTER_DI];
        packet->command = ctx[REGISTER_DX] & 255;
        packet->address = data[0];
        packet->length = data[1];
        packet->number = data[0];
        return;
    }
    /* dispatch_command(enum_server_command, THD *, char *packet, uint length, …), MySQL to 5.6 and MariaDB */
    packet->thd = ctx[REGISTER_SI];
    packet->command = ctx[REGISTER_DI] & 255;
    packet->address = ctx[REGISTER_DX];
    packet->length = ctx[REGISTER_CX];
    packet->number = 0;
    if (packet->command == COM_STMT_EXECUTE || packet->command == COM_STMT_BULK_EXECUTE)
        bpf_probe_read_user(&packet->number, sizeof(packet->number), (void *)packet->address);
}

/* Begin a statement. `id` is the hash of its text, or its command. */
static __always_inline void start_statement(struct thread *thread, u32 tid, struct packet *packet, u64 id)
{
    u64 now = thread->began_at, thd = packet->thd;
    u32 command = packet->command;

    if (command == COM_STMT_PREPARE) {
        note_prepare(thd, thread, tid, id, packet->address, now);
        if (id > 255)
            id = (id ^ PREPARING) | 256;
    } else if (command == COM_STMT_EXECUTE || command == COM_STMT_BULK_EXECUTE) {
        id = find_prepared(thd, thread, tid, packet->number, now);
    } else if (command == COM_QUIT || command == COM_CHANGE_USER || command == COM_RESET_CONNECTION) {
        forget_connection(thd);
    }
    if (thread->length >= TEXT && id > 255)
        keep_text(thread, id, command, tid, 0);   /* the rest of the text is kept already */
    thread->id = id ? id : 256;
    if (!thread->statements++)
        thread->before_ns = thread->began_ns;
}

int uprobe__entry(u64 *ctx)
{
    u64 who = current_pid_tgid(), now, task, id;
    struct packet packet;
    u32 tid = who;
    int zero = 0;
    struct thread *thread;

    if (!is_target(who))
        return 0;
    task = bpf_get_current_task();
    now = bpf_ktime_get_ns();
    count(COUNT_DISPATCHES);
    thread = thread_state(tid, task, now, 1);
    if (!thread)
        return 0;
    end_statement(thread, tid, now, task);
    read_packet(ctx, &packet);
    thread->command = packet.command;
    thread->length = 0;
    thread->answer_address = 0;
    thread->unnamed_connection = 0;
    thread->began_at = now;
    thread->began_ns = cpu_time(thread, now);
    id = packet.command;
    if (packet.command == COM_QUERY || packet.command == COM_STMT_PREPARE) {
        thread->progress.has_ansi_quotes = has_ansi_quotes(text_places.lookup(&zero), packet.thd);
        if (packet.length >= TEXT) {
            start_hash(thread, packet.address, packet.length, now);
            hash_programs.call(ctx, HASH_PIECES);
        }
        id = identify_text(thread, packet.address, packet.length);
    }
    start_statement(thread, tid, &packet, id);
    return 0;
}

/* sp_head::execute_procedure(THD *, …) runs for a client's CALL, which is a statement already, and for an event. The
 * server runs an event in a separate thread, which exits afterwards. The text of an event is a procedure that the
 * server makes of it. */
int uprobe__procedure(u64 *ctx)
{
    u64 who = current_pid_tgid(), text[2] = {}, now;
    u32 tid = who;
    int zero = 0;
    struct place *place = text_places.lookup(&zero);
    struct thread *thread;

    if (!place || !place->text || !is_target(who))
        return 0;
    count(COUNT_ENDINGS);
    now = bpf_ktime_get_ns();
    thread = thread_state(tid, bpf_get_current_task(), now, 1);
    if (!thread || thread->id)
        return 0;
    bpf_probe_read_user(text, sizeof(text), (void *)(ctx[REGISTER_SI] + place->text));
    if (!text[0] || !text[1])
        return 0;
    end_statement(thread, tid, now, bpf_get_current_task());
    thread->command = COM_EVENT;
    thread->length = thread->answer_address = thread->unnamed_connection = 0;
    thread->began_at = now;
    thread->began_ns = cpu_time(thread, now);
    thread->progress.has_ansi_quotes = has_ansi_quotes(place, ctx[REGISTER_SI]);
    start_hash(thread, text[0], text[1], now);
    hash_programs.call(ctx, HASH_PIECES);
    return 0;
}

/* A long text, or the text of an event. */
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
    struct packet packet = {};
    u64 id;

    if (!thread)
        return 0;
    id = finish_hash(thread);
    if (thread->command == COM_EVENT) {
        packet.command = COM_EVENT;
        keep_text(thread, id, COM_EVENT, tid, 0);
    } else {
        read_packet(ctx, &packet);
    }
    start_statement(thread, tid, &packet, id);
    return 0;
}

/* do_command: the thread will wait for a packet. */
int uprobe__exit(u64 *ctx)
{
    u64 who = current_pid_tgid(), now;
    u32 tid = who;
    struct thread *thread;

    if (!is_target(who))
        return 0;
    now = bpf_ktime_get_ns();
    thread = threads.lookup(&tid);
    count(COUNT_ENDINGS);
    if (thread && thread->id && !thread->ended_at) {
        if (thread->answer_address)
            read_prepare_answer(thread);
        thread->answer_address = 0;
        thread->ended_at = now;
        thread->ended_ns = cpu_time(thread, now);
        thread->ended_wakeups = thread->wakeups;
        thread->ended_delay = delay_of(bpf_get_current_task());
    }
    return 0;
}

/* The server calls thd_wait_begin(THD *, int) before a wait of that type. */
int uprobe__wait(u64 *ctx)
{
    u64 who = current_pid_tgid();
    u32 tid = who;
    struct thread *thread;

    if (!is_target(who))
        return 0;
    count(COUNT_ENDINGS);
    thread = threads.lookup(&tid);
    if (thread)
        thread->server_wait = ctx[REGISTER_SI];
    return 0;
}

/* The server calls thd_wait_end. */
int uprobe__waited(u64 *ctx)
{
    u64 who = current_pid_tgid();
    u32 tid = who;
    struct thread *thread;

    if (!is_target(who))
        return 0;
    count(COUNT_ENDINGS);
    thread = threads.lookup(&tid);
    if (thread)
        thread->server_wait = 0;
    return 0;
}
