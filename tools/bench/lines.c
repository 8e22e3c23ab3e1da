/* What it costs that CPUs write and read a common cache line at every idle entry, exit and waking: `lines SECONDS`.
 * One thread a CPU does what the probes do around one idle period with eight wakings; one line per way of doing it:
 *   name threads nanoseconds-per-idle-period
 * own: states on lines of their own, and a mark that is written when it changes only. That is what the probes do.
 * packed: the same, but the states of neighbours share cache lines. counter: a count of idle CPUs, written at each entry
 * and exit and read at each waking. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CPUS 1024
#define WAKINGS 8
#define STATE_WORDS 8

enum way { ALONE, OWN, PACKED, COUNTER, WAYS };
static const char *const names[WAYS] = {"alone", "own", "packed", "counter"};

static _Alignas(128) struct { volatile uint64_t words[STATE_WORDS]; char gap[128]; } own[CPUS];
static _Alignas(128) struct { volatile uint64_t words[STATE_WORDS / 2]; } packed[CPUS];
static _Alignas(128) volatile int64_t counter;
static _Alignas(128) volatile int64_t all_busy;
static _Alignas(128) volatile int stop;
static enum way way;
static pthread_barrier_t begin;

struct worker { pthread_t thread; int cpu; uint64_t periods; };

static void *work(void *argument)
{
    struct worker *me = argument;
    volatile uint64_t *state = way == PACKED ? packed[me->cpu].words : own[me->cpu].words;
    uint64_t seen = 0;
    cpu_set_t cpus;
    int i;

    CPU_ZERO(&cpus);
    CPU_SET(me->cpu, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    pthread_barrier_wait(&begin);
    while (!stop) {
        state[0] = 1;                                          /* idle entry */
        if (way == COUNTER)
            __sync_fetch_and_add(&counter, 1);
        else {
            __sync_fetch_and_add(&state[1], 0);
            if (all_busy)
                all_busy = 0;
        }
        state[0] = 2;                                          /* exit */
        if (way == COUNTER)
            __sync_fetch_and_add(&counter, -1);
        for (i = 0; i < WAKINGS; i++) {
            seen += way == COUNTER ? counter > 0 : !all_busy;
            state[2]++;
        }
        me->periods++;
    }
    state[3] = seen;
    return 0;
}

static double run(int threads, double seconds)
{
    static struct worker workers[CPUS];
    struct timespec wait = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    uint64_t periods = 0;
    int i;

    stop = 0;
    pthread_barrier_init(&begin, 0, threads + 1);
    for (i = 0; i < threads; i++) {
        workers[i] = (struct worker){.cpu = i};
        pthread_create(&workers[i].thread, 0, work, &workers[i]);
    }
    pthread_barrier_wait(&begin);
    nanosleep(&wait, 0);
    stop = 1;
    for (i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, 0);
        periods += workers[i].periods;
    }
    return seconds * 1e9 * threads / periods;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1.0;
    int threads = sysconf(_SC_NPROCESSORS_ONLN);

    for (way = ALONE; way < WAYS; way++)
        printf("%s %d %.1f\n", names[way], way == ALONE ? 1 : threads, run(way == ALONE ? 1 : threads, seconds));
    return 0;
}
