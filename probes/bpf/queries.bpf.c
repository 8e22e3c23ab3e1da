/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* CPU time, waits, wake-ups and page faults of each statement that a MariaDB, MySQL or PostgreSQL server executes.
 *
 * Question: which statements use the server's CPU time, and wake it?
 * Cost: one uprobe a statement (dispatch_command's first instruction, which the kernel emulates: about 1 µs), and 2 µs
 *       in these programs for a point select: its text (of 1,023 bytes; 3 µs for each 1,000 more), the sums, four context switches, two packets
 *       (measured on a busy guest; each report prints its own). PostgreSQL's processes say twice a statement what they do,
 *       and each switch of the host looks up whether it is one of theirs. Nothing is sent in the window: no wake-up of ours.
 * Privileges: CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN for uprobes (or root). x86-64, because arguments are read by register.
 * Checked against clients that count their own statements, and CPU time against the scheduler's own count of the
 * process (tests/system).
 *
 * A statement begins where dispatch_command is entered. It ends, for what it used, where its thread goes to wait after
 * the last packet that it sent, else at the thread's next statement; for the client, with that packet. No probe is put
 * where the function returns: an exception that passes a return probe ends the process, and a probe on `ret` costs 20
 * times as much. Kernels before 6.3 do not tell when a socket is written: there the next entry of do_command ends it. What
 * PostgreSQL's processes say is in activity.bpf.h; there a statement goes on until its process says that it is idle.
 *
 * The time of a thread is the scheduler's own (sum_exec_runtime at each switch-out); in between, the wall clock since it
 * was switched in. What interrupts and the hypervisor took meanwhile is corrected at the switch-out.
 *
 * The loader puts in front: TEXT and STATES (powers of two), THREADS, ENDED_KEPT, TOTALS, TEXTS, PREPARED, LAYOUT, OFFSET_*, ARG_*,
 * HAS_SEND where the kernel has sock_send_length; FAMILY and STATE_FASTPATH with PostgreSQL's LAYOUT; what paths.bpf.h wants where stacks are sampled beside.
 */

/* What has a text; the numbers are include/my_command.h's. */
#define COM_QUERY 3
#define COM_STMT_PREPARE 22
#define COM_PART 1000        /* of a statement that was counted when it began, or that another process executes */

#define PREPARING 0x9e3779b97f4a7c15ULL   /* tells the making of a statement from its execution */

#define TASK_DEAD 0x80       /* include/linux/sched.h, since Linux 4.14 */
#define OWN_STATEMENTS 8     /* of a thread: which sums are its own, the first of them */

enum counter { COUNT_DISPATCHES, COUNT_NO_ROOM, COUNT_UNREADABLE, COUNT_CUT, COUNT_ENDINGS, COUNTERS };

#include "walk.bpf.h"
#include "reading.bpf.h"
#include "waitkinds.bpf.h"

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
    u64 waits[WAITS];        /* waits.bpf.h: of the open statement */
    u64 out_at;              /* within a statement, when it left the CPU to wait; 0: it did not */
    u64 out_delay, began_delay, ended_delay;   /* what it had waited for a CPU by then, and by its last packet */
    u64 slept;               /* of the last wait, with what it waited for the CPU behind it */
    u32 why;                 /* enum wait: what the last one was for */
    u32 waits_for;           /* what the server says that it waits for; 0: nothing */
    u64 own[OWN_STATEMENTS]; /* identities of which there are sums of this thread */
    u64 connection;          /* whose statement it prepares (prepared.bpf.h) */
    u64 answer_at;           /* where the answer will be; 0: none is waited for */
    u64 prepares;
    u64 nameless;            /* the connection whose number it executes, of which no text is known; 0: none */
    u64 number;
    struct walk walk;
    u32 wakeups;             /* switches from the idle task to this one */
    u32 began_wakeups, ended_wakeups;
    u32 command;
    u32 length;              /* of the whole text */
    u32 hashed, kept;        /* texts.bpf.h */
    u32 statements;          /* begun in the window */
    u8 first_seen_running;
    u8 dead;
    u8 is_known;             /* its first counts are there */
    u8 is_over;              /* the server says so; what is left is its last packet */
    u8 own_count;
    u8 has_waited;
    u8 is_helper;            /* it works for the statement of another process */
    char text[TEXT];
};

#include "server_processes.bpf.h"
#include "uprobes.bpf.h"
#include "waits.bpf.h"
#include "texts.bpf.h"
#include "whole.bpf.h"
#include "place.bpf.h"
#include "statement_totals.bpf.h"
#include "exited_threads.bpf.h"

