/* A thread that goes to sleep often and is preempted oftener: `preempted CPU`. A process of a real-time policy wakes every
 * 40 µs on the same CPU; the first thread sets itself asleep all the time, so that it is often preempted between that and
 * schedule(). The preempting is done by a process of its own, so that a tracer of this one sees only the victim. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static void short_sleep(long ns)
{
    struct timespec time = {0, ns};
    nanosleep(&time, 0);
}

int main(int argc, char **argv)
{
    struct sched_param priority = {.sched_priority = 1};
    struct pollfd nothing = {.fd = -1};
    cpu_set_t cpus;
    unsigned long round;

    CPU_ZERO(&cpus);
    CPU_SET(argc > 1 ? atoi(argv[1]) : 0, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    prctl(PR_SET_TIMERSLACK, 1);
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (sched_setscheduler(0, SCHED_FIFO, &priority))
            return 1;
        for (;;)
            short_sleep(40000);
    }
    puts("ready");
    fflush(stdout);
    for (round = 0;; round++) {
        /* Half of them end before the thread is asleep: its own timer races with it as well. */
        short_sleep(round % 16 ? 1000 : 20000);
        if (round % 16 == 7)
            poll(&nothing, 1, 0);
    }
}
