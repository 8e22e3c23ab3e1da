/* Burns CPU time in known shares in functions of known call chains, and touches known numbers of pages.
 *
 *     oncpu_truth burn SECONDS    truth_one : truth_two : truth_kernel = 50 : 30 : 20 (% of its CPU time)
 *     oncpu_truth touch PAGES     after a line on stdin truth_touch first writes PAGES pages of a new mapping
 * Prints its pid first.
 */
#define _GNU_SOURCE
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

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* Long stretches between looks at the clock: nearly all of the time is the function's own. */
#define BURN(name)                                          \
    NOINLINE void name(int64_t ns)                          \
    {                                                       \
        int64_t end = cpu_ns() + ns;                        \
        while (cpu_ns() < end)                              \
            for (int i = 0; i < 20000; i++)                 \
                sink += i;                                  \
    }
BURN(truth_one)
BURN(truth_two)

NOINLINE void truth_kernel(int64_t ns)
{
    int64_t end = cpu_ns() + ns;
    static char buffer[1 << 16];
    FILE *zero = fopen("/dev/zero", "r");
    setvbuf(zero, NULL, _IONBF, 0);
    while (cpu_ns() < end)
        for (int i = 0; i < 20; i++)
            sink += (uint64_t)read(fileno(zero), buffer, sizeof buffer);
    fclose(zero);
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
    if (argc == 3 && !strcmp(argv[1], "burn")) {
        int64_t ns = (int64_t)(atof(argv[2]) * 1e9);
        pthread_t thread;
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
