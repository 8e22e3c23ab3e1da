/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Count system calls by thread: calls by number, waits for locks (futex), and bytes read and written per file.
 *
 * Question: which thread makes which system calls, how often and how long, and which files does it read and write?
 * Cost: per call of a target, two table look-ups and two clock reads; per call of another process, one look-up.
 * Privileges: CAP_BPF and CAP_PERFMON (or root). Raw tracepoints only; all offsets come from the running kernel's BTF.
 * Checked against a program that counts its own calls and bytes, and against strace (tests/system).
 *
 * The loader defines OFFSET_*, ARGUMENT_0 to ARGUMENT_2 (offsets of arguments in pt_regs; OFFSET_compat_argument_* in
 * a 32-bit call), COMPAT_MASK (the flag of a thread in a 32-bit call), HAVE_URING, EVERY_PROCESS, CALLS and FILES.
 */
#define COMM_BYTES 16
#define NAME_BYTES 48
#include "kernel_memory.bpf.h"

/* The use of a file by a call. Calls that copy between files: KIND_SEND (sendfile) writes to its first argument,
 * KIND_TEE to its second, KIND_SPLICE to its third. KIND_PIPE (vmsplice) writes or reads a pipe, as the open mode
 * allows. */
enum kind {
    KIND_OTHER, KIND_READ, KIND_WRITE, KIND_SYNC, KIND_FUTEX, KIND_SUBMIT, KIND_PIPE, KIND_SEND, KIND_TEE, KIND_SPLICE,
};
/* The numbering of a call: native, 32-bit or x32. `kinds` has SYSCALL_SLOTS entries for each. */
enum abi { ABI_NATIVE, ABI_COMPAT, ABI_X32, ABIS };
#define SYSCALL_SLOTS 1024
#define X32_BIT 0x40000000
#define FMODE_WRITE 2
/* Of include/uapi/linux/aio_abi.h. */
enum iocb_command {
    IOCB_CMD_PREAD, IOCB_CMD_PWRITE, IOCB_CMD_FSYNC, IOCB_CMD_FDSYNC, IOCB_CMD_PREADV = 7, IOCB_CMD_PWRITEV = 8,
};
/* Of include/uapi/linux/io_uring.h: enum io_uring_op. */
enum uring_operation {
    IORING_OP_READV = 1, IORING_OP_WRITEV, IORING_OP_FSYNC, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED,
    IORING_OP_READ = 22, IORING_OP_WRITE,
};
#define MAX_IOCBS 16
#define MAX_IOVECS 16

struct call_key {
    u64 who;
    u32 number;
    u32 operation;   /* futex operation; 0 for other calls */
    u64 abi;
};

struct call {
    u64 calls, errors, ns, longest_ns;
};

struct file_key {
    u64 who;
    u64 inode;
    u64 device;
};

struct file_io {
    u64 reads, read_bytes, writes, write_bytes, syncs, sync_ns, mode;
    char name[NAME_BYTES];
    char folder[NAME_BYTES];
    char comm[COMM_BYTES];
};

struct open_call {
    u64 start_ns;
    u64 file;        /* struct file, or 0 */
    u64 destination;        /* struct file that receives copied bytes, else 0 */
    u32 number;
    u32 operation;
    u32 kind;
    u32 abi;
};

BPF_HASH(targets, u32, u64, 4096);
BPF_ARRAY(kinds, u32, ABIS * SYSCALL_SLOTS);
BPF_HASH(open_calls, u64, struct open_call, 65536);
BPF_HASH(calls, struct call_key, struct call, CALLS);
BPF_HASH(files, struct file_key, struct file_io, FILES);
struct thread_name {
    char comm[COMM_BYTES];
};
BPF_HASH(exited, u64, struct thread_name, 16384);   /* threads that exited: /proc does not have their names any more */
BPF_ARRAY(window_open, u64, 1);
/* COUNT_LOST: a table was full. COUNT_TRUNCATED: requests with more parts than this program reads. */
enum counter { COUNT_LOST, COUNT_TRUNCATED, COUNTERS };
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);
BPF_PERCPU_ARRAY(new_file_io, struct file_io, 1);

static __always_inline int window_is_open(void)
{
    int zero = 0;
    u64 *open = window_open.lookup(&zero);
    return open && *open;
}

static __always_inline void count(int counter)
{
    u64 *value = counters.lookup(&counter);
    if (value)
        *value += 1;
}

static __always_inline int is_traced(u64 who)
{
    u32 tgid = who >> 32;

    if (LOAD_TIME(EVERY_PROCESS))
        return (u32)who != 0 && !is_outside(who);
    return targets.lookup(&tgid) != 0;
}

/* The ABI of the current thread's call. Negative numbers are not calls. */
static __always_inline u32 abi_of(u32 number)
{
    if (read_u32(bpf_get_current_task() + OFFSET_task_struct_compat) & LOAD_TIME(COMPAT_MASK))
        return ABI_COMPAT;
    return number & X32_BIT && (s32)number > 0 ? ABI_X32 : ABI_NATIVE;
}

