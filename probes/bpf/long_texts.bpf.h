/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Hash and keep texts that are longer than a thread's buffer, up to 130 kB.
 *
 * The verifier follows each iteration of a loop. So one program hashes a few pieces and tail-calls itself for the next
 * ones. Then it tail-calls a program that keeps the text and continues with its statement. The kernel allows 33 tail
 * calls. The rest of a longer text is not read, and the report marks its row as possibly several statements. Leading
 * comments are not kept.
 */
#define MAX_HASH_CALLS 32        /* of 4 kB: 130 kB */
#define PIECES_PER_CALL 4
#define PIECE_BYTES (TEXT - 1)   /* the buffer is filled up with zeros, which do not change the hash */
#define MAX_PIECES 132           /* of TEXT bytes: at least as many bytes as are hashed */

struct piece_key {
    u64 id;
    u64 number;
};

struct piece {
    char text[TEXT];
};

BPF_HASH(pieces, struct piece_key, struct piece, PIECES);
BPF_TABLE("prog", u32, int, hash_programs, 2);
BPF_ARRAY(empty_piece, struct piece, 1);

/* Prepare to hash the text at an address. `length` 0: it ends with a zero byte. */
static __always_inline void start_hash(struct thread *thread, u64 address, u32 length, u64 now)
{
    thread->progress.address = address;
    thread->progress.hash = FNV_OFFSET;
    thread->progress.began_at = now;
    thread->progress.length = length;
    thread->progress.position = thread->progress.text_start = thread->progress.state = thread->progress.calls = 0;
}

#define barrier() asm volatile("" : : : "memory")

/* Return 1 if the value is not 0. This has no branch, because the verifier limits branches in a row. */
static __always_inline u64 is_nonzero(u64 value)
{
    u64 negative = -value;

    asm volatile("" : "+r"(negative));   /* or the compiler creates a branch */
    return (value | negative) >> 63;
}

enum hash_program { HASH_PIECES, FINISH_HASH };

/* Read the next piece into the thread's buffer and fill it up with zeros. Return its bytes; -1: unreadable. */
static __always_inline long read_piece(struct thread *thread, struct piece *empty)
{
    struct hash_progress *progress = &thread->progress;
    u64 address = progress->address + progress->position;
    long size;

    bpf_probe_read_kernel(thread->text, TEXT, empty);
#if IS_POSTGRESQL
    size = bpf_probe_read_user_str(thread->text, PIECE_BYTES + 1, (void *)address) - 1;
    progress->has_more = size == PIECE_BYTES;
#else
    size = progress->length - progress->position;
    progress->has_more = size > PIECE_BYTES;
    progress->piece_bytes = size > PIECE_BYTES ? PIECE_BYTES : size;
    barrier();   /* the verifier forgets the branch, and does not verify the rest twice */
    size = progress->piece_bytes;
    if (size > PIECE_BYTES || bpf_probe_read_user(thread->text, size, (void *)address))
        size = -1;
#endif
    return size;
}

/* Hash the next pieces. Return the next program. */
static __always_inline enum hash_program hash_pieces(struct thread *thread)
{
    struct hash_progress *progress = &thread->progress;
    u64 hash = progress->hash, state = progress->state, start = progress->text_start;
    u32 piece, begin, i;
    int zero = 0, ansi = progress->has_ansi_quotes;
    struct hash_rules *rules = hash_rules.lookup(&ansi);
    struct piece *empty = empty_piece.lookup(&zero);

    if (!rules || !empty)
        return FINISH_HASH;
#pragma nounroll
    for (piece = 0; piece < PIECES_PER_CALL; piece++) {
        long size = read_piece(thread, empty);

        if (size < 0) {
            count(COUNT_UNREADABLE);
            progress->has_more = 0;
            break;
        }
        begin = progress->position;
        progress->position += size;
#pragma nounroll
        for (i = 0; i < PIECE_BYTES; i++) {
            /* No branches: the verifier would follow both sides of each, for each byte. */
            u64 entry, mixed, is_begun = -is_nonzero((hash ^ FNV_OFFSET) | state);
            start = (start & is_begun) | ((begin + i) & ~is_begun);
            entry = entry_of(state, thread->text[i]);
            mixed = rules->mixed[entry];
            state = rules->next[entry];
            hash ^= (hash ^ (hash ^ mixed) * FNV_PRIME) & -is_nonzero(mixed);
        }
        barrier();
        if (!progress->has_more)
            break;
    }
    progress->hash = hash;
    progress->state = state;
    progress->text_start = start;
    return progress->has_more && ++progress->calls < MAX_HASH_CALLS ? HASH_PIECES : FINISH_HASH;
}

/* Keep the pieces of a new text. Return the number of kept bytes; 0: the table is full. */
static __always_inline u32 keep_pieces(struct thread *thread, u64 id, u64 address, u32 length)
{
    struct piece_key key = { .id = id };
    u32 number;

#pragma nounroll
    for (number = 0; number < MAX_PIECES; number++) {
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

/* Return the identity of the hashed text. A new text is kept without its leading comments. */
static __always_inline u64 finish_hash(struct thread *thread)
{
    struct hash_progress *progress = &thread->progress;
    u64 id = identity_of(thread, progress->hash), address = progress->address + progress->text_start;
    u32 known = progress->position - progress->text_start;
    u32 length = progress->length ? progress->length - progress->text_start : known;
    u32 kept = 0, is_new = !texts.lookup(&id);
    u64 size = known < TEXT ? known : TEXT - 1;

    if (progress->length > progress->position || (!progress->length && progress->has_more)) {
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
    thread->hashed_bytes = known;
    thread->kept_bytes = kept ? kept : size;
    return id;
}
