/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Calls the reader when a table or a ring buffer fills; it sleeps otherwise. */
#define RB_NO_WAKEUP 1
#define RB_FORCE_WAKEUP 2

BPF_RINGBUF_OUTPUT(calls, 1);

/* What fills while its reader sleeps: entries that a table got since the reader emptied it, or bytes that came through a ring
 * buffer, how many there may be, and whether the reader was called. */
enum filling { TABLE_CAUSES, TABLE_WOKEN, RING_EXITS, RING_STACKS, FILLINGS };
struct filled {
    u64 amount, limit, is_called;
};
BPF_ARRAY(filled, struct filled, FILLINGS);

/* There is so much more in a table or a ring buffer. Where threads come and go, or many of them are new, these fill within
 * seconds, and elsewhere never: the reader sleeps, and is called. */
static __always_inline void note_filled(int what, u64 amount)
{
    struct filled *of = filled.lookup(&what);
    u64 *call;

    if (!of)
        return;
    __sync_fetch_and_add(&of->amount, amount);
    if (of->amount < of->limit || of->is_called)
        return;
    of->is_called = 1;
    call = calls.ringbuf_reserve(sizeof(*call));
    if (!call)
        return;
    *call = what;
    calls.ringbuf_submit(call, RB_FORCE_WAKEUP);
}
