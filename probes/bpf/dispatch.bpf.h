/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* MariaDB and MySQL: a statement begins where dispatch_command is entered. */

/* include/my_command.h: the same numbers in every MySQL and MariaDB. */
#define COM_QUIT 1
#define COM_CHANGE_USER 17
#define COM_STMT_EXECUTE 23
#define COM_STMT_CLOSE 25
#define COM_RESET_CONNECTION 31
#define COM_STMT_BULK_EXECUTE 250
#define LAST_PREPARED 0xffffffff   /* MariaDB: executes the one that was prepared last */

#include "prepared.bpf.h"

int uprobe__entry(u64 *ctx)
{
    u64 who = bpf_get_current_pid_tgid(), now, task, thd, id = 0;
    u64 address;
    u32 tid = who, command;
    struct thread *thread;
#if LAYOUT == 1
    u64 data[2] = {};
#endif

    if (!is_target(who))
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
    thread->answer_at = 0;
    id = command;
    if (command == COM_QUERY || command == COM_STMT_PREPARE) {
#if LAYOUT == 1
        address = data[0];
        id = identify_text(thread, address, data[1]);
#else
        address = ctx[REGISTER_DX];
        id = identify_text(thread, address, ctx[REGISTER_CX]);
#endif
        if (command == COM_STMT_PREPARE) {
            remember(thd, thread, tid, id, address, now);
            if (id > 255)
                id = (id ^ PREPARING) | 256;
        }
    } else if (command == COM_STMT_EXECUTE || command == COM_STMT_BULK_EXECUTE) {
#if LAYOUT == 1
        id = recall(thd, thread, tid, (u32)data[0], now);
#else
        u32 number = 0;
        bpf_probe_read_user(&number, sizeof(number), (void *)ctx[REGISTER_DX]);
        id = recall(thd, thread, tid, number, now);
#endif
    } else if (command == COM_QUIT || command == COM_CHANGE_USER || command == COM_RESET_CONNECTION) {
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
    struct thread *thread;

    if (!is_target(who))
        return 0;
    now = bpf_ktime_get_ns();
    thread = threads.lookup(&tid);
    count(COUNT_ENDINGS);
    if (thread && thread->id && !thread->ended_at) {
        if (thread->answer_at)
            note_answer(thread);
        thread->answer_at = 0;
        thread->ended_at = now;
        thread->ended_ns = cpu_of(thread, now);
        thread->ended_wakeups = thread->wakeups;
    }
    return 0;
}
