/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Identify statements: hash a text without comments, and with every literal and list of literals replaced by one byte.
 *
 * User space provides the rules of the hash (model/identities.py). The first text of each identity is kept. Texts that
 * are longer than a thread's buffer are hashed by long_texts.bpf.h. If the kernel refuses those programs, the beginning
 * of the text represents it.
 */
#define FNV_OFFSET 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL
#define ANSI_QUOTES 512ULL   /* the bit of identities of texts with this sql_mode */

/* The rules for a byte of a text in a state: the next state, and the value to mix into the hash (0: none). */
struct hash_rules {
    u8 next[STATES * 256];
    u8 mixed[STATES * 256];
};

struct text {
    u32 command;
    u32 length;              /* of the whole text, without leading comments */
    u32 hashed_bytes;             /* the bytes that the identity depends on */
    u32 kept_bytes;               /* more than TEXT bytes are in `pieces` */
    u64 statement;           /* number of a prepared statement without a known text, executed by thread `tid` */
    u64 tid;
    char text[TEXT];
};

BPF_HASH(texts, u64, struct text, TEXTS);
BPF_ARRAY(hash_rules, struct hash_rules, 2);   /* the second entry is for ANSI_QUOTES */
BPF_PERCPU_ARRAY(new_text, struct text, 1);

/* Copy the text from the thread's buffer to the table, which outlives the thread. */
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
    text->hashed_bytes = thread->hashed_bytes;
    text->kept_bytes = thread->kept_bytes;
    text->statement = statement;
    text->tid = tid;
    /* A preemption here can mix two texts. The next window keeps them again. */
    bpf_probe_read_kernel(text->text, TEXT, thread->text);
    if (texts.update(&id, text))
        count(COUNT_NO_ROOM);
}

/* Return the identity for a hash. Numbers below 256 are commands. */
static __always_inline u64 identity_of(struct thread *thread, u64 hash)
{
    return (hash & ~ANSI_QUOTES) | 256 | (thread->progress.has_ansi_quotes ? ANSI_QUOTES : 0);
}

/* Return the index of a byte's rule in a state. Before Linux 6.10 the verifier forgets the bounds of a bitwise OR; the
 * barrier keeps the compiler from making one of this sum. */
static __always_inline u64 entry_of(u64 state, u8 byte)
{
    u64 row = (state & (STATES - 1)) << 8;

    asm volatile("" : "+r"(row));
    return row + byte;
}

/* Return the identity of the text in the thread's buffer. */
static __always_inline u64 hash_text(struct thread *thread, u32 length)
{
    int ansi = thread->progress.has_ansi_quotes;
    struct hash_rules *rules = hash_rules.lookup(&ansi);
    u64 hash = FNV_OFFSET;
    u32 state = 0, i;

    if (!rules)
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
        mixed = rules->mixed[at];
        state = rules->next[at];
        if (mixed)
            hash = (hash ^ mixed) * FNV_PRIME;
    }
    return identity_of(thread, hash);
}

/* Read the text of `length` bytes at `address` into the thread's buffer, and return its identity. */
static __always_inline u64 identify_text(struct thread *thread, u64 address, u32 length)
{
    u32 size = length;

    thread->length = length;
    if (size >= TEXT) {
        size = TEXT - 1;
        count(COUNT_CUT);
    }
    asm volatile("" : "+r"(size));   /* or the compiler removes the mask as redundant */
    size &= TEXT - 1;
    thread->hashed_bytes = thread->kept_bytes = size;
    if (bpf_probe_read_user(thread->text, size, (void *)address)) {
        count(COUNT_UNREADABLE);
        return thread->command;
    }
    return hash_text(thread, size);
}

/* Do the same for a text that ends with a zero byte. A text that fills the buffer may be longer. */
static __always_inline u64 identify_string(struct thread *thread, u64 address)
{
    long size = bpf_probe_read_user_str(thread->text, TEXT, (void *)address);

    if (size <= 0) {
        count(COUNT_UNREADABLE);
        thread->length = thread->hashed_bytes = thread->kept_bytes = 0;
        return COM_QUERY;
    }
    thread->length = size == TEXT ? TEXT : size - 1;
    thread->hashed_bytes = thread->kept_bytes = size - 1;
    return hash_text(thread, size - 1);
}
