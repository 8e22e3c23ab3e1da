/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Count calls of selected functions of a process and measure their self time.
 *
 * Question: how often is each of these functions called, and how much CPU and wall time does it use, without the probed
 *           functions that it calls?
 * Cost: per call and return, 1 µs if the kernel emulates the first instruction of the function (push, nop). 20 to 45 µs
 *       in a guest if the kernel single-steps it with a second trap, as for every `ret`. Measured on the host before
 *       each window, and printed. 0.2 µs per context switch of the whole system. Never part of an energy window.
 * Privileges: CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN for uprobes (or root). Uprobes by uprobe_multi links or by the uprobe
 *             PMU, never by tracefs. x86-64, because sp identifies the call: on entry it points to the return address,
 *             on return it is 8 bytes above it.
 * Checked against a program with known call counts, recursion, nesting, tail calls and longjmp, and against one that
 * throws exceptions (tests/system).
 *
 * Each thread has a stack of open calls. CPU time is wall time minus the time that the thread was switched out,
 * measured at sched_switch. longjmp and exceptions leave calls without a return. The next probe of the thread finds
 * such a call, because the stack pointer is above its frame; the call is popped and counted as abandoned. After a tail
 * call both functions return together, because the kernel chains their return probes. Both are counted, and the time
 * after the jump belongs to the second function.
 *
 * Return probes change the stack and end a process if an exception passes them. Where exceptions can pass,
 * uprobe__exit is placed on the instructions that leave the function (`ret` and tail jumps) instead. A tail call then
 * ends the call.
 *
 * The loader defines FUNCTIONS (a power of two; the last two are for calibration), THREADS, FRAMES, MAX_DEPTH and
 * OFFSET_*.
 */

#define COOKIE_STEPPED 0x10000

enum stat_field {
    STAT_CALLS, STAT_RETURNS, STAT_ABANDONED, STAT_UNFINISHED, STAT_WALL, STAT_CPU, STAT_SELF_WALL, STAT_SELF_CPU,
    STAT_CHILDREN, STAT_STEPPED_CHILDREN, STAT_FIELDS
};
enum counter { COUNT_HITS, COUNT_UNMATCHED, COUNT_TOO_DEEP, COUNT_NO_ROOM, COUNTERS };
enum ending { ENDED_RETURN, ENDED_ABANDONED, ENDED_UNFINISHED };

struct totals {
    u64 value[STAT_FIELDS];
};

struct frame {
    u64 sp;
    u64 wall_ns;         /* at the entry */
    u64 cpu_ns;
    u64 child_wall_ns;
    u64 child_cpu_ns;
    u32 function;
    u32 stepped;         /* the entry probe is single-stepped */
    u32 children;
    u32 stepped_children;
};

struct frame_key {
    u32 tid, depth;
};

struct thread {
    u64 off_ns;          /* total time switched out */
    u64 out_ns;          /* time of the last switch-out; 0: it runs */
    u64 returned_sp;     /* sp of the last return since the last entry: frames at or below it have ended */
    u32 depth;
    u32 deepest;
    u16 active[FUNCTIONS];   /* open calls of each function */
};

#include "kernel_memory.bpf.h"
#include "uprobes.bpf.h"

BPF_TABLE("hash", struct frame_key, struct frame, frames, FRAMES);
BPF_PERCPU_ARRAY(stats, struct totals, FUNCTIONS);
BPF_ARRAY(enabled, u32, 1);

static u64 (*get_attach_cookie)(void *ctx) = (void *)174;

static __always_inline void add(struct totals *stat, int field, u64 value)
{
    __sync_fetch_and_add(&stat->value[field], value);
}

static __always_inline struct frame *frame_at(u32 tid, u32 depth)
{
    struct frame_key key = { .tid = tid, .depth = depth };
    return frames.lookup(&key);
}

/* Read the wall and CPU clocks of the current thread. A preemption between both reads makes them inconsistent: read
 * them again. */
static __always_inline void read_clocks(struct thread *thread, u64 *wall_ns, u64 *cpu_ns)
{
    u64 off = *(volatile u64 *)&thread->off_ns;
    u64 now = bpf_ktime_get_ns();

    if (*(volatile u64 *)&thread->off_ns != off) {
        off = *(volatile u64 *)&thread->off_ns;
        now = bpf_ktime_get_ns();
    }
    *wall_ns = now;
    *cpu_ns = now - off;
}

/* Remove the innermost open call and add it to the sums of its function. */
static __always_inline void pop_frame(struct thread *thread, u32 tid, struct frame *frame, u64 wall_ns, u64 cpu_ns,
                                      int ending)
{
    u32 function = frame->function & (LOAD_TIME(FUNCTIONS) - 1);
    u64 wall = wall_ns - frame->wall_ns;
    u64 cpu = cpu_ns - frame->cpu_ns;
    int key = function;
    struct totals *stat = stats.lookup(&key);
    struct frame *parent = 0;

    if ((s64)cpu < 0)
        cpu = 0;
    thread->depth--;
    thread->active[function]--;
    if (thread->depth)
        parent = frame_at(tid, thread->depth - 1);
    if (parent) {
        parent->child_wall_ns += wall;
        parent->child_cpu_ns += cpu;
        parent->children++;
        parent->stepped_children += frame->stepped;
    }
    if (!stat)
        return;
    if (ending == ENDED_RETURN)
        add(stat, STAT_RETURNS, 1);
    else if (ending == ENDED_ABANDONED)
        add(stat, STAT_ABANDONED, 1);
    else
        add(stat, STAT_UNFINISHED, 1);
    if (!thread->active[function]) {
        /* In a recursion, only the outermost call adds its time. Otherwise time would be counted twice. */
        add(stat, STAT_WALL, wall);
        add(stat, STAT_CPU, cpu);
    }
    add(stat, STAT_SELF_WALL, wall > frame->child_wall_ns ? wall - frame->child_wall_ns : 0);
    add(stat, STAT_SELF_CPU, cpu > frame->child_cpu_ns ? cpu - frame->child_cpu_ns : 0);
    add(stat, STAT_CHILDREN, frame->children);
    add(stat, STAT_STEPPED_CHILDREN, frame->stepped_children);
}

