/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Test which features the kernel has: each program uses one feature, and the verifier accepts or refuses it.
 *
 * The loader fills in these numbers. It loads the programs of the numbers that are not 0:
 * IS_ATTACHED: an empty program. `doctor` uses it to test if this host can load and attach BPF programs.
 * HELPER, KPROBE_HELPER: the number of a helper. A program of a raw tracepoint or of a uprobe calls it.
 * OFFSET_task_struct_pid: a field of a thread. A typed program reads it and the thread's registers.
 * PREEMPT_COUNT: the BTF id of a per-CPU variable. A program reads its field at OFFSET_preempt_count, the kernel's count
 * of interrupts.
 */
#include "load_time.bpf.h"

RAW_TRACEPOINT_IF(IS_ATTACHED, sched_switch)
{
    return 0;
}

static u64 (*helper)(void) = (void *)HELPER;
int FUNCTION_IF(HELPER, called__helper)(struct bpf_raw_tracepoint_args *ctx)
{
    return helper();
}

static u64 (*kprobe_helper)(void) = (void *)KPROBE_HELPER;
int FUNCTION_IF(KPROBE_HELPER, uprobe__helper)(struct bpf_raw_tracepoint_args *ctx)
{
    return kprobe_helper();
}

/* Load a field. It is assembler because bcc replaces each dereference of a kernel pointer with a helper call. */
#define LOAD_FIELD(width, structure, offset)                                                                       \
    ({                                                                                                             \
        u64 value_;                                                                                                \
        asm volatile("%0 = *(" #width " *)(%1 + %2)" : "=r"(value_) : "r"((u64)(structure)), "i"(offset));          \
        value_;                                                                                                    \
    })

static u64 (*task_registers)(u64 task) = (void *)175;   /* bpf_task_pt_regs */
int FUNCTION_IF(OFFSET_task_struct_pid, btf_tracepoint__sched_waking)(struct bpf_raw_tracepoint_args *ctx)
{
    u64 task = ctx->args[0];

    LOAD_FIELD(u32, task, OFFSET_task_struct_pid);
    LOAD_FIELD(u64, task_registers(task), 0);
    return 0;
}

extern u64 typed_variable(u64 kind, u64 type) asm("llvm.bpf.pseudo");   /* kind 3: BPF_PSEUDO_BTF_ID */
static u64 (*this_cpu_variable)(u64 variable) = (void *)154;           /* bpf_this_cpu_ptr */
int FUNCTION_IF(PREEMPT_COUNT, called__read_preempt_count)(struct bpf_raw_tracepoint_args *ctx)
{
    LOAD_FIELD(u32, this_cpu_variable(typed_variable(3, PREEMPT_COUNT)), OFFSET_preempt_count);
    return 0;
}
