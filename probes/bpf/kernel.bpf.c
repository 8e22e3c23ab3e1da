/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Read kernel memory, and find the names and addresses of kernel functions.
 *
 * The kernel runs each program once (BPF_PROG_TEST_RUN) in some microseconds and without locks. The result is in `answer`.
 * The loader fills in READS_MEMORY, NAMES_FUNCTIONS and FINDS_FUNCTIONS, which are 1 for the programs to load.
 */
#include "load_time.bpf.h"

/* A power of two, so that a mask shows the verifier the bound. */
#define MEMORY_BYTES 512
/* KSYM_NAME_LEN since Linux 6.1, and the text after the name. */
#define TEXT_BYTES (512 + 128)
/* BPF_F_RDONLY_PROG. bpf_snprintf() accepts a format only from a frozen table that programs cannot write. */
#define READ_ONLY_TO_PROGRAMS (1U << 7)

struct answer {
    char bytes[TEXT_BYTES];
};
struct format {
    char text[8];
};

BPF_ARRAY(answer, struct answer, 1);
BPF_F_TABLE("array", u32, struct format, format, ENTRIES_IF(NAMES_FUNCTIONS, 1), READ_ONLY_TO_PROGRAMS);

/* Copy memory: its address and size are the arguments. */
int FUNCTION_IF(READS_MEMORY, called__read_memory)(struct bpf_raw_tracepoint_args *ctx)
{
    int zero = 0;
    struct answer *copy = answer.lookup(&zero);

    return copy ? bpf_probe_read_kernel(copy, ctx->args[1] & (MEMORY_BYTES - 1), (void *)ctx->args[0]) : -1;
}

/* Write the address of the current thread's task_struct. */
int FUNCTION_IF(READS_MEMORY, called__find_task)(struct bpf_raw_tracepoint_args *ctx)
{
    int zero = 0;
    u64 *task = (u64 *)answer.lookup(&zero);

    if (task)
        *task = bpf_get_current_task();
    return 0;
}

/* Write the text of an address: `name+0x10/0x20 [module]`, or a number if the address is in no function. */
static long (*print_text)(struct answer *text, u32 size, struct format *format, u64 *values, u32 bytes) = (void *)165; /* bpf_snprintf */
int FUNCTION_IF(NAMES_FUNCTIONS, called__name_function)(struct bpf_raw_tracepoint_args *ctx)
{
    int zero = 0;
    u64 address = ctx->args[0];
    struct answer *text = answer.lookup(&zero);
    struct format *pattern = format.lookup(&zero);

    if (text && pattern)
        print_text(text, TEXT_BYTES, pattern, &address, sizeof(address));
    return 0;
}

/* Replace a function's name by its address; 0 if the kernel has no such function or hides addresses. */
static long (*look_up_name)(struct answer *name, u32 size, u64 flags, u64 *address) = (void *)179; /* bpf_kallsyms_lookup_name */
int FUNCTION_IF(FINDS_FUNCTIONS, sleepable__find_function)(struct bpf_raw_tracepoint_args *ctx)
{
    int zero = 0;
    u64 address = 0;
    struct answer *name = answer.lookup(&zero);

    if (name) {
        look_up_name(name, TEXT_BYTES, 0, &address);
        *(u64 *)name = address;
    }
    return 0;
}
