/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The kinds of waits of a thread that does not run (waits.bpf.h). */
enum wait {
    WAIT_RUN_QUEUE, WAIT_ROW_LOCK, WAIT_LOCK, WAIT_LATCH, WAIT_DISK, WAIT_SYNC, WAIT_CLIENT, WAIT_SLEEP, WAIT_OTHER, WAITS
};
