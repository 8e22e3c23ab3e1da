/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Texts that are longer than a thread's buffer: hashed and kept whole, as far as so many programs may call each other.
 *
 * The verifier walks through every turn of a loop, so one program takes a few pieces and calls itself for more, and then another
 * one that keeps the text and goes on with its statement: 33 calls at most are possible. What lies behind is not looked at, and user space says that such a row may be several statements. A comment that a text begins
 * with is no part of what is kept.
 */
#define MOST_WALKS 32        /* of 4 kB: 130 kB */
#define WALKED_AT_ONCE 4     /* pieces */
#define WALKED (TEXT - 1)    /* of a piece: zeros behind the last change nothing */
#define KEPT_PIECES 132      /* of TEXT bytes: not less than what is hashed */

struct piece_key {
    u64 id;
    u64 number;
};

struct piece {
    char text[TEXT];
};

BPF_HASH(pieces, struct piece_key, struct piece, PIECES);
BPF_TABLE("prog", u32, int, walks, 2);
BPF_ARRAY(zeros, struct piece, 1);

/* A text of `length` bytes, 0: to where it ends with a zero. */
static __always_inline void walk_from(struct thread *thread, u64 address, u32 length, u64 now)
{
    thread->walk.address = address;
    thread->walk.hash = FNV_OFFSET;
    thread->walk.since = now;
    thread->walk.length = length;
    thread->walk.at = thread->walk.start = thread->walk.state = thread->walk.calls = 0;
}

#define barrier() asm volatile("" : : : "memory")

/* 1 for what is not 0, without a branch: of those the verifier follows so many in a row. */
static __always_inline u64 any(u64 value)
{
    u64 negative = -value;

    asm volatile("" : "+r"(negative));   /* or the compiler makes a branch of it */
    return (value | negative) >> 63;
}

enum next_walk { WALK_ON, WALKED_THROUGH };

/* The bytes of the next piece in the thread's buffer, zeros behind them; -1: they cannot be read. */
static __always_inline long next_piece(struct thread *thread, struct piece *empty)
{
    struct walk *walk = &thread->walk;
    u64 address = walk->address + walk->at;
    long size;

    bpf_probe_read_kernel(thread->text, TEXT, empty);
#if IS_POSTGRESQL
    size = bpf_probe_read_user_str(thread->text, WALKED + 1, (void *)address) - 1;
    walk->goes_on = size == WALKED;
#else
    size = walk->length - walk->at;
    walk->goes_on = size > WALKED;
    walk->size = size > WALKED ? WALKED : size;
    barrier();   /* the verifier forgets by which way it came, instead of going both of them */
    size = walk->size;
    if (size > WALKED || bpf_probe_read_user(thread->text, size, (void *)address))
        size = -1;
#endif
    return size;
}

/* Hash a few pieces more. Returns which program comes next. */
static __always_inline enum next_walk walk_on(struct thread *thread)
{
    struct walk *walk = &thread->walk;
    u64 hash = walk->hash, state = walk->state, start = walk->start;
    u32 piece, begin, i;
    int zero = 0, ansi = walk->ansi;
    struct table *how = table.lookup(&ansi);
    struct piece *empty = zeros.lookup(&zero);

    if (!how || !empty)
        return WALKED_THROUGH;
#pragma nounroll
    for (piece = 0; piece < WALKED_AT_ONCE; piece++) {
        long size = next_piece(thread, empty);

        if (size < 0) {
            count(COUNT_UNREADABLE);
            walk->goes_on = 0;
            break;
        }
        begin = walk->at;
        walk->at += size;
#pragma nounroll
        for (i = 0; i < WALKED; i++) {
            /* Of what would be branches the verifier goes both ways, for each byte. */
            u64 entry, mixed, is_begun = -any((hash ^ FNV_OFFSET) | state);
            start = (start & is_begun) | ((begin + i) & ~is_begun);
            entry = entry_of(state, thread->text[i]);
            mixed = how->mixed[entry];
            state = how->next[entry];
            hash ^= (hash ^ (hash ^ mixed) * FNV_PRIME) & -any(mixed);
        }
        barrier();
        if (!walk->goes_on)
            break;
    }
    walk->hash = hash;
    walk->state = state;
    walk->start = start;
    return walk->goes_on && ++walk->calls < MOST_WALKS ? WALK_ON : WALKED_THROUGH;
}

/* Pieces of a text that is new. Returns how many bytes of it are kept, 0 where there is no room for them. */
static __always_inline u32 keep_pieces(struct thread *thread, u64 id, u64 address, u32 length)
{
    struct piece_key key = { .id = id };
    u32 number;

#pragma nounroll
    for (number = 0; number < KEPT_PIECES; number++) {
        u32 done = number * TEXT;
        u64 size = TEXT;
        if (done >= length)
            break;
        if (length - done < size)
            size = length - done;
        asm volatile("" : "+r"(size));
        if (size > TEXT || bpf_probe_read_user(thread->text, size, (void *)(address + done)))
            return 0;
        key.number = number;
        if (pieces.update(&key, (struct piece *)thread->text)) {
            count(COUNT_NO_ROOM);
            return 0;
        }
    }
    return length;
}

/* What was walked through is a statement: its number. Its text is kept from where its comments end. */
static __always_inline u64 walked(struct thread *thread)
{
    struct walk *walk = &thread->walk;
    u64 id = identity_of(thread, walk->hash), address = walk->address + walk->start;
    u32 known = walk->at - walk->start, length = walk->length ? walk->length - walk->start : known;
    u32 kept = 0, is_new = !texts.lookup(&id);
    u64 size = known < TEXT ? known : TEXT - 1;

    if (walk->length > walk->at || (!walk->length && walk->goes_on)) {
        count(COUNT_CUT);
        if (length == known)
            length++;
    }
    if (is_new && known >= TEXT)
        kept = keep_pieces(thread, id, address, known);
    asm volatile("" : "+r"(size));   /* or the compiler removes the mask as redundant */
    size &= TEXT - 1;
    if (!is_new)
        size = 0;
    else if (bpf_probe_read_user(thread->text, size, (void *)address))
        count(COUNT_UNREADABLE);
    thread->length = length;
    thread->hashed = known;
    thread->kept = kept ? kept : size;
    return id;
}
