/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The progress of hashing a text that is longer than a thread's buffer (long_texts.bpf.h). */
struct hash_progress {
    u64 address, hash;
    u64 began_at;            /* start of its statement */
    u32 length;              /* 0: the text ends with a zero byte */
    u32 position, state;
    u32 text_start;          /* position of the first byte outside of comments */
    u32 has_more;            /* the text continues after `position` */
    u32 calls;
    u32 piece_bytes;
    u32 has_ansi_quotes;     /* double quotes enclose names (texts.bpf.h) */
};
