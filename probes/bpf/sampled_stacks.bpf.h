/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Count the call paths of sampled threads. Each path is copied once (oncpu.bpf.c explains how).
 *
 * The loader defines: SAMPLES (0: not loaded), EVERY_PROCESS, HASHED_CHUNKS (a multiple of 4), STACK_PAGES. The
 * including program can define STATEMENT_OF, so that samples are counted by statement too.
 */
#include "kernel_memory.bpf.h"

#define STACK_BYTES 0x4000
#define HASHED_CHUNK 256
#define KERNEL_DEPTH 64
#define REGISTER_COUNT 21   /* struct pt_regs of x86-64 */
#define REGISTER_IP 16
#define REGISTER_CS 17
#define REGISTER_SP 19
#define RB_NO_WAKEUP 1

#ifndef STATEMENT_OF
#define STATEMENT_OF(tid) 0
#endif

enum path_counter { PATH_EVENTS, PATH_IDLE, PATH_TARGET, PATH_STACKS, PATH_LOST_STACKS, PATH_LOST_ROWS, PATH_COUNTERS };
enum record_kind { RECORD_USER, RECORD_KERNEL };

/* The code of a process: its own text, and the range that contains its libraries. All 0: not known yet. */
struct target {
    u64 text_low, text_bytes;
    u64 library_low, library_bytes;
};

struct sample {
    u64 user, kernel;   /* hashes, 0 for none */
    u64 statement;
    u32 tgid, tid;
};

struct path {
    u64 hash;
    u32 tgid, kind;
};

struct user_record {
    u32 kind, bytes;
    u64 user;
    u32 tgid, tid;
    char comm[16];
    u64 registers[REGISTER_COUNT];
    u8 stack[STACK_BYTES + 0x1000];
};

struct kernel_record {
    u32 kind, depth;
    u64 kernel;
    u64 addresses[KERNEL_DEPTH];
};

/* On a host that starts programs continuously, the latest are enough: older ones have exited. */
BPF_TABLE("lru_hash", u32, struct target, targets, ENTRIES_IF(SAMPLES, 8192));
BPF_HASH(samples, struct sample, u64, ENTRIES_IF(SAMPLES, 65536));
BPF_TABLE("lru_hash", struct path, u32, seen, ENTRIES_IF(SAMPLES, 65536));
BPF_PERCPU_ARRAY(user_scratch, struct user_record, ENTRIES_IF(SAMPLES, 1));
BPF_PERCPU_ARRAY(kernel_scratch, struct kernel_record, ENTRIES_IF(SAMPLES, 1));
BPF_PERCPU_ARRAY(path_counters, u64, ENTRIES_IF(SAMPLES, PATH_COUNTERS));
BPF_RINGBUF_OUTPUT(stacks, ENTRIES_IF(STACK_PAGES, 1));

static __always_inline void count_path(int what)
{
    u64 *value = path_counters.lookup(&what);
    if (value)
        *value += 1;
}

static __always_inline u64 hash_word(u64 hash, u64 word)
{
    return (hash ^ word) * 0x100000001b3ULL;
}

/* Add a path. Return whether it is new. */
static __always_inline int add_path(struct path *path)
{
    u32 one = 1;

    if (seen.lookup(path))
        return 0;
    seen.update(path, &one);
    return 1;
}

static __always_inline void send_record(void *record, u32 bytes, struct path *path)
{
    count_path(PATH_STACKS);
    if (stacks.ringbuf_output(record, bytes, RB_NO_WAKEUP)) {
        count_path(PATH_LOST_STACKS);
        seen.delete(path);   /* the next sample of this path retries */
    }
}

/* Copy the next `size` bytes of the stack. The count is in memory, so the verifier does not track each of its values.
 */
static __always_inline int copy_stack(struct user_record *record, u32 size)
{
    u32 read = *(volatile u32 *)&record->bytes & (STACK_BYTES - 1);

    if (bpf_probe_read_user(record->stack + read, size, (void *)(record->registers[REGISTER_SP] + read)))
        return 0;
    *(volatile u32 *)&record->bytes = read + size;
    return 1;
}

/* Return all ones if a word is in [low, low + bytes), else 0. Both limits are below 2^63. Branches would multiply the
 * states of the verifier. */
static __always_inline u64 mask_within(u64 word, u64 low, u64 bytes)
{
    u64 at = word - low;
    return (u64)((s64)(~at & (at - bytes)) >> 63);
}

