/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Numbers that the loader fills in: features of the kernel and options of the command.
 *
 * The compiler does not know such a number and keeps both branches of `if (LOAD_TIME(SWITCH))`. The kernel's verifier
 * knows it, follows one branch and removes the other. So one compiled program serves every kernel and command.
 */
#define LOAD_TIME(number)                                                                                          \
    ({                                                                                                             \
        u64 value_;                                                                                                \
        asm volatile("%0 = %1" : "=r"(value_) : "i"(number));                                                       \
        value_;                                                                                                    \
    })

/* The size of a table that is created only if `number` is not 0. (bcc creates tables while it compiles, and needs a
 * size above 0.) */
#define ENTRIES_IF(number, entries) ((entries) * (number) + !(number))

/* A function that is loaded only if `number` is not 0. The loader reads the condition from the function's name. */
#define FUNCTION_IF(number, function) function##__if_##number
#define RAW_TRACEPOINT_IF(number, tracepoint) \
    int raw_tracepoint__##tracepoint##__if_##number(struct bpf_raw_tracepoint_args *ctx)
#define RAW_TRACEPOINT_IF_BOTH(number, other, tracepoint) \
    int raw_tracepoint__##tracepoint##__if_##number##__if_##other(struct bpf_raw_tracepoint_args *ctx)
