/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* How far a text has been hashed that is longer than a thread's buffer (whole.bpf.h). */
struct walk {
    u64 address, hash;
    u64 since;               /* on the clock: its statement began */
    u32 length;              /* 0: it ends with a zero */
    u32 at, state;
    u32 start;               /* where its first byte is that is in no comment */
    u32 goes_on;             /* it is longer than that */
    u32 calls;
    u32 size;                /* of a piece */
    u32 ansi;                /* double quotes are those of names (texts.bpf.h) */
};
