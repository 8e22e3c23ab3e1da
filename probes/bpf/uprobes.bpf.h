/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What programs at uprobes share: where registers lie, counters, and an entry for each thread.
 *
 * The includer has defined enum counter, struct thread and the size of its table.
 */
#include "counters.bpf.h"

/* In struct pt_regs of x86-64. */
#define REGISTER_CX 11
#define REGISTER_DX 12
#define REGISTER_SI 13
#define REGISTER_DI 14
#define REGISTER_SP 19

BPF_HASH(threads, u32, struct thread, THREADS);
BPF_ARRAY(new_thread, struct thread, 1);   /* zeros: one is too large for a program's stack */

/* A thread's entry, made where there is none yet (all zeros); null where there is no room. */
static __always_inline struct thread *thread_entry(u32 tid)
{
    struct thread *thread = threads.lookup(&tid), *empty;
    int zero = 0;

    if (thread)
        return thread;
    empty = new_thread.lookup(&zero);
    if (empty)
        threads.update(&tid, empty);
    thread = threads.lookup(&tid);
    if (!thread)
        count(COUNT_NO_ROOM);
    return thread;
}
