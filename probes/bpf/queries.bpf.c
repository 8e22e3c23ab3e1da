/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* CPU time, waits, wake-ups and page faults of each statement that a MariaDB or MySQL server executes.
 *
 * Question: which statements use the server's CPU time, and wake it?
 * Cost: one uprobe a statement (dispatch_command's first instruction, which the kernel emulates: about 1 µs), and 2 µs
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
 * The loader puts in front: TEXT and STATES (powers of two), THREADS, TOTALS, TEXTS, PREPARED, LAYOUT, OFFSET_*, ARG_*,
 * HAS_SEND where the kernel has sock_send_length; what paths.bpf.h wants where stacks are sampled beside.
 */

/* include/my_command.h: the same numbers in every MySQL and MariaDB. */
#define COM_QUIT 1
#define COM_QUERY 3
#define COM_CHANGE_USER 17
#define COM_STMT_PREPARE 22
#define COM_STMT_EXECUTE 23
#define COM_STMT_CLOSE 25
#define COM_STMT_BULK_EXECUTE 250

enum counter { COUNT_DISPATCHES, COUNT_NO_ROOM, COUNT_UNREADABLE, COUNT_CUT, COUNT_ENDINGS, COUNTERS };

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
    u16 dead;
    u16 is_known;            /* its first counts are there */
    char text[TEXT];
};

#include "reading.bpf.h"
#include "target.bpf.h"
#include "probed.bpf.h"
#include "texts.bpf.h"
#include "uses.bpf.h"
#include "prepared.bpf.h"

#ifdef STACK_PAGES
/* The statement that a thread executes; 0: none. */
static __always_inline u64 what_runs(u32 tid)
{
    struct thread *thread = threads.lookup(&tid);
    return thread && !thread->ended_at ? thread->id : 0;
}
#define WHAT_RUNS(tid) what_runs(tid)
#include "paths.bpf.h"
#endif

int uprobe__entry(u64 *ctx)
{
    u64 who = bpf_get_current_pid_tgid(), now, task, thd, id = 0;
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
    struct thread *thread;

    if (!is_target(who))
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
    struct thread *thread;

    if (!is_target(who))
        return 0;
    thread = threads.lookup(&tid);
    if (thread && thread->id) {
        thread->sent_at = bpf_ktime_get_ns();
        thread->ended_at = 0;
    }
    return 0;
}
#endif

/* The target's thread is switched out. The clock is not asked: most of a statement's switches need none. */
static __always_inline void switch_out(struct thread *thread, u64 task, u32 state)
{
    u64 ran = run_time(task);

    thread->last_ns = ran;
    thread->in_at = 0;
    if (thread->sent_at && !thread->ended_at && state) {
        thread->ended_at = thread->sent_at;
        thread->ended_ns = ran;
        thread->ended_wakeups = thread->wakeups;
    }
    if (thread->dead) {
        thread->past_ns += ran - thread->first_ns;
        thread->first_ns = thread->last_ns = 0;
        thread->dead = 0;
    }
}

RAW_TRACEPOINT_PROBE(sched_switch)
{
    u64 who = bpf_get_current_pid_tgid(), wanted = target_now(), now, next;
    u64 task = ctx->args[ARG_sched_switch_prev];
    struct thread *thread;

    if (!wanted)
        return 0;
    if (who >> 32 == wanted) {
        thread = thread_of(who, task, 0, 1);
        if (thread)
#ifdef ARG_sched_switch_prev_state
            switch_out(thread, task, ctx->args[ARG_sched_switch_prev_state]);
#else
            switch_out(thread, task, read_u64(task + OFFSET_task_struct_state));
#endif
    }
    task = ctx->args[ARG_sched_switch_next];
    next = pid_tgid_of(task);
    if (next >> 32 == wanted) {
        now = bpf_ktime_get_ns();
        thread = thread_of(next, task, now, 0);
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
    struct thread *thread;

    if (!is_target(who))
        return 0;
    thread = threads.lookup(&tid);
    if (thread) {
        finish(thread, tid, bpf_ktime_get_ns(), bpf_get_current_task());
        thread->dead = 1;
    }
    return 0;
}
