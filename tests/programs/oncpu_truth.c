/* Burns CPU time in known shares in functions of known call chains, and touches known numbers of pages.
 *
 *     oncpu_truth burn SECONDS [LOG]  truth_one : truth_two : truth_kernel = 50 : 30 : 20 (% of its CPU time); where
 *                                 a slow machine makes it other shares, LOG has them: its CPU time in each, in ns (u64)
 *     oncpu_truth touch PAGES     after a line on stdin truth_touch first writes PAGES pages of a new mapping
 * Prints its pid first.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

static volatile uint64_t sink;
static uint64_t own_log[3], *spent_ns = own_log;

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* Long stretches between looks at the clock: nearly all of the time is the function's own. */
#define BURN(name, number)                                  \
    NOINLINE void name(int64_t ns)                          \
    {                                                       \
        int64_t begin = cpu_ns(), now = begin;              \
        for (; now < begin + ns; now = cpu_ns())            \
            for (int i = 0; i < 20000; i++)                 \
                sink += i;                                  \
        spent_ns[number] += now - begin;                    \
    }
BURN(truth_one, 0)
BURN(truth_two, 1)

NOINLINE void truth_kernel(int64_t ns)
{
    int64_t begin = cpu_ns(), now = begin;
    static char buffer[1 << 16];
    int zero = open("/dev/zero", O_RDONLY);
    for (; now < begin + ns; now = cpu_ns())
        for (int i = 0; i < 20; i++)
            sink += (uint64_t)read(zero, buffer, sizeof buffer);
    close(zero);
    spent_ns[2] += cpu_ns() - begin;
}

NOINLINE void truth_level(int64_t ns)
{
    truth_one(ns * 5);
    truth_two(ns * 3);
    truth_kernel(ns * 2);
    sink++;
}

static void *burn(void *argument)
{
    int64_t end = cpu_ns() + *(int64_t *)argument;
    uint32_t random = 1;
    pthread_setname_np(pthread_self(), "truth-burner");
    /* Uneven rounds: those of one length could run in step with the sampler. */
    while (cpu_ns() < end) {
        random = random * 1664525 + 1013904223;
        truth_level(100000 + random % 400000);
    }
    return NULL;
}

NOINLINE void truth_touch(char *memory, long pages)
{
    for (long i = 0; i < pages; i++)
        ((volatile char *)memory)[i * 4096] = 1;
    sink++;
}

int main(int argc, char **argv)
{
    char line[16];
    printf("%d\n", (int)getpid());
    fflush(stdout);
    if (argc >= 3 && !strcmp(argv[1], "burn")) {
        int64_t ns = (int64_t)(atof(argv[2]) * 1e9);
        pthread_t thread;
        if (argc > 3) {
            int log = open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
            if (log < 0 || ftruncate(log, sizeof own_log))
                return 1;
            spent_ns = mmap(NULL, sizeof own_log, PROT_READ | PROT_WRITE, MAP_SHARED, log, 0);
            if (spent_ns == MAP_FAILED)
                return 1;
        }
        /* The burner is born after the start, in the window. */
        if (!fgets(line, sizeof line, stdin) || pthread_create(&thread, NULL, burn, &ns))
            return 1;
        pthread_join(thread, NULL);
        printf("done\n");
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "touch")) {
        struct rusage before, after;
        long pages = atol(argv[2]);
        char *memory = mmap(NULL, (size_t)pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(memory, (size_t)pages * 4096, MADV_NOHUGEPAGE);
        if (!fgets(line, sizeof line, stdin))
            return 1;
        getrusage(RUSAGE_SELF, &before);
        truth_touch(memory, pages);
        getrusage(RUSAGE_SELF, &after);
        printf("%ld\n", after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt);
        fflush(stdout);
        return fgets(line, sizeof line, stdin) == NULL;
    }
    return 2;
}
