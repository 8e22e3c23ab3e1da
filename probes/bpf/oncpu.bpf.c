/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Where CPUs run, and where page faults are taken: user and kernel call paths, each copied once and then counted.
 *
 * Question: which functions use the C0 time of these processes, or take their page faults?
 * Cost: cpu-clock: SAMPLE_HZ timer interrupts a second on every CPU, also on one that idles (it is woken for them:
 *       never part of an energy window), about 5 µs each. page-faults: 2 to 4 µs per fault of a target.
 * Privileges: CAP_BPF and CAP_PERFMON (or root). No tracepoint, no kprobe: perf software events. x86-64.
 * Checked against programs that burn known shares of CPU time and touch known numbers of pages (tests/system).
 *
 * The interrupted task's user registers lie at the top of its kernel stack, whether the event came from user or from
 * kernel mode. A user call path is known by the hash of its ip and of all words near the top of the stack that point
 * into the process's code; a new one is sent with its stack bytes, and unwound later. Kernel paths are walked by the
 * kernel. The same two hashes of the same thread are one row of `samples`, which is exact whatever is sent.
 *
 * The loader puts in front: SAMPLES, EVERY_PROCESS, HASHED_CHUNKS, STACK_PAGES.
 */
#include "paths.bpf.h"
