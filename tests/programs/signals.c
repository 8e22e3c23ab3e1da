/*
 * A thread that sleeps inside a signal handler: the walk has to cross the signal frame.
 *
 *     signals DURATION_S
 *
 * Chain: handler -> <signal frame> -> raise_level2 -> raise_level1 -> thread. The handler sleeps in nanosleep.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int sink;
static volatile pid_t tid;
static double duration_s;

__attribute__((noinline, noipa)) void handler(int number)
{
    struct timespec length = { (time_t)duration_s, 0 };
    (void)number;
    clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL);
    sink++;
}

__attribute__((noinline, noipa)) void raise_level2(void)
{
    /* A fault, not a call: the interrupted pc is exact, and may be the first instruction of a function. */
    __asm__ volatile("ud2");
    sink++;
}

__attribute__((noinline, noipa)) void raise_level1(void) { raise_level2(); sink++; }

__attribute__((noinline, noipa)) void *thread(void *argument)
{
    tid = (pid_t)syscall(SYS_gettid);
    raise_level1();
    return argument;
}

int main(int argc, char **argv)
{
    struct sigaction action = { .sa_handler = handler };
    pthread_t other;
    duration_s = argc > 1 ? atof(argv[1]) : 0;
    if (duration_s <= 0)
        return 2;
    sigaction(SIGILL, &action, NULL);
    pthread_create(&other, NULL, thread, NULL);
    while (!tid)
        usleep(1000);
    printf("{\"pid\": %d, \"threads\": {\"handler\": {\"tid\": %d, \"rate_hz\": 0}}}\n", (int)getpid(), (int)tid);
    fflush(stdout);
    sleep((unsigned)duration_s);
    _exit(0);
}