int uprobe__entry(u64 *ctx)
{
    u64 cookie = get_attach_cookie(ctx);
    u32 functions = LOAD_TIME(FUNCTIONS), function = cookie & (functions - 1);
    u32 tid = current_pid_tgid();
    u64 sp = ctx[REGISTER_SP], return_address = 0, wall, cpu;
    int zero = 0, key = function, i;
    u32 *is_enabled = enabled.lookup(&zero);
    struct totals *stat = stats.lookup(&key);
    struct thread *thread;
    struct frame *frame;

    if (!is_enabled || !stat || (!*is_enabled && function < functions - 2))
        return 0;
    count(COUNT_HITS);
    add(stat, STAT_CALLS, 1);
    thread = thread_entry(tid);
    if (!thread)
        return 0;
    read_clocks(thread, &wall, &cpu);
    bpf_probe_read_user(&return_address, sizeof(return_address), (void *)sp);
#pragma nounroll
    for (i = 0; i < MAX_DEPTH; i++) {
        if (!thread->depth)
            break;
        frame = frame_at(tid, thread->depth - 1);
        if (!frame || (frame->sp > sp && frame->sp > thread->returned_sp))
            break;
        /* Two calls have the same stack pointer. It is a tail call if the return address is the kernel's trampoline
         * (the start of a page). Otherwise a jump left the older call. */
        if (frame->sp == sp && sp > thread->returned_sp && !(return_address & 0xfff))
            break;
        pop_frame(thread, tid, frame, wall, cpu, ENDED_ABANDONED);
    }
    thread->returned_sp = 0;
    if (thread->depth >= MAX_DEPTH) {
        count(COUNT_TOO_DEEP);
        return 0;
    }
    frame = frame_at(tid, thread->depth);
    if (!frame) {
        struct frame_key new_key = { .tid = tid, .depth = thread->depth };
        struct frame new_frame = {};
        frames.update(&new_key, &new_frame);
        frame = frames.lookup(&new_key);
        if (!frame) {
            count(COUNT_NO_ROOM);
            return 0;
        }
    }
    frame->sp = sp;
    frame->child_wall_ns = 0;
    frame->child_cpu_ns = 0;
    frame->function = function;
    frame->stepped = cookie / COOKIE_STEPPED & 1;
    frame->children = 0;
    frame->stepped_children = 0;
    thread->active[function]++;
    thread->depth++;
    if (thread->depth > thread->deepest)
        thread->deepest = thread->depth;
    frame->wall_ns = wall;
    frame->cpu_ns = cpu;
    return 0;
}

/* End a call of `function` with its return address at `sp`. */
static __always_inline int end_call(u32 function, u64 sp)
{
    u32 tid = current_pid_tgid();
    u64 wall, cpu;
    struct thread *thread = threads.lookup(&tid);
    struct frame *frame;
    int i;

    if (!thread)
        return 0;   /* the call began before the window */
    read_clocks(thread, &wall, &cpu);
#pragma nounroll
    for (i = 0; i < MAX_DEPTH; i++) {
        int returns;
        frame = thread->depth ? frame_at(tid, thread->depth - 1) : 0;
        if (!frame || frame->sp > sp) {
            count(COUNT_UNMATCHED);
            break;
        }
        returns = frame->sp == sp && frame->function == function;
        pop_frame(thread, tid, frame, wall, cpu, returns ? ENDED_RETURN : ENDED_ABANDONED);
        if (returns)
            break;
    }
    thread->returned_sp = sp;
    return 0;
}

/* A return probe. The return address has been popped off the stack. */
int uprobe__return(u64 *ctx)
{
    return end_call(get_attach_cookie(ctx) & (LOAD_TIME(FUNCTIONS) - 1), ctx[REGISTER_SP] - 8);
}

/* A probe on a `ret` or on a tail jump, before its execution. */
int uprobe__exit(u64 *ctx)
{
    return end_call(get_attach_cookie(ctx) & (LOAD_TIME(FUNCTIONS) - 1), ctx[REGISTER_SP]);
}

RAW_TRACEPOINT_PROBE(sched_switch)
{
    u32 previous = current_pid_tgid(), next = pid_tgid_of(ctx->args[2]);
    struct thread *thread = threads.lookup(&previous);
    u64 now = bpf_ktime_get_ns();

    if (thread)
        thread->out_ns = now;
    thread = threads.lookup(&next);
    if (thread && thread->out_ns) {
        thread->off_ns += now - thread->out_ns;
        thread->out_ns = 0;
    }
    return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
    u32 tid = current_pid_tgid();
    struct thread *thread = threads.lookup(&tid);
    u64 wall, cpu;
    u32 i;

    if (!thread)
        return 0;
    read_clocks(thread, &wall, &cpu);
#pragma nounroll
    for (i = 0; i < MAX_DEPTH; i++) {
        struct frame *frame = thread->depth ? frame_at(tid, thread->depth - 1) : 0;
        if (!frame)
            break;
        pop_frame(thread, tid, frame, wall, cpu, ENDED_UNFINISHED);
    }
#pragma nounroll
    for (i = 0; i < MAX_DEPTH; i++) {
        struct frame_key key = { .tid = tid, .depth = i };
        if (i >= thread->deepest)
            break;
        frames.delete(&key);
    }
    threads.delete(&tid);
    return 0;
}