/* An argument of the call, read at its offset in pt_regs. */
static __always_inline u64 argument(u64 registers, u32 abi, u64 native, u64 compat)
{
    return abi == ABI_COMPAT ? (u32)read_u64(registers + compat) : read_u64(registers + native);
}

#define ARGUMENT(number) argument(registers, call.abi, ARGUMENT_##number, OFFSET_compat_argument_##number)

/* The struct file of a descriptor of the current thread; 0 if it is not open. */
static __always_inline u64 file_of(u32 descriptor)
{
    u64 table = read_u64(read_u64(bpf_get_current_task() + OFFSET_task_struct_files) + OFFSET_files_struct_fdt);
    if (!table || descriptor >= read_u32(table + OFFSET_fdtable_max_fds))
        return 0;
    return read_u64(read_u64(table + OFFSET_fdtable_fd) + 8ULL * descriptor);
}

static __always_inline struct file_io *file_io_of(u64 who, u64 file)
{
    u64 inode = file ? read_u64(file + OFFSET_file_f_inode) : 0, dentry;
    struct file_key key = { .who = who };
    struct file_io *sum, *new_entry;
    int zero = 0;

    if (!inode)
        return 0;
    key.inode = read_u64(inode + OFFSET_inode_i_ino);
    key.device = read_u32(read_u64(inode + OFFSET_inode_i_sb) + OFFSET_super_block_s_dev);
    sum = files.lookup(&key);
    if (sum)
        return sum;
    new_entry = new_file_io.lookup(&zero);
    if (!new_entry)
        return 0;
    __builtin_memset(new_entry, 0, sizeof(*new_entry));
    new_entry->mode = read_u32(inode + OFFSET_inode_i_mode) & 0xffff;
    dentry = read_u64(file + OFFSET_file_dentry);
    bpf_probe_read_kernel_str(new_entry->name, NAME_BYTES, (void *)read_u64(dentry + OFFSET_dentry_name));
    dentry = read_u64(dentry + OFFSET_dentry_d_parent);
    bpf_probe_read_kernel_str(new_entry->folder, NAME_BYTES, (void *)read_u64(dentry + OFFSET_dentry_name));
    bpf_get_current_comm(new_entry->comm, COMM_BYTES);
    if (files.update(&key, new_entry))
        count(COUNT_LOST);
    return files.lookup(&key);
}

static __always_inline void add_file_io(u64 who, u64 file, u32 kind, u64 bytes, u64 ns)
{
    struct file_io *io = file_io_of(who, file);

    if (!io)
        return;
    if (kind == KIND_READ) {
        io->reads += 1;
        io->read_bytes += bytes;
    } else if (kind == KIND_WRITE) {
        io->writes += 1;
        io->write_bytes += bytes;
    } else if (kind == KIND_SYNC) {
        io->syncs += 1;
        io->sync_ns += ns;
    }
}

/* The sum of the lengths in an array of struct iovec { void *base; size_t length; }. `word` is the size of its
 * members: 4 bytes in a 32-bit call, else 8. */
static __always_inline u64 sum_iovec_lengths(u64 iovecs, u32 entries, u32 word)
{
    u64 bytes = 0;

    if (entries > MAX_IOVECS)
        count(COUNT_TRUNCATED);
    for (u32 i = 0; i < MAX_IOVECS; i++) {
        u64 length = 0;
        if (i >= entries)
            break;
        bpf_probe_read_user(&length, sizeof(length), (void *)(iovecs + (2ULL * i + 1) * word));
        bytes += word == 4 ? (u32)length : length;
    }
    return bytes;
}

/* The layout of struct iocb (include/uapi/linux/aio_abi.h). io_submit(2) takes an array of pointers to it. The
 * requested bytes are counted, because the result is known later. */
struct aio_request {
    u64 data;
    u32 key, flags;
    u16 command, priority;
    u32 descriptor;
    u64 buffer, bytes;
};

static __always_inline u32 kind_of_iocb(u32 command)
{
    if (command == IOCB_CMD_PREAD || command == IOCB_CMD_PREADV)
        return KIND_READ;
    if (command == IOCB_CMD_PWRITE || command == IOCB_CMD_PWRITEV)
        return KIND_WRITE;
    return command == IOCB_CMD_FSYNC || command == IOCB_CMD_FDSYNC ? KIND_SYNC : KIND_OTHER;
}

static __always_inline void add_iocbs(u64 who, u64 entries, u64 table, u32 word)
{
    if (entries > MAX_IOCBS)
        count(COUNT_TRUNCATED);
    for (u32 i = 0; i < MAX_IOCBS; i++) {
        struct aio_request request = {};
        u64 address = 0, bytes;
        u32 kind;
        int is_vector;
        if (i >= entries)
            break;
        bpf_probe_read_user(&address, sizeof(address), (void *)(table + (u64)word * i));
        if (word == 4)
            address = (u32)address;
        bpf_probe_read_user(&request, sizeof(request), (void *)address);
        kind = kind_of_iocb(request.command);
        is_vector = request.command == IOCB_CMD_PREADV || request.command == IOCB_CMD_PWRITEV;
        bytes = is_vector ? sum_iovec_lengths(request.buffer, (u32)request.bytes, word) : request.bytes;
        add_file_io(who, file_of(request.descriptor), kind, bytes, 0);
    }
}

