/* SPDX-License-Identifier: Apache-2.0 */
/* Moves its own code to memory without a file, as servers do for huge pages, and then ticks: main > middle > tick > usleep,
 * 100 times a second. Argument: `all` code, a `part` of it (two pages around tick), `memfd`: all, to a file without a name,
 * `none`. Prints `ready`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile uint64_t sink;

/* Pages of code around the functions. */
__asm__(".text\n.fill 20000, 1, 0x90\n");
__attribute__((noinline)) void tick(void) { usleep(10000); sink++; }
__attribute__((noinline)) void middle(void) { for (int i = 0; i < 500000; i++) sink += i; tick(); sink++; }
__asm__(".text\n.fill 20000, 1, 0x90\n");

static void copy(char *begin, size_t size, int fd)
{
    char *copied = mmap(0, size, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);

    memcpy(copied, begin, size);
    if (mprotect(copied, size, PROT_READ | PROT_EXEC) ||
        mremap(copied, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, begin) == MAP_FAILED) {
        perror("mremap");
        exit(1);
    }
}

static void move(const char *how)
{
    char program[4096] = {0}, line[8192], *begin = 0, *end = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    int fd = -1;

    if (readlink("/proc/self/exe", program, 4095) < 0)
        exit(1);
    while (fgets(line, sizeof(line), maps)) {
        unsigned long low, high;
        char mode[8];
        if (sscanf(line, "%lx-%lx %7s", &low, &high, mode) == 3 && mode[2] == 'x' && strstr(line, program)) {
            begin = (char *)low;
            end = (char *)high;
            break;
        }
    }
    fclose(maps);
    if (!strcmp(how, "part")) {
        begin = (char *)((uintptr_t)tick & ~4095ul);
        end = begin + 8192;
    }
    if (!strcmp(how, "memfd")) {
        fd = memfd_create("code", 0);
        if (ftruncate(fd, end - begin))
            exit(1);
    }
    copy(begin, end - begin, fd);
}

int main(int count, char **words)
{
    if (count > 1 && strcmp(words[1], "none"))
        move(words[1]);
    puts("ready");
    fflush(stdout);
    for (;;)
        middle();
}
