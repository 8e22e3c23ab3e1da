/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two programs at the same addresses, one of which executes the other in its place.
 *
 *     executed OTHER
 *
 * Sleeps for 5 ms and computes for some ms at a time, in functions called first_*. At SIGUSR1 it executes OTHER: this file
 * compiled with -DSECOND, whose functions are called second_*, at the same addresses but in frames of another size.
 * Prints one line of JSON at the start.
 */
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

static volatile int asked;
static volatile unsigned long sum;

#ifdef SECOND
#define NAP second_nap
#define BURN second_burn
#define ROOM 40
#else
#define NAP first_nap
#define BURN first_burn
#define ROOM 400
#endif

NOINLINE void NAP(void)
{
    struct timespec pause = { 0, 5000000 };
    volatile char room[ROOM];

    room[0] = 1;
    nanosleep(&pause, NULL);
    sum += (unsigned long)room[0];
}

NOINLINE void BURN(void)
{
    for (unsigned long i = 0; i < 3000000; i++)
        sum += i;
}

static void ask(int signal)
{
    (void)signal;
    asked = 1;
}

int main(int count, char **words)
{
    signal(SIGUSR1, ask);
    if (count > 1) {
        printf("{\"pid\": %d}\n", (int)getpid());
        fflush(stdout);
    }
    for (;;) {
        if (asked && count > 1)
            execl(words[1], words[1], (char *)NULL);
        NAP();
        BURN();
    }
}