RAW_TRACEPOINT_PROBE(sys_enter)
{
    u64 who = current_pid_tgid(), registers = ctx->args[0];
    struct open_call call = {};
    u32 number = (u32)ctx->args[1], slot, *kind;

    if (!window_is_open() || !is_traced(who))
        return 0;
    call.start_ns = bpf_ktime_get_ns();
    call.abi = abi_of(number);
    call.number = call.abi == ABI_X32 ? number & ~X32_BIT : number;
    slot = call.abi * SYSCALL_SLOTS + call.number;
    kind = call.number < SYSCALL_SLOTS ? kinds.lookup(&slot) : 0;
    call.kind = kind ? *kind : KIND_OTHER;
    if (call.kind == KIND_FUTEX) {
        call.operation = (u32)ARGUMENT(1) & 0x7f;
    } else if (call.kind == KIND_SUBMIT) {
        add_iocbs(who, ARGUMENT(1), ARGUMENT(2), call.abi == ABI_COMPAT ? 4 : 8);
    } else if (call.kind == KIND_SEND) {
        call.file = file_of((u32)ARGUMENT(1));
        call.destination = file_of((u32)ARGUMENT(0));
    } else if (call.kind != KIND_OTHER) {
        call.file = file_of((u32)ARGUMENT(0));
        if (call.kind == KIND_TEE)
            call.destination = file_of((u32)ARGUMENT(1));
        else if (call.kind == KIND_SPLICE)
            call.destination = file_of((u32)ARGUMENT(2));
        else if (call.kind == KIND_PIPE)
            call.kind = read_u32(call.file + OFFSET_file_f_mode) & FMODE_WRITE ? KIND_WRITE : KIND_READ;
    }
    if (open_calls.update(&who, &call))
        count(COUNT_LOST);
    return 0;
}

RAW_TRACEPOINT_PROBE(sys_exit)
{
    u64 who = current_pid_tgid(), ns;
    s64 result = (s64)ctx->args[1];
    struct open_call *open_call, call;
    struct call_key key = {};
    struct call *sum, new_entry = {};
    int failed = result < 0 && result >= -4095;

    open_call = open_calls.lookup(&who);
    if (!open_call)
        return 0;
    call = *open_call;
    open_calls.delete(&who);
    if (!window_is_open())
        return 0;
    ns = bpf_ktime_get_ns() - call.start_ns;
    key.who = who;
    key.number = call.number;
    key.operation = call.operation;
    key.abi = call.abi;
    sum = calls.lookup(&key);
    if (!sum) {
        if (calls.update(&key, &new_entry))
            count(COUNT_LOST);
        sum = calls.lookup(&key);
    }
    if (sum) {
        sum->calls += 1;
        sum->errors += failed;
        sum->ns += ns;
        if (ns > sum->longest_ns)
            sum->longest_ns = ns;
    }
    if (failed)
        return 0;
    if (call.file)
        add_file_io(who, call.file, call.destination ? KIND_READ : call.kind, result, ns);
    if (call.destination)
        add_file_io(who, call.destination, KIND_WRITE, result, ns);
    return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
    u64 who = current_pid_tgid();
    struct thread_name name = {};

    if (!window_is_open() || !is_traced(who))
        return 0;
    bpf_get_current_comm(name.comm, COMM_BYTES);
    exited.update(&who, &name);
    return 0;
}

static __always_inline u32 kind_of_uring_operation(u32 operation)
{
    if (operation == IORING_OP_READV || operation == IORING_OP_READ_FIXED || operation == IORING_OP_READ)
        return KIND_READ;
    if (operation == IORING_OP_WRITEV || operation == IORING_OP_WRITE_FIXED || operation == IORING_OP_WRITE)
        return KIND_WRITE;
    return operation == IORING_OP_FSYNC ? KIND_SYNC : KIND_OTHER;
}

/* A prepared request of io_uring. The requested bytes are counted for the thread that submits it. */
RAW_TRACEPOINT_IF(HAVE_URING, io_uring_submit_req)
{
    u64 who = current_pid_tgid(), request = ctx->args[0], bytes;
    u32 operation, kind;

    if (!window_is_open() || !is_traced(who))
        return 0;
    operation = read_u32(request + OFFSET_io_kiocb_opcode) & 0xff;
    kind = kind_of_uring_operation(operation);
    if (kind == KIND_OTHER)
        return 0;
    bytes = read_u32(request + OFFSET_io_rw_len);
    if (operation == IORING_OP_READV || operation == IORING_OP_WRITEV)
        bytes = sum_iovec_lengths(read_u64(request + OFFSET_io_rw_addr), (u32)bytes, abi_of(0) == ABI_COMPAT ? 4 : 8);
    add_file_io(who, file_of(read_u32(request + OFFSET_io_kiocb_cqe_fd)), kind, bytes, 0);
    return 0;
}
