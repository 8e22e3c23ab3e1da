/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which statement a text is: a hash without comments, and with literals, and lists of them, alike.
 *
 * The table that tells these apart comes from user space (model/statements.py). The first text of each identity is kept.
 * Texts that are longer than a thread's buffer are whole.bpf.h's; where that cannot be called their beginning stands for them.
 */
#define FNV_OFFSET 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL
#define ANSI_QUOTES 512ULL   /* the bit of identities of texts with that sql_mode */

/* What a byte of a text does in a state: the next state, and what is mixed into the hash (0: nothing). */
struct table {
    u8 next[STATES * 256];
    u8 mixed[STATES * 256];
};

struct text {
    u32 command;
    u32 length;              /* of the whole text, without the comment that it begins with */
    u32 hashed;              /* of these bytes */
    u32 kept;                /* more than are here: in `pieces` */
    u64 statement;           /* COM_STMT_EXECUTE of an unknown one: its number, and the thread that executed it */
    u64 tid;
    char text[TEXT];
};

BPF_HASH(texts, u64, struct text, TEXTS);
BPF_ARRAY(table, struct table, 2);   /* the second one for ANSI_QUOTES */
BPF_PERCPU_ARRAY(new_text, struct text, 1);

/* Put the text that a thread has in its own buffer where it outlives it. */
static __always_inline void keep_text(struct thread *thread, u64 id, u32 command, u32 tid, u64 statement)
{
    int zero = 0;
    struct text *text;

    if (texts.lookup(&id))
        return;
    text = new_text.lookup(&zero);
    if (!text)
        return;
    text->command = command;
    text->length = thread->length;
    text->hashed = thread->hashed;
    text->kept = thread->kept;
    text->statement = statement;
    text->tid = tid;
    /* Preempted here, another thread's text may get in: both are kept again the next time that they are new. */
    bpf_probe_read_kernel(text->text, TEXT, thread->text);
    if (texts.update(&id, text))
        count(COUNT_NO_ROOM);
}

/* Below are commands. */
static __always_inline u64 identity_of(struct thread *thread, u64 hash)
{
    return (hash & ~ANSI_QUOTES) | 256 | (thread->walk.ansi ? ANSI_QUOTES : 0);
}

/* The index of a byte's entry in a state. Before Linux 6.10 the verifier forgets the bounds of a bitwise OR; the barrier
 * keeps the compiler from making one of this sum. */
static __always_inline u64 entry_of(u64 state, u8 byte)
{
    u64 row = (state & (STATES - 1)) << 8;

    asm volatile("" : "+r"(row));
    return row + byte;
}

static __always_inline u64 hashed(struct thread *thread, u32 length)
{
    int ansi = thread->walk.ansi;
    struct table *how = table.lookup(&ansi);
    u64 hash = FNV_OFFSET;
    u32 state = 0, i;

    if (!how)
        return 1;
#pragma nounroll
    for (i = 0; i < TEXT; i++) {
        u64 at;
        u32 mixed;

        /* Keeps both ends of the loop: the verifier does not see that the smaller of them bounds `i`. */
        asm volatile("" : "+r"(length));
        if (i >= length)
            break;
        at = entry_of(state, thread->text[i]);
        mixed = how->mixed[at];
        state = how->next[at];
        if (mixed)
            hash = (hash ^ mixed) * FNV_PRIME;
    }
    return identity_of(thread, hash);
}

/* The text of `length` bytes at `address`, in the thread's own buffer. */
static __always_inline u64 identify_text(struct thread *thread, u64 address, u32 length)
{
    u32 size = length;

    thread->length = length;
    if (size >= TEXT) {
        size = TEXT - 1;
        count(COUNT_CUT);
    }
    asm volatile("" : "+r"(size));   /* or the bound is forgotten */
    size &= TEXT - 1;
    thread->hashed = thread->kept = size;
    if (bpf_probe_read_user(thread->text, size, (void *)address)) {
        count(COUNT_UNREADABLE);
        return thread->command;
    }
    return hashed(thread, size);
}

/* The same of a text that ends with a zero: one that is as long as the buffer may be longer. */
static __always_inline u64 identify_string(struct thread *thread, u64 address)
{
    long size = bpf_probe_read_user_str(thread->text, TEXT, (void *)address);

    if (size <= 0) {
        count(COUNT_UNREADABLE);
        thread->length = thread->hashed = thread->kept = 0;
        return COM_QUERY;
    }
    thread->length = size == TEXT ? TEXT : size - 1;
    thread->hashed = thread->kept = size - 1;
    return hashed(thread, size - 1);
}
