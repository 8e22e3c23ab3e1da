/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Capture the site of a thread: user registers, call path and stack bytes.
 *
 * A site is a thread, its user ip and sp, and a hash of its call path. The registers of a sleeper are read from the
 * top of its kernel stack when it ends an idle period. The call path is hashed at the switch-out, while the memory of
 * the thread is the current one; for a new site the stack is copied too. Two calls of sleep() from one frame have the
 * same ip and sp, so return addresses are hashed as well: all words near the top of the stack that point into mapped
 * code.
 *
 * The loader defines the indexes of registers (REGISTER_*), a test for user registers (REGISTERS_ARE_USERS), and the
 * bits of a word that can be a code address (CODE_ADDRESS_MASK: pointer authentication signs return addresses in the
 * upper bits).
 */
/* ip and sp, and the registers between them. */
#define REGISTER_FIRST (REGISTER_IP < REGISTER_SP ? REGISTER_IP : REGISTER_SP)
#define REGISTER_SPAN ((REGISTER_IP < REGISTER_SP ? REGISTER_SP : REGISTER_IP) - REGISTER_FIRST + 1)
#define HASHED_BYTES 1024
#define STACK_BYTES 0x4000
/* After this many captures of the same call path, a thread is trusted to be on it if captures are frequent. At first
 * every eighth capture reads the path, later one in MAX_SKIPPED_READS. A different path resets the trust. */
#define TRUSTED_AFTER 16
#define MAX_SKIPPED_READS 64

/* Values of a site's code that are not hashes. */
#define CODE_UNREADABLE 1
#define CODE_NEWBORN 2
#define CODE_WORKER 3       /* a worker of io_uring, without user code */

/* A flag in the window of a site: its stack did not fit into the ring buffer. It is sent at the thread's next sleep
 * there. */
#define WINDOW_NO_ROOM (1ULL << 63)

enum stack_kind { STACK_SLEEPER = 0, STACK_WAKER = 1, STACK_REGISTERS = 2 };

/* Two threads of one process with the same ip, sp and call path use the same stack memory in sequence. For short-lived
 * threads only the first stack is copied. With ON_DEMAND, the reader keeps stacks by thread. */
struct site_key {
    u64 ip, sp, code;
    u32 owner, kind;
};
#define SITE_OWNER(tid, tgid) (LOAD_TIME(ON_DEMAND) ? (tid) : (tgid))

struct stack_record {
    u64 at_ns;
    u64 ip, sp, code;
    u32 tid, tgid, kind, bytes;
    u64 space;        /* start of the stack of the process; it differs before and after an exec */
    u64 registers[REGISTER_COUNT];
    u8 stack[STACK_BYTES + 0x1000];
};

BPF_TABLE("lru_hash", struct site_key, u64, sent_sites, ENTRIES_IF(STACKS, 32768));
BPF_PERCPU_ARRAY(scratch, struct stack_record, ENTRIES_IF(STACKS, 1));
BPF_RINGBUF_OUTPUT(stacks, ENTRIES_IF(STACK_PAGES, 1));

static __always_inline int is_code(struct target *target, u64 word)
{
    word &= CODE_ADDRESS_MASK;
    return word - target->text_low < target->text_bytes || word - target->library_low < target->library_bytes;
}

static __always_inline u64 hash_call_path(struct target *target, struct stack_record *record)
{
    u64 *words = (u64 *)record->stack;
    u64 hash = 0xcbf29ce484222325ULL;
    int i;

#pragma unroll
    for (i = 0; i < HASHED_BYTES / 8; i++) {
        u64 word = words[i];
        if (is_code(target, word))
            hash = (hash ^ (word & CODE_ADDRESS_MASK)) * 0x100000001b3ULL;
    }
    return hash;
}

