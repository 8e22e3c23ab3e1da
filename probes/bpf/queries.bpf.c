/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Count the CPU time, waits, wake-ups and page faults of each statement of a MariaDB, MySQL or PostgreSQL server.
 *
 * Question: which statements use the server's CPU time, and which wake its CPUs?
 * Cost: one uprobe per statement, at the first instruction of dispatch_command, which the kernel emulates in about 1
 *       µs. For a point select these programs need 2 µs more: they hash its text (1,023 bytes; 3 µs per further 1,000
 *       bytes), add its totals, and run at four context switches and two packets (measured on a busy guest; each report
 *       prints the cost of its own window). PostgreSQL reports its activity twice per statement, and each context
 *       switch of the host looks up the process. The programs send no data in the window, so they never wake powerprof.
 * Privileges: CAP_BPF, CAP_PERFMON, and CAP_SYS_ADMIN for uprobes (or root). x86-64, because arguments are read from
 *       registers.
 * Tests compare the counts with clients that count their own statements, and the CPU time with the scheduler's count
 * for the process (tests/system).
 *
 * A statement begins at the entry of dispatch_command. Its costs end when its thread goes to wait after the last packet
 * that it sent, or at the thread's next statement. Its latency ends with that packet. The return of dispatch_command
 * has no probe: an exception that passes a return probe ends the process, and a probe on `ret` costs 20 times as much.
 * Kernels before 6.3 have no tracepoint for data that a socket sends. There the next entry of do_command ends the
 * statement. In PostgreSQL a statement lasts until its process reports that it is idle (activity.bpf.h).
 *
 * A statement that began before the window is found at the first event of its thread (open_statements.bpf.h).
 *
 * The CPU time of a thread is the scheduler's (sum_exec_runtime at each switch-out). Between switches it is the clock
 * since the switch-in. The next switch-out corrects it for interrupts and for time that the hypervisor took.
 *
 * The loader defines: TEXT and STATES (powers of two), THREADS, ENDED_KEPT, TOTALS, TEXTS, PREPARED, LAYOUT, OFFSET_*,
 * ARG_*, HAS_SEND if the kernel has sock_send_length; FAMILY and STATE_FASTPATH with the layout of PostgreSQL; and the
 * definitions of sampled_stacks.bpf.h.
 */

/* The commands with a text. The numbers are from include/my_command.h. */
#define COM_QUERY 3
#define COM_STMT_PREPARE 22
#define COM_PART 1000        /* of a call that is counted elsewhere: at its beginning, or in another process */

#define PREPARING 0x9e3779b97f4a7c15ULL   /* separates preparing a statement from executing it */

#define TASK_DEAD 0x80       /* include/linux/sched.h, since Linux 4.14 */
#define OWN_STATEMENTS 8     /* statements of a thread that are remembered as having totals of this thread */

enum counter { COUNT_DISPATCHES, COUNT_NO_ROOM, COUNT_UNREADABLE, COUNT_CUT, COUNT_ENDINGS, COUNTERS };

#include "hash_progress.bpf.h"
#include "kernel_memory.bpf.h"
#include "running_ids.bpf.h"
#include "wait_kinds.bpf.h"

struct thread {
    u64 first_ns;            /* the scheduler's count at the first event of the thread */
    u64 last_ns;             /* the scheduler's count at its last switch-out */
    u64 in_at;               /* time of the switch-in; 0 while it is off the CPU */
    u64 past_ns;             /* CPU time of earlier threads with this number */
    u64 id;                  /* of the open statement; 0: none */
    u64 began_at, began_ns;  /* start of the statement: time, and CPU time of the thread */
    u64 ended_at, ended_ns;  /* end of the statement if it sends no more; 0: it still runs */
    u64 sent_at;             /* time of its last packet; 0: none yet */
    u64 began_faults;
    u64 before_ns;           /* CPU time at the start of the thread's first statement in the window */
    u64 waits[WAITS];        /* of the open statement (waits.bpf.h) */
    u64 wait_began_at;       /* time at which the thread left the CPU to wait within a statement; 0: it does not wait */
    u64 wait_delay, began_delay, ended_delay;   /* run-queue delay at the last wait, the start and the last packet */
    u64 wait_ns;             /* length of the last wait, with the run-queue delay after it */
    u32 wait_kind;           /* enum wait, of the last wait */
    u32 server_wait;         /* the wait that the server announced; 0: none */
    u64 own_ids[OWN_STATEMENTS];
    u64 before_id;           /* the ended statement that began before the window; 0: none */
    u64 connection;          /* the connection that prepares a statement (prepared.bpf.h) */
    u64 answer_address;      /* address of the answer to the request; 0: none is expected */
    u64 prepared_id;
    u64 unnamed_connection;  /* the connection that executes a number without a known text; 0: none */
    u64 unnamed_number;
    struct hash_progress progress;
    u32 wakeups;             /* switches from the idle task to this thread */
    u32 began_wakeups, ended_wakeups;
    u32 command;
    u32 length;              /* of the whole text */
    u32 hashed_bytes, kept_bytes;   /* texts.bpf.h */
    u32 statements;          /* begun in the window */
    u8 first_seen_running;
    u8 dead;                 /* the thread exits */
    u8 is_known;             /* first_ns is set */
    u8 is_done;              /* the server reported the end; the last packet may follow */
    u8 own_count;
    u8 has_waited;
    u8 is_helper;            /* it works for the statement of another process */
    u8 open;                 /* enum open: of its statement at the start of the window */
    u8 began_before;         /* the open statement began before the window */
    char text[TEXT];
};

