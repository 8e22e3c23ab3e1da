/* Functions with known call counts and CPU time: work begins with a line on stdin, `done` says that it is over.
 *
 * Each `use(µs)` burns that much CPU time of its thread by its own clock, so a function's self time is known:
 * calls × µs. It is inlined, so that it is part of the function that calls it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

static volatile uint64_t sink;
static jmp_buf back;

static inline __attribute__((always_inline)) void use(int us)
{
    struct timespec start, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    do
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < us * 1000L);
}

NOINLINE void truth_leaf(void) { use(100); }

NOINLINE void truth_inner(void) { use(150); sink++; }
NOINLINE void truth_outer(void)
{
    use(200);
    for (int i = 0; i < 3; i++)
        truth_inner();
    use(100);
}

NOINLINE int truth_recurse(int depth)
{
    use(50);
    return depth ? truth_recurse(depth - 1) + (int)(sink & 1) : 0;
}

NOINLINE void truth_sleeper(void)
{
    struct timespec t = { 0, 5000000 };
    use(100);
    nanosleep(&t, NULL);
    sink++;
}

NOINLINE int truth_tail_second(int x) { use(300); sink++; return x; }
NOINLINE int truth_tail_first(int x) { use(200); return truth_tail_second(x + 1); }

NOINLINE void truth_jumps(void) { use(200); longjmp(back, 1); }
NOINLINE void truth_jumper(void)
{
    if (!setjmp(back))
        truth_jumps();
    use(100);
    sink++;
}

NOINLINE void truth_deep(int depth)
{
    if (depth)
        truth_deep(depth - 1);
    sink++;
}

static void *thread_body(void *argument)
{
    for (int i = 0; i < 200; i++)
        truth_leaf();
    return argument;
}

int main(void)
{
    char line[16];
    pthread_t threads[3];

    printf("%d\n", (int)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 1;
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, thread_body, NULL))
            return 1;
    for (int i = 0; i < 50; i++)
        truth_outer();
    for (int i = 0; i < 20; i++)
        truth_recurse(19);
    for (int i = 0; i < 40; i++)
        truth_sleeper();
    for (int i = 0; i < 60; i++)
        truth_tail_first(i);
    for (int i = 0; i < 60; i++)
        truth_jumper();
    truth_deep(99);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("done\n");
    fflush(stdout);
    /* Stays in a call until told to end: an unfinished one. */
    return fgets(line, sizeof line, stdin) == NULL;
}
