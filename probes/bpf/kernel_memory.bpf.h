/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Read words of kernel memory and fields of tasks.
 *
 * DIRECT: the verifier knows the types of a tracepoint's arguments, so reading a field is one load. The helper that
 * reads any address makes four nested calls. Each costs ten times as much as a load if returns are protected against
 * speculation.
 */
#ifndef POWERPROF_KERNEL_MEMORY_H
#define POWERPROF_KERNEL_MEMORY_H

#include "load_time.bpf.h"

static __always_inline u8 read_u8(u64 address)
{
    u8 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
    return value;
}

static __always_inline u32 read_u32(u64 address)
{
    u32 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
    return value;
}

static __always_inline u64 read_u64(u64 address)
{
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
    return value;
}

#if DIRECT
/* Programs with typed arguments: `ctx->args[N]` is a task, not a number. */
#define TYPED_TRACEPOINT_PROBE(tracepoint) int btf_tracepoint__##tracepoint(struct bpf_raw_tracepoint_args *ctx)
#define TYPED_TRACEPOINT_IF(number, tracepoint) \
    int btf_tracepoint__##tracepoint##__if_##number(struct bpf_raw_tracepoint_args *ctx)
/* Assembler, because bcc replaces the access to a pointer's field by a call. `offset` is a constant. */
#define FIELD_AS(width, structure, offset)                                                                        \
    ({                                                                                                             \
        u64 value_;                                                                                                \
        asm volatile("%0 = *(" #width " *)(%1 + %2)" : "=r"(value_) : "r"((u64)(structure)), "i"(offset));          \
        value_;                                                                                                    \
    })
#define CURRENT_TASK ((u64)bpf_get_current_task_btf())
#define FIELD_U8(structure, offset) ((u8)FIELD_AS(u8, structure, offset))
#define FIELD_U32(structure, offset) ((u32)FIELD_AS(u32, structure, offset))
#define FIELD_U64(structure, offset) FIELD_AS(u64, structure, offset)
#else
#define TYPED_TRACEPOINT_PROBE(tracepoint) RAW_TRACEPOINT_PROBE(tracepoint)
#define TYPED_TRACEPOINT_IF(number, tracepoint) \
    int raw_tracepoint__##tracepoint##__if_##number(struct bpf_raw_tracepoint_args *ctx)
#define CURRENT_TASK bpf_get_current_task()
#define FIELD_U8(structure, offset) read_u8((structure) + (offset))
#define FIELD_U32(structure, offset) read_u32((structure) + (offset))
#define FIELD_U64(structure, offset) read_u64((structure) + (offset))
#endif

/* The kernel counts interrupts in progress (include/linux/preempt.h: HARDIRQ_MASK, NMI_MASK) in a per-CPU variable on
 * x86-64, and in the running thread on arm64. PREEMPT_COUNT: the variable's number in BTF. It cannot be read before
 * Linux 5.10, nor without CONFIG_KALLSYMS_ALL. Then pairs of tracepoints are used (VECTORS_IN_PAIRS). */
#define IN_INTERRUPT 0xff0000
#ifdef PREEMPT_COUNT
extern u64 typed_variable(u64 kind, u64 type) asm("llvm.bpf.pseudo");   /* kind 3: BPF_PSEUDO_BTF_ID */
static void *(*this_cpu_variable)(u64 variable) = (void *)154;         /* bpf_this_cpu_ptr */
/* Return whether this CPU handles an interrupt. */
static __always_inline int in_interrupt(void)
{
    u32 depth = 0;

    if (LOAD_TIME(PREEMPT_COUNT)) {
        u64 variable = (u64)this_cpu_variable(typed_variable(3, PREEMPT_COUNT));
        asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(depth) : "r"(variable), "i"(OFFSET_preempt_count));
    } else if (LOAD_TIME(HAS_TASK_PREEMPT_COUNT)) {
        depth = FIELD_U32(CURRENT_TASK, OFFSET_task_struct_preempt_count);
    }
    return (depth & IN_INTERRUPT) != 0;
}
#endif

#include "pid_namespaces.bpf.h"

/* Return the ids of any task like current_pid_tgid(): the process in the upper half, the thread in the lower. The two
 * fields are adjacent unless the kernel shuffles its structs. */
static __always_inline u64 pid_tgid_of(u64 task)
{
    if (LOAD_TIME(PID_LEVEL))
        return ids_in_namespace(task);
#if !DIRECT
    if (LOAD_TIME(ARE_IDS_ADJACENT))
        return read_u64(task + OFFSET_task_struct_pid);
#endif
    return FIELD_U32(task, OFFSET_task_struct_pid) | (u64)FIELD_U32(task, OFFSET_task_struct_tgid) << 32;
}

#endif
