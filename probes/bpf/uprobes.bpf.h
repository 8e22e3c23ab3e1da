/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared parts of programs at uprobes: offsets of registers, counters, and one entry per thread.
 *
 * The includer defines enum counter, struct thread and THREADS.
 */
#include "counters.bpf.h"

/* Indexes of registers in struct pt_regs of x86-64. */
#define REGISTER_CX 11
#define REGISTER_DX 12
#define REGISTER_SI 13
#define REGISTER_DI 14
#define REGISTER_SP 19

BPF_HASH(threads, u32, struct thread, THREADS);
BPF_ARRAY(new_thread, struct thread, 1);   /* zeros; struct thread does not fit on a program's stack */

/* The entry of a thread. A new entry is all zeros; the result is null if the table is full. */
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