/* Returns 0 if the ring buffer is full. The stack may be sent later. */
static __always_inline int send_stack(struct stack_record *record, u64 window)
{
    s64 *budget = shared_at(SHARED_STACK_BYTES);
    struct thread *thread = thread_at(record->tid);
    /* The number is stored in the record, because the verifier does not track values in memory. In a register it would
     * verify each combination of paths to each number. */
    volatile u32 *bytes = &record->bytes;
    u32 read = 0;
    int i;

    /* Stale return addresses can create an endless number of new call paths. The limits per thread and in total
     * protect the reader's memory. */
    if (thread && thread->window != window) {
        thread->window = window;
        thread->sent = 0;
    }
    if (!budget || !thread || thread->sent >= THREAD_STACKS || *budget <= 0) {
        count(COUNT_UNSENT);
        return 1;
    }

#pragma unroll
    for (i = 0; i < STACK_BYTES / 1024; i++) {
        if (bpf_probe_read_user(record->stack + (read & (STACK_BYTES - 1)), 1024, (void *)(record->sp + read)))
            break;
        read += 1024;
    }
    *bytes = read;
    /* The remaining stack is rarely a multiple of 1024 bytes, and it contains the start of the thread. Read it in
     * smaller and smaller pieces. */
#pragma unroll
    for (i = 512; i >= 8; i >>= 1) {
        read = *bytes;
        if (read < STACK_BYTES &&
            !bpf_probe_read_user(record->stack + (read & (STACK_BYTES - 1)), i, (void *)(record->sp + read)))
            *bytes = read + i;
    }
    read = *bytes;
    if (read > STACK_BYTES)
        *bytes = read = STACK_BYTES;
    if (stacks.ringbuf_output(record, offsetof(struct stack_record, stack) + read, RB_NO_WAKEUP))
        return 0;
    thread->sent++;
    __sync_fetch_and_add(budget, -(s64)(offsetof(struct stack_record, stack) + read));
    note_filled(RING_STACKS, offsetof(struct stack_record, stack) + read);
    return 1;
}

#if DIRECT
static __always_inline void find_registers(u64 task)
{
}

static __always_inline u64 user_registers(u64 task)
{
    return bpf_task_pt_regs((struct task_struct *)task);
}
#else
/* Find the offset of pt_regs in a kernel stack without bpf_task_pt_regs(). BTF has no THREAD_SIZE, so all possible
 * stack sizes are tried on a thread that came from user space; REGISTERS_ARE_USERS recognises its registers. The idle
 * task is not usable: the stack of the boot CPU's idle task is elsewhere. */
static __always_inline void find_registers(u64 task)
{
    int zero = 0;
    s64 *offset = shared_at(SHARED_REGS_OFFSET), top;
    struct stack_record *record;
    u64 bottom, *words;

    if (!offset || *offset)
        return;
    record = scratch.lookup(&zero);
    if (!record)
        return;
    bottom = read_u64(task + OFFSET_task_struct_stack);
    words = record->registers;
#pragma unroll
    for (top = 0x4000; top <= 0x10000; top <<= 1) {
        if (*offset || bpf_probe_read_kernel(words, sizeof(record->registers), (void *)(bottom + top - PT_REGS_BYTES)))
            continue;
        if (REGISTERS_ARE_USERS(words))
            *offset = top - PT_REGS_BYTES;
    }
}

static __always_inline u64 user_registers(u64 task)
{
    s64 *offset = shared_at(SHARED_REGS_OFFSET);
    if (!offset || !*offset)
        return 0;
    return read_u64(task + OFFSET_task_struct_stack) + *offset;
}
#endif

/* Read ip and sp. Returns 0 for kernel threads, which have no user registers. */
static __always_inline int read_ip_sp(u64 registers, u64 *ip, u64 *sp)
{
#if DIRECT
    *ip = FIELD_U64(registers, 8 * REGISTER_IP);
    *sp = FIELD_U64(registers, 8 * REGISTER_SP);
#else
    u64 words[REGISTER_SPAN] = {};

    if (bpf_probe_read_kernel(words, sizeof(words), (void *)(registers + 8 * REGISTER_FIRST)))
        return 0;
    *ip = words[REGISTER_IP - REGISTER_FIRST];
    *sp = words[REGISTER_SP - REGISTER_FIRST];
#endif
    return *ip && !(*ip >> 56);
}

/* Set the site of a thread that the kernel runs in a process (a worker of io_uring); it has no user registers. Returns
 * 0 for kernel threads. */
static __always_inline int set_worker_site(struct site *site, u64 task)
{
    if (FIELD_U32(task, OFFSET_task_struct_flags) & PF_KTHREAD)
        return 0;
    site->ip = site->sp = 0;
    site->code = CODE_WORKER;
    site->same_path_count = 0;
    return 1;
}

