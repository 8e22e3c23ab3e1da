/* SPDX-License-Identifier: Apache-2.0 */
/* System calls, bytes and waits with known counts: after a line on stdin the threads below run one after the other, then
 * `done WAITED_NS URING`: how long `waiter` waited by its clock, and how many requests io_uring took (0: it is not allowed here).
 *
 * `writer`: 300 pwrite64 of 4,096 bytes and 20 fdatasync of `written` in the folder that is the working directory, 100 pread64 of 512
 * bytes of it, 40 preadv of 3 parts of 1,000 bytes each, 50 getppid, 30 openat of a file that there is not.
 * `waiter`: waits 60 times until `waker` says so, 2 ms later; each is one futex call of either.
 * `ringer`: 25 writes of 2 parts of 2,048 bytes to `ringed`, by io_uring.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char block[8192];
static uint32_t turn;
static int64_t waited_ns;
static int ringed;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *writer(void *argument)
{
    struct iovec parts[3] = { { block, 1000 }, { block + 1000, 1000 }, { block + 2000, 1000 } };
    int file = open("written", O_RDWR | O_CREAT | O_TRUNC, 0600);

    pthread_setname_np(pthread_self(), "writer");
    for (int i = 0; i < 300; i++) {
        if (pwrite(file, block, 4096, 4096L * i) != 4096)
            return argument;
        if (i % 15 == 0)
            fdatasync(file);
    }
    for (int i = 0; i < 100; i++)
        if (pread(file, block, 512, 4096L * i) != 512)
            return argument;
    for (int i = 0; i < 40; i++)
        if (preadv(file, parts, 3, 0) != 3000)
            return argument;
    for (int i = 0; i < 50; i++)
        syscall(SYS_getppid);
    for (int i = 0; i < 30; i++)
        syscall(SYS_openat, AT_FDCWD, "no-such-file", O_RDONLY);
    close(file);
    return argument;
}

static void *waiter(void *argument)
{
    pthread_setname_np(pthread_self(), "waiter");
    for (uint32_t i = 0; i < 60; i++) {
        int64_t began = now();
        /* The waker stores before it wakes, and waits until we sleep: one call a turn. */
        syscall(SYS_futex, &turn, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, i, NULL, NULL, 0);
        waited_ns += now() - began;
    }
    return argument;
}

static void *waker(void *argument)
{
    struct timespec pause = { 0, 2000000 };
    pthread_setname_np(pthread_self(), "waker");
    for (uint32_t i = 0; i < 60; i++) {
        nanosleep(&pause, NULL);
        __atomic_store_n(&turn, i + 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &turn, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
    }
    return argument;
}

static void *ringer(void *argument)
{
    struct io_uring_params p = { 0 };
    struct iovec parts[2] = { { block, 2048 }, { block + 2048, 2048 } };
    int ring = (int)syscall(SYS_io_uring_setup, 4, &p), file = open("ringed", O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *queue, *done;
    struct io_uring_sqe *entries;

    pthread_setname_np(pthread_self(), "ringer");
    if (ring < 0)
        return argument;
    queue = mmap(0, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    done = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                IORING_OFF_CQ_RING);
    entries = mmap(0, p.sq_entries * sizeof(*entries), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    for (int i = 0; i < 25; i++) {
        uint32_t *tail = (uint32_t *)(queue + p.sq_off.tail), *head = (uint32_t *)(done + p.cq_off.head);
        uint32_t slot = *tail & *(uint32_t *)(queue + p.sq_off.ring_mask);
        memset(&entries[slot], 0, sizeof(*entries));
        entries[slot].opcode = IORING_OP_WRITEV;
        entries[slot].fd = file;
        entries[slot].addr = (uint64_t)(uintptr_t)parts;
        entries[slot].len = 2;
        entries[slot].off = 4096ULL * (uint64_t)i;
        ((uint32_t *)(queue + p.sq_off.array))[slot] = slot;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
            break;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        ringed += 1;
    }
    return argument;
}

static void run(void *(*first)(void *), void *(*second)(void *))
{
    pthread_t one, two;
    pthread_create(&one, NULL, first, NULL);
    if (second)
        pthread_create(&two, NULL, second, NULL);
    pthread_join(one, NULL);
    if (second)
        pthread_join(two, NULL);
}

int main(void)
{
    char line[16];
    printf("%d\n", (int)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        return 1;
    run(writer, NULL);
    run(waiter, waker);
    run(ringer, NULL);
    printf("done %lld %d\n", (long long)waited_ns, ringed);
    fflush(stdout);
    pause();
    return 0;
}