/* The statement that a thread executes; 0: none. */
static __always_inline u64 what_runs(u32 tid)
{
    struct thread *thread = threads.lookup(&tid);
    return thread && !thread->ended_at ? thread->id : 0;
}
#define WHAT_RUNS(tid) what_runs(tid)
#include "paths.bpf.h"

#if IS_POSTGRESQL
#include "activity.bpf.h"
#else
#include "dispatch.bpf.h"
#endif

RAW_TRACEPOINT_IF(HAS_SEND, sock_send_length)
{
    u64 who = bpf_get_current_pid_tgid();
    u32 tid = who;
    struct thread *thread;

    if (!is_target(who))
        return 0;
    thread = threads.lookup(&tid);
    if (thread && thread->id && !(thread->is_over && thread->ended_at)) {
        u64 now = bpf_ktime_get_ns();

        if (thread->ended_at)
            goes_on_sending(thread, bpf_get_current_task(), now, cpu_time(thread, now));
        thread->sent_at = now;
        thread->ended_delay = delay_of(bpf_get_current_task());
        thread->ended_at = 0;
#if !IS_POSTGRESQL
        if (thread->answer_at)
            note_answer(thread);
        thread->answer_at = 0;   /* what is sent later may lie where the first packet lay */
        if (thread->nameless)
            name_executed(ctx, thread, tid);
#endif
    }
    return 0;
}

/* The target's thread is switched out. The clock is asked within a statement only. */
static __always_inline void switch_out(struct thread *thread, u32 tid, u64 task, u32 state)
{
    u64 ran = run_time(task), delay = delay_of(task);

    thread->last_ns = ran;
    thread->in_at = 0;
    settle(thread, delay);
    if (thread->sent_at && !thread->ended_at && state && (!IS_POSTGRESQL || thread->is_over)) {
        thread->ended_at = thread->sent_at;
        thread->ended_ns = ran;
        thread->ended_wakeups = thread->wakeups;
        thread->why = why_out(thread, state);
    } else if (thread->id && !thread->ended_at) {
        goes_to_wait(thread, delay, state);
    }
    /* Its last switch, not one on the way there: giving its memory back takes a while. */
    if (thread->dead && state & TASK_DEAD) {
#if !IS_POSTGRESQL
        note_exit_end(task, ran);
#else
        if (thread->id)
            end_statement(thread, tid, bpf_ktime_get_ns(), task);
#endif
        thread->past_ns += ran - thread->first_ns;
        thread->before_ns -= thread->first_ns;   /* where it executed any: what it counts from is 0 now */
        thread->first_ns = thread->last_ns = 0;
        thread->dead = 0;
#ifdef FAMILY
        remove_process(tid);
#endif
        release_thread(thread, tid);
    }
}

RAW_TRACEPOINT_PROBE(sched_switch)
{
    u64 who = bpf_get_current_pid_tgid(), wanted = target_id(), now, next;
    u64 task = ctx->args[ARG_sched_switch_prev], state;
    struct thread *thread;

    if (!wanted)
        return 0;
    if (is_target_process(who, wanted)) {
        thread = thread_state(who, task, 0, 1);
        state = LOAD_TIME(HAS_PREV_STATE) ? ctx->args[ARG_sched_switch_prev_state]
                                          : read_u64(task + OFFSET_task_struct_state);
        if (thread)
            switch_out(thread, who, task, state);
    }
    task = ctx->args[ARG_sched_switch_next];
    next = pid_tgid_of(task);
    if (is_target_process(next, wanted)) {
        now = bpf_ktime_get_ns();
        thread = thread_state(next, task, now, 0);
        if (thread) {
            thread->in_at = now;
            is_back(thread, now);
            if (!(u32)who)
                thread->wakeups++;
        }
    }
    return 0;
}

#ifdef FAMILY
/* Before the new one runs. */
RAW_TRACEPOINT_PROBE(sched_process_fork)
{
    u32 parent = bpf_get_current_pid_tgid() >> 32;
    u32 child = pid_tgid_of(ctx->args[ARG_sched_process_fork_child]) >> 32;

    add_child(parent, child);
    return 0;
}
#endif

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
    u64 who = bpf_get_current_pid_tgid();
    u32 tid = who;
    struct thread *thread;

    if (!is_target(who))
        return 0;
    thread = threads.lookup(&tid);
    if (thread) {
        /* What a worker gives back, its memory above all, is of its statement: that ends with its last switch. */
        if (!thread->is_helper)
            end_statement(thread, tid, bpf_ktime_get_ns(), bpf_get_current_task());
        thread->dead = 1;
#if !IS_POSTGRESQL
        note_exit_begin(bpf_get_current_task());
#endif
    }
    return 0;
}
