/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* An empty program. `doctor` uses it to test if this host can compile, load and attach BPF programs. */
RAW_TRACEPOINT_PROBE(sched_switch)
{
    return 0;
}
