/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Wake the reader in user space when a table or a ring buffer fills. It sleeps otherwise. */
#define RB_NO_WAKEUP 1
#define RB_FORCE_WAKEUP 2

BPF_RINGBUF_OUTPUT(calls, 1);

/* Fill levels: the entries of a table since the reader emptied it, or the bytes sent through a ring buffer; the limit;
 * and whether the reader was woken. */
enum filling { TABLE_CAUSES, TABLE_WOKEN, RING_EXITS, RING_STACKS, FILLINGS };
struct fill_level {
    u64 amount, limit, is_called;
};
BPF_ARRAY(fill_levels, struct fill_level, FILLINGS);

/* Add to the fill level of a table or ring buffer. If many threads start, it fills within seconds; otherwise never. */
static __always_inline void note_filled(int what, u64 amount)
{
    struct fill_level *level = fill_levels.lookup(&what);
    u64 *call;

    if (!level)
        return;
    __sync_fetch_and_add(&level->amount, amount);
    if (level->amount < level->limit || level->is_called)
        return;
    level->is_called = 1;
    call = calls.ringbuf_reserve(sizeof(*call));
    if (!call)
        return;
    *call = what;
    calls.ringbuf_submit(call, RB_FORCE_WAKEUP);
}
