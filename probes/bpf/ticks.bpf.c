/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* When which thread of a process was met on a CPU.
 *
 * Question: which statement did the thread execute then? (The server's own history of statements answers.)
 * Cost: the sampling interrupt itself, and 0.1 µs where it meets the process. Nothing is sent in the window.
 * Privileges: CAP_BPF, CAP_PERFMON (or root).
 * Checked against statements of known CPU time (tests/root).
 *
 * The loader puts in front: TICKS (how many are kept).
 */
#include "target.bpf.h"

struct tick {
    u64 at_ns;   /* CLOCK_MONOTONIC */
    u64 tid;
};

BPF_ARRAY(ticks, struct tick, TICKS);
BPF_ARRAY(seen, u64, 1);

int sample__tick(struct bpf_perf_event_data *ctx)
{
    u64 who = bpf_get_current_pid_tgid(), number;
    int zero = 0, at;
    u64 *next;
    struct tick *tick;

    if (!is_target(who))
        return 0;
    next = seen.lookup(&zero);
    if (!next)
        return 0;
    number = __sync_fetch_and_add(next, 1);
    at = number < TICKS ? number : TICKS;
    tick = ticks.lookup(&at);
    if (tick) {
        tick->at_ns = bpf_ktime_get_ns();
        tick->tid = (u32)who;
    }
    return 0;
}