/* Read the call path, and copy the stack of a new site. `record` contains the registers. */
static __always_inline void capture_path(struct target *target, struct stack_record *record, u32 kind, u64 window,
                                         struct site *site, u64 task)
{
    struct site_key key = {};
    u64 one = 1;
    int is_same_place, is_same, was_lost;

    if (bpf_probe_read_user(record->stack, HASHED_BYTES, (void *)record->sp))
        record->code = CODE_UNREADABLE;
    else
        record->code = hash_call_path(target, record);
    /* These comparisons follow the loops: the verifier repeats a loop for each value that is known before it. */
    is_same_place = site->ip == record->ip && site->sp == record->sp;
    is_same = is_same_place && site->window == window;
    was_lost = is_same_place && site->window == (window | WINDOW_NO_ROOM);
    site->skipped_reads = 0;
    if (is_same && site->code == record->code) {
        site->same_path_count++;
        return;
    }
    was_lost = was_lost && site->code == record->code;
    site->ip = record->ip;
    site->sp = record->sp;
    site->code = record->code;
    site->window = window;
    site->same_path_count = 1;
    key.ip = record->ip;
    key.sp = record->sp;
    key.code = record->code;
    key.owner = record->code == CODE_UNREADABLE ? record->tid : SITE_OWNER(record->tid, record->tgid);
    key.kind = kind;
    if (!sent_sites.lookup(&key)) {
        sent_sites.update(&key, &one);
        record->space = FIELD_U64(FIELD_U64(task, OFFSET_task_struct_mm), OFFSET_mm_struct_start_stack);
        if (!send_stack(record, window)) {
            sent_sites.delete(&key);
            site->window |= WINDOW_NO_ROOM;
            if (!was_lost)
                count(COUNT_LOST_STACKS);
            return;
        }
    }
    if (was_lost)
        uncount(COUNT_LOST_STACKS);
}

/* Capture the site of the current thread. Returns 0 if it is unreadable, and for kernel threads. The usual case reads
 * two registers and touches only the thread's slot, because a cache miss costs more than any instruction here. */
static __always_inline int capture_current(struct cpu_state *cpu, struct site *site, u64 task, u64 pid_tgid, u32 kind)
{
    int zero = 0;
    s64 *window = shared_at(SHARED_WINDOW);
    u64 registers = user_registers(task), ip, sp;
    struct stack_record *record;
    struct target *target;

    if (!window || !registers)
        return 0;
    if (!read_ip_sp(registers, &ip, &sp))
        return set_worker_site(site, task);
    if (site->same_path_count >= TRUSTED_AFTER && site->ip == ip && site->sp == sp && site->window == *window &&
        site->skipped_reads < site->same_path_count / 2 && site->skipped_reads < MAX_SKIPPED_READS && is_brisk(cpu)) {
        site->skipped_reads++;
        return 1;
    }
    record = scratch.lookup(&zero);
    target = target_of(pid_tgid >> 32);
    if (!record || !target || bpf_probe_read_kernel(record->registers, sizeof(record->registers), (void *)registers))
        return 0;
    record->at_ns = bpf_ktime_get_ns();
    record->ip = ip;
    record->sp = sp;
    record->tid = (u32)pid_tgid;
    record->tgid = pid_tgid >> 32;
    record->kind = kind;
    capture_path(target, record, kind, *window, site, task);
    return 1;
}

/* Send the registers of a sleeping thread once per site. User space reads the stack bytes by other means and joins
 * both. */
static __always_inline void send_registers(u64 registers, u64 ip, u64 sp, u32 tid, u32 tgid, u64 now)
{
    int zero = 0;
    struct site_key key = {};
    struct stack_record *record = scratch.lookup(&zero);
    u64 one = 1;

    key.ip = ip;
    key.sp = sp;
    key.owner = tid;
    key.kind = STACK_REGISTERS;
    if (!record || sent_sites.lookup(&key))
        return;
    sent_sites.update(&key, &one);
    if (bpf_probe_read_kernel(record->registers, sizeof(record->registers), (void *)registers))
        return;
    record->at_ns = now;
    record->ip = ip;
    record->sp = sp;
    record->code = 0;
    record->space = 0;
    record->tid = tid;
    record->tgid = tgid;
    record->kind = STACK_REGISTERS;
    record->bytes = 0;
    if (stacks.ringbuf_output(record, offsetof(struct stack_record, stack), RB_NO_WAKEUP))
        count(COUNT_LOST_STACKS);
}
