/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Numbers that the loader fills in: what this kernel has, and what the command wants.
 *
 * The compiler knows nothing of such a number, and the kernel's verifier all of it. Of `if (LOAD_TIME(SWITCH))` it follows one branch
 * and removes the other, so that one compiled program serves every kernel and command.
 */
#define LOAD_TIME(number)                                                                                          \
    ({                                                                                                             \
        u64 value_;                                                                                                \
        asm volatile("%0 = %1" : "=r"(value_) : "i"(number));                                                       \
        value_;                                                                                                    \
    })

/* The size of a table that is not created where the number is 0. (bcc creates tables when it compiles, and takes no size of 0.) */
#define ENTRIES_IF(number, entries) ((entries) * (number) + !(number))

/* A function that is not loaded where the number is 0. The loader takes the condition from its name. */
#define FUNCTION_IF(number, function) function##__if_##number
#define RAW_TRACEPOINT_IF(number, tracepoint) \
    int raw_tracepoint__##tracepoint##__if_##number(struct bpf_raw_tracepoint_args *ctx)
#define RAW_TRACEPOINT_IF_BOTH(number, other, tracepoint) \
    int raw_tracepoint__##tracepoint##__if_##number##__if_##other(struct bpf_raw_tracepoint_args *ctx)
