/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that is woken and never sleeps, or not before its first real sleep.
 *
 *     unslept CALL REAL_SLEEPS
 *
 * A thread spins on a word of memory until SIGUSR1. Then it sleeps REAL_SLEEPS times for 1 ms, makes 20,000 calls whose
 * deadline has passed (CALL: futex, nanosleep, wall), and spins on. Prints one line of JSON at the start, and
 * the number of its voluntary context switches, by the kernel's count, after the calls.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *call;
static int real_sleeps;
static volatile int begun;
static int word;

static void passed_deadline(void)
{
    struct timespec past = { 1, 0 };

    if (!strcmp(call, "futex")) {
        syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0, &past, NULL, FUTEX_BITSET_MATCH_ANY);
    } else if (!strcmp(call, "nanosleep")) {
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &past, NULL);
    } else {
        clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &past, NULL);
    }
}

static void *work(void *argument)
{
    struct rusage used;
    long before;

    while (!begun)
        ;
    for (int i = 0; i < real_sleeps; i++)
        usleep(1000);
    getrusage(RUSAGE_THREAD, &used);
    before = used.ru_nvcsw;
    for (int i = 0; i < 20000; i++)
        passed_deadline();
    getrusage(RUSAGE_THREAD, &used);
    printf("%ld\n", used.ru_nvcsw - before);
    fflush(stdout);
    for (;;)
        ;
    return argument;
}

static void begin(int signal)
{
    (void)signal;
    begun = 1;
}

int main(int count, char **words)
{
    pthread_t thread;
    sigset_t none;

    if (count != 3)
        return 1;
    call = words[1];
    real_sleeps = atoi(words[2]);
    signal(SIGUSR1, begin);
    pthread_create(&thread, NULL, work, NULL);
    printf("{\"pid\": %d}\n", (int)getpid());
    fflush(stdout);
    sigemptyset(&none);
    for (;;)
        sigsuspend(&none);
}
