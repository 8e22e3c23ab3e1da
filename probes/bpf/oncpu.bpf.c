/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Sample running threads and page faults. Each user or kernel call path is copied once and counted afterwards.
 *
 * Question: which functions use the CPU time of these processes, or take their page faults?
 * Cost: cpu-clock: SAMPLE_HZ timer interrupts per second on each CPU, about 5 µs each. They also wake idle CPUs, so
 *       they never run in an energy window. page-faults: 2 to 4 µs per fault of a target.
 * Privileges: CAP_BPF and CAP_PERFMON (or root). perf software events only. x86-64.
 * Checked against programs with known shares of CPU time and known numbers of page faults (tests/system).
 *
 * The user registers of the interrupted task are at the top of its kernel stack, in user mode and in kernel mode. A
 * user call path is identified by a hash over its ip and over all words near the top of the stack that point into the
 * code of the process. A new path is sent with its stack bytes and unwound later. The kernel walks its own stacks. One
 * row of `samples` counts one thread with one pair of hashes; it is exact even if a record is lost.
 *
 * The loader defines SAMPLES, EVERY_PROCESS, HASHED_CHUNKS and STACK_PAGES.
 */
#include "sampled_stacks.bpf.h"
