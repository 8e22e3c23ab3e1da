/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Question: can programs be compiled, loaded and attached here at all? */
RAW_TRACEPOINT_PROBE(sched_switch)
{
    return 0;
}
