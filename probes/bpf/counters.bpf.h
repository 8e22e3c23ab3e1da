/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counters per CPU. A program at a uprobe can be preempted by a program of another thread, so additions are atomic.
 *
 * The includer defines enum counter; its last member is COUNTERS.
 */
BPF_PERCPU_ARRAY(counters, u64, COUNTERS);

static __always_inline void count(int counter)
{
    u64 *value = counters.lookup(&counter);
    if (value)
        __sync_fetch_and_add(value, 1);
}
