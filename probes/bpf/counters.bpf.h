/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counters of each CPU. Programs at uprobes can be preempted by another thread's on the same CPU: they need atomic adds.
 *
 * The includer has defined enum counter, which ends with COUNTERS.
 */
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);

static __always_inline void count(int what)
{
    u64 *value = counters.lookup(&what);
    if (value)
        __sync_fetch_and_add(value, 1);
}
