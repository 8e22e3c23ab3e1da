/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_uring: its timers, and the workers that it runs in the process.
 *
 *     ring MODE
 *
 * timeout: a time-out request of 20 ms at a time. link: a read that never ends, with a linked time-out of 20 ms. wait: a
 * wait of 20 ms for a completion that does not come. poll: a write of 1 MiB every 20 ms, submitted by the kernel's thread
 * (SQPOLL), which sleeps after 5 ms. worker: the same write, done by io-wq. Prints one line of JSON; `"ring": false` if
 * io_uring is not allowed here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct io_uring_params params;
static struct io_uring_sqe *entries;
static char *queue, *done;
static char block[1 << 20];
static int ring;

static struct io_uring_sqe *push(uint8_t opcode, int fd, const void *address, uint32_t length, uint8_t flags)
{
    uint32_t *tail = (uint32_t *)(queue + params.sq_off.tail);
    uint32_t slot = *tail & *(uint32_t *)(queue + params.sq_off.ring_mask);
    struct io_uring_sqe *entry = &entries[slot];

    memset(entry, 0, sizeof(*entry));
    entry->opcode = opcode;
    entry->fd = fd;
    entry->addr = (uintptr_t)address;
    entry->len = length;
    entry->flags = flags;
    ((uint32_t *)(queue + params.sq_off.array))[slot] = slot;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_SEQ_CST);
    return entry;
}

static void enter(uint32_t submit, uint32_t complete, uint32_t flags, const void *argument, size_t size)
{
    uint32_t *head = (uint32_t *)(done + params.cq_off.head), *tail = (uint32_t *)(done + params.cq_off.tail);

    syscall(SYS_io_uring_enter, ring, submit, complete, flags, argument, size);
    __atomic_store_n(head, __atomic_load_n(tail, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

int main(int count, char **words)
{
    struct __kernel_timespec pause = { 0, 20000000 };
    struct io_uring_getevents_arg wait = { 0 };
    int ends[2], file;
    char mode;

    if (count != 2 || pipe(ends))
        return 1;
    mode = words[1][0];
    wait.ts = (uintptr_t)&pause;
    if (mode == 'p') {
        params.flags = IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 5;
    }
    ring = (int)syscall(SYS_io_uring_setup, 8, &params);
    printf("{\"pid\": %d, \"ring\": %s}\n", (int)getpid(), ring < 0 ? "false" : "true");
    fflush(stdout);
    if (ring < 0)
        return 0;
    queue = mmap(0, params.sq_off.array + params.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    done = mmap(0, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED,
                ring, IORING_OFF_CQ_RING);
    entries = mmap(0, params.sq_entries * sizeof(*entries), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    file = open(".", O_RDWR | O_TMPFILE, 0600);
    for (;;) {
        if (mode == 't') {
            push(IORING_OP_TIMEOUT, -1, &pause, 1, 0);
            enter(1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        } else if (mode == 'l') {
            push(IORING_OP_READ, ends[0], block, 1, IOSQE_IO_LINK);
            push(IORING_OP_LINK_TIMEOUT, -1, &pause, 1, 0);
            enter(2, 2, IORING_ENTER_GETEVENTS, NULL, 0);
        } else if (mode == 'p') {
            push(IORING_OP_WRITE, file, block, sizeof(block), 0);
            if (__atomic_load_n((uint32_t *)(queue + params.sq_off.flags), __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP)
                enter(1, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0);
            usleep(20000);
        } else if (words[1][2] == 'r') {
            push(IORING_OP_WRITE, file, block, sizeof(block), IOSQE_ASYNC);
            enter(1, 0, 0, NULL, 0);
            usleep(20000);
        } else {
            enter(0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &wait, sizeof(wait));
        }
    }
}
