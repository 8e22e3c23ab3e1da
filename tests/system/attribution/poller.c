/* Wakes so often a second on one CPU, works for so many microseconds of its own CPU time, and notes what it has used.
 *
 * poller NOTES CPU RATE WORK_US      RATE 0: it spins, and notes nothing
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static long long now(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

int main(int argc, char **argv)
{
    long long next, step, work_ns;
    cpu_set_t cpus;
    int notes;

    if (argc != 5)
        return 2;
    notes = open(argv[1], O_CREAT | O_WRONLY | O_APPEND, 0600);
    CPU_ZERO(&cpus);
    CPU_SET(atoi(argv[2]), &cpus);
    if (notes < 0 || sched_setaffinity(0, sizeof cpus, &cpus))
        return 1;
    prctl(PR_SET_TIMERSLACK, 1);
    printf("{\"pid\": %d}\n", getpid());
    fflush(stdout);
    if (!atoi(argv[3]))
        for (;;)
            ;
    step = 1000000000LL / atoi(argv[3]);
    work_ns = atoll(argv[4]) * 1000;
    for (next = now(CLOCK_MONOTONIC);; next += step) {
        struct timespec until = {next / 1000000000, next % 1000000000};
        long long used, note[2];

        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
        used = now(CLOCK_PROCESS_CPUTIME_ID);
        note[0] = now(CLOCK_MONOTONIC);
        note[1] = used;
        if (write(notes, note, sizeof note) != sizeof note)
            return 1;
        while (now(CLOCK_PROCESS_CPUTIME_ID) - used < work_ns)
            ;
    }
}