enum open { OPEN_UNKNOWN, OPEN_NONE, OPEN_FOUND };

#include "server_processes.bpf.h"
#include "uprobes.bpf.h"
#include "waits.bpf.h"
#include "texts.bpf.h"
#include "long_texts.bpf.h"
#include "text_places.bpf.h"
#include "statement_totals.bpf.h"
#include "exited_threads.bpf.h"

/* Return the statement that a thread executes; 0: none. */
static __always_inline u64 running_statement(u32 tid)
{
    struct thread *thread = threads.lookup(&tid);
    return thread && !thread->ended_at ? thread->id : 0;
}
#define STATEMENT_OF(tid) running_statement(tid)
#include "sampled_stacks.bpf.h"

BPF_TABLE("prog", u32, int, open_hash_programs, 2);

#if IS_POSTGRESQL
#include "activity.bpf.h"
#else
#include "dispatch.bpf.h"
#endif
#include "open_statements.bpf.h"

RAW_TRACEPOINT_IF(HAS_SEND, sock_send_length)
{
    u64 who = current_pid_tgid();
    u32 tid = who;
    struct thread *thread;
    int is_opened = 0;

    if (!is_target(who))
        return 0;
    thread = threads.lookup(&tid);
    if (!thread)
        thread = thread_state(tid, bpf_get_current_task(), bpf_ktime_get_ns(), 1);
    if (thread)
        is_opened = open_statement(thread, bpf_get_current_task(), 1);
    if (thread && thread->id && !(thread->is_done && thread->ended_at)) {
        u64 now = bpf_ktime_get_ns();

        if (thread->ended_at)
            add_send_pause(thread, bpf_get_current_task(), now, cpu_time(thread, now));
        thread->sent_at = now;
        thread->ended_delay = delay_of(bpf_get_current_task());
        thread->ended_at = 0;
#if !IS_POSTGRESQL
        if (thread->answer_address)
            read_prepare_answer(thread);
        thread->answer_address = 0;   /* later packets reuse the buffer */
        if (thread->unnamed_connection && !is_opened)
            name_executed(ctx, thread, tid);
#endif
    }
    if (is_opened)
        open_hash_programs.call(ctx, HASH_PIECES);
    return 0;
}

/* Handle the switch-out of a server's thread. The clock is read only within a statement. */
static __always_inline void switch_out(struct thread *thread, u32 tid, u64 task, u32 state)
{
    u64 ran = run_time(task), delay = delay_of(task);

    thread->last_ns = ran;
    thread->in_at = 0;
    settle_wait(thread, delay);
    if (thread->sent_at && !thread->ended_at && state && (!IS_POSTGRESQL || thread->is_done)) {
        thread->ended_at = thread->sent_at;
        thread->ended_ns = ran;
        thread->ended_wakeups = thread->wakeups;
        thread->wait_kind = classify_wait(thread, state);
    } else if (thread->id && !thread->ended_at) {
        begin_wait(thread, delay, state);
    }
    /* Its last switch. Freeing the thread's memory can take several switches. */
    if (thread->dead && state & TASK_DEAD) {
#if !IS_POSTGRESQL
        note_exit_end(task, ran);
#else
        if (thread->id)
            end_statement(thread, tid, bpf_ktime_get_ns(), task);
#endif
        thread->past_ns += ran - thread->first_ns;
        thread->before_ns -= thread->first_ns;   /* the base is 0 from now on */
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
    u64 who, wanted = target_id(), now, next;
    u64 task = ctx->args[ARG_sched_switch_prev], state;
    struct thread *thread;
    int is_opened = 0;

    if (!wanted)
        return 0;
    who = LOAD_TIME(PID_LEVEL) ? ids_of_previous(task) : bpf_get_current_pid_tgid();
    if (is_target_process(who, wanted)) {
        thread = thread_state(who, task, 0, 1);
        state = LOAD_TIME(HAS_PREV_STATE) ? ctx->args[ARG_sched_switch_prev_state]
                                          : read_u64(task + OFFSET_task_struct_state);
        if (thread) {
            is_opened = open_statement(thread, task, 0);
            switch_out(thread, who, task, state);
        }
    }
    task = ctx->args[ARG_sched_switch_next];
    note_running(task);
    next = pid_tgid_of(task);
    if (is_target_process(next, wanted)) {
        now = bpf_ktime_get_ns();
        thread = thread_state(next, task, now, 0);
        if (thread) {
            thread->in_at = now;
            end_wait(thread, now);
            if (!(u32)who)
                thread->wakeups++;
        }
    }
    if (is_opened)
        open_hash_programs.call(ctx, HASH_PIECES);
    return 0;
}

#ifdef FAMILY
/* Add a new process before it runs. */
RAW_TRACEPOINT_PROBE(sched_process_fork)
{
    u32 parent = current_pid_tgid() >> 32;
    u32 child = pid_tgid_of(ctx->args[ARG_sched_process_fork_child]) >> 32;

    add_child(parent, child);
    return 0;
}
#endif

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
    u64 who = current_pid_tgid();
    u32 tid = who;
    struct thread *thread;

    if (!is_target(who))
        return 0;
    thread = threads.lookup(&tid);
    if (thread) {
        /* The statement of a worker ends with its last switch, so that freeing the worker's memory is part of it. */
        if (!thread->is_helper)
            end_statement(thread, tid, bpf_ktime_get_ns(), bpf_get_current_task());
        thread->dead = 1;
#if !IS_POSTGRESQL
        note_exit_begin(bpf_get_current_task());
#endif
    }
    return 0;
}
