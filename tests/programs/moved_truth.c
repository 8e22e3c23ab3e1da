/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes moved between files without read and write, and calls by other tables of numbers, with known counts, after a line
 * on stdin. Then it prints `done`.
 *
 * From `source`: 5 sendfile of 100,000 bytes to `sent`, 3 copy_file_range of 100,000 to `copied`, 10 splice of 4,000 through a
 * pipe to `spliced`, each with a tee to a second pipe that vmsplice empties; 4 vmsplice of 3,000 into a third pipe. 7 send
 * and recv of 1,000 bytes. On x86-64 by int $0x80: 6 write of 500 bytes and 3 writev of 200 + 50 to `compat`, 2 sendfile of
 * 1,000 from `source` to `compat`, 8 getpid, 5 nanosleep, 4 calls of number 1234567; and 9 getppid of its own table.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char block[8192];

static int file(const char *name)
{
    return open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
}

#ifdef __x86_64__
static long compat(long number, long first, long second, long third, long fourth)
{
    long result;
    register long fifth __asm__("rsi") = fourth;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(first), "c"(second), "d"(third), "r"(fifth)
                     : "memory", "r8", "r9", "r10", "r11");
    return result;
}

static int call_by_other_numbers(int source)
{
    char *low = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    uint32_t at = (uint32_t)(uintptr_t)low, *parts = (uint32_t *)low, *pause = (uint32_t *)(low + 4096);
    int target = file("compat");

    for (int i = 0; i < 6; i++)
        if (compat(4, target, at, 500, 0) != 500)
            return 1;
    parts[0] = at + 100;
    parts[1] = 200;
    parts[2] = at + 400;
    parts[3] = 50;
    for (int i = 0; i < 3; i++)
        if (compat(146, target, at, 2, 0) != 250)
            return 1;
    for (int i = 0; i < 2; i++)
        if (compat(187, target, source, 0, 1000) != 1000)
            return 1;
    pause[1] = 1000;
    for (int i = 0; i < 8; i++)
        compat(20, 0, 0, 0, 0);
    for (int i = 0; i < 5; i++)
        compat(162, at + 4096, 0, 0, 0);
    for (int i = 0; i < 4; i++)
        compat(1234567, 0, 0, 0, 0);
    return 0;
}
#else
static int call_by_other_numbers(int source)
{
    return source < 0;
}
#endif

int main(void)
{
    struct iovec part = { block, 3000 }, room = { block, 4000 };
    int source, sent, copied, spliced, through[2], teed[2], filled[2], ends[2];
    off_t at = 0;
    loff_t in = 0, out = 0;
    char line[16];

    printf("%d\n", (int)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        return 1;
    source = file("source"), sent = file("sent"), copied = file("copied"), spliced = file("spliced");
    if (ftruncate(source, 1000000) || pipe(through) || pipe(teed) || pipe(filled) || socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return 1;
    for (int i = 0; i < 5; i++)
        if (sendfile(sent, source, &at, 100000) != 100000)
            return 1;
    for (int i = 0; i < 3; i++)
        if (syscall(SYS_copy_file_range, source, &in, copied, &out, 100000L, 0) != 100000)
            return 1;
    in = 0;
    for (int i = 0; i < 10; i++)
        if (splice(source, &in, through[1], NULL, 4000, 0) != 4000 || tee(through[0], teed[1], 4000, 0) != 4000 ||
            splice(through[0], NULL, spliced, NULL, 4000, 0) != 4000 || vmsplice(teed[0], &room, 1, 0) != 4000)
            return 1;
    for (int i = 0; i < 4; i++)
        if (vmsplice(filled[1], &part, 1, 0) != 3000)
            return 1;
    for (int i = 0; i < 7; i++)
        if (send(ends[0], block, 1000, 0) != 1000 || recv(ends[1], block, sizeof(block), 0) != 1000)
            return 1;
    if (call_by_other_numbers(source))
        return 1;
    for (int i = 0; i < 9; i++)
        syscall(SYS_getppid);
    printf("done\n");
    fflush(stdout);
    pause();
    return 0;
}
