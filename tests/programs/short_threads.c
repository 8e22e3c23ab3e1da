/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a few milliseconds with names of their own, for tests/system/attribution/test_short_threads.py.
 *
 * Usage: short_threads COUNT. It waits for a line, starts COUNT threads, some at a time, and prints {"TID": "NAME", …}.
 * A thread has its creator's name first. It names itself before its sleeps, between them, or after the last one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE 4

struct thread {
    pthread_t handle;
    int number, tid;
    char name[16];
};

static void wait_ms(int ms)
{
    struct timespec time = { .tv_nsec = ms * 1000000L };
    nanosleep(&time, NULL);
}

static void *run(void *argument)
{
    struct thread *thread = argument;
    int place = thread->number % 3;

    thread->tid = syscall(SYS_gettid);
    for (int i = 0; i < 3; i++) {
        if (i == place)
            prctl(PR_SET_NAME, thread->name);
        if (i < 2)
            wait_ms(1);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int count = atoi(argv[1]);
    struct thread *threads = calloc(count, sizeof(*threads));

    printf("%d\n", (int)getpid());
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    for (int i = 0; i < count; i++) {
        threads[i].number = i;
        snprintf(threads[i].name, sizeof(threads[i].name), "short-%d", i);
        pthread_create(&threads[i].handle, NULL, run, &threads[i]);
        if (i >= AT_ONCE - 1)
            pthread_join(threads[i - AT_ONCE + 1].handle, NULL);
        wait_ms(2);
    }
    for (int i = count < AT_ONCE ? 0 : count - AT_ONCE + 1; i < count; i++)
        pthread_join(threads[i].handle, NULL);
    printf("{");
    for (int i = 0; i < count; i++)
        printf("%s\"%d\": \"%s\"", i ? ", " : "", threads[i].tid, threads[i].name);
    printf("}\n");
    fflush(stdout);
    getchar();
    return 0;
}