/* Hash the words of the stack that point to code. */
static __always_inline u64 hash_user_stack(struct user_record *record, struct target *target)
{
    u64 hash = hash_word(0xcbf29ce484222325ULL, record->registers[REGISTER_IP]);
    u64 text_low = 0, text_bytes = ~0ULL >> 1, library_low = 0, library_bytes = 0;
    u64 *words = (u64 *)record->stack;
    u32 chunk, chunks = LOAD_TIME(HASHED_CHUNKS);
    int i;

    if (target) {
        text_low = target->text_low;
        text_bytes = target->text_bytes;
        library_low = target->library_low;
        library_bytes = target->library_bytes;
    }
    *(volatile u32 *)&record->bytes = 0;
#pragma nounroll
    for (chunk = 0; chunk < chunks; chunk++) {
        if (!copy_stack(record, HASHED_CHUNK))
            break;
#pragma nounroll
        for (i = 0; i < HASHED_CHUNK / 8; i++) {
            u64 word = *(volatile u64 *)&words[chunk * (HASHED_CHUNK / 8) + i];
            u64 code = mask_within(word, text_low, text_bytes) | mask_within(word, library_low, library_bytes);
            hash = (hash ^ (word & code)) * (1 + (0x100000001b2ULL & code));
        }
    }
    return hash ? hash : 1;
}

/* Copy the rest, up to STACK_BYTES - 1 KiB or to the end of the stack. The end has the frames of the thread's start,
 * and is seldom at a round distance. */
static __always_inline void copy_stack_end(struct user_record *record)
{
    u32 rest = STACK_BYTES / 1024 - 1 - LOAD_TIME(HASHED_CHUNKS) / (1024 / HASHED_CHUNK), i;

#pragma nounroll
    for (i = 0; i < rest; i++)
        if (!copy_stack(record, 1024))
            break;
#pragma unroll
    for (i = 512; i >= 8; i >>= 1)
        copy_stack(record, i);
}

static __always_inline u64 sample_user_stack(struct target *target, u32 tgid, u32 tid)
{
    int zero = 0;
    struct user_record *record = user_scratch.lookup(&zero);
    struct path path = {};
    u32 bytes;

    if (!record)
        return 0;
    if (bpf_probe_read_kernel(record->registers, sizeof(record->registers),
                              (void *)bpf_task_pt_regs(bpf_get_current_task_btf())))
        return 0;
    if ((record->registers[REGISTER_CS] & 3) != 3)
        return 0;   /* a kernel thread has no user registers */
    path.hash = hash_user_stack(record, target);
    path.tgid = tgid;
    path.kind = RECORD_USER;
    if (add_path(&path)) {
        record->kind = RECORD_USER;
        record->user = path.hash;
        record->tgid = tgid;
        record->tid = tid;
        bpf_get_current_comm(record->comm, sizeof(record->comm));
        copy_stack_end(record);
        bytes = *(volatile u32 *)&record->bytes;
        if (bytes <= STACK_BYTES)
            send_record(record, offsetof(struct user_record, stack) + bytes, &path);
    }
    return path.hash;
}

static __always_inline u64 sample_kernel_stack(void *ctx)
{
    int zero = 0, i;
    struct kernel_record *record = kernel_scratch.lookup(&zero);
    struct path path = {};
    u64 hash = 0xcbf29ce484222325ULL;
    long bytes;
    u32 depth;

    if (!record)
        return 0;
    bytes = bpf_get_stack(ctx, record->addresses, sizeof(record->addresses), 0);
    if (bytes <= 0)
        return 0;
    depth = bytes / 8;
    if (depth > KERNEL_DEPTH)
        depth = KERNEL_DEPTH;
    /* Hash all entries: the helper clears the unused ones, and the verifier of 6.1 gives up on a loop that ends at the
     * depth. */
#pragma unroll
    for (i = 0; i < KERNEL_DEPTH; i++)
        hash = hash_word(hash, record->addresses[i]);
    path.hash = hash ? hash : 1;
    path.kind = RECORD_KERNEL;
    if (add_path(&path)) {
        record->kind = RECORD_KERNEL;
        record->depth = depth;
        record->kernel = path.hash;
        send_record(record, sizeof(*record), &path);
    }
    return path.hash;
}

int FUNCTION_IF(SAMPLES, sample__path)(u64 *ctx)
{
    u64 pid_tgid = current_pid_tgid(), one = 1, *rows;
    struct sample sample = {};
    u32 tgid = pid_tgid >> 32;
    struct target *target;

    count_path(PATH_EVENTS);
    if (!(u32)pid_tgid) {
        count_path(PATH_IDLE);
        return 0;
    }
    target = targets.lookup(&tgid);
    if (!target && (!LOAD_TIME(EVERY_PROCESS) || is_outside(pid_tgid)))
        return 0;
    if (target && !target->text_bytes && LOAD_TIME(EVERY_PROCESS))
        target = 0;
    count_path(PATH_TARGET);
    sample.tgid = tgid;
    sample.tid = (u32)pid_tgid;
    sample.statement = STATEMENT_OF((u32)pid_tgid);
    sample.user = sample_user_stack(target, tgid, (u32)pid_tgid);
    if ((ctx[REGISTER_CS] & 3) != 3)
        sample.kernel = sample_kernel_stack(ctx);
    rows = samples.lookup(&sample);
    if (rows)
        __sync_fetch_and_add(rows, 1);
    else if (samples.insert(&sample, &one)) {
        rows = samples.lookup(&sample);   /* another CPU has inserted the same row */
        if (rows)
            __sync_fetch_and_add(rows, 1);
        else
            count_path(PATH_LOST_ROWS);
    }
    return 0;
}
