/* Wakings and sleeps with known counts: after a line on stdin three threads run side by side, then
 * `done MEAN_NS SLEEPER CONSUMER PRODUCER`: how often each gave up its CPU to wait, by the kernel's own count.
 *
 * `sleeper` sleeps 200 times for 5 ms (its own timer wakes it); MEAN_NS is what its clock says that they took.
 * `consumer` waits 300 times for a byte that `producer` writes into a pipe, 1 ms after the last was read; it need not
 * wait where it comes late. `producer` sleeps 300 times, and waits for an answer where that is late.
 *
 * Each sleeps once more for 5 ms when it has read its count. Where the kernel called nobody as a thread was switched to, its sleep is
 * known by the next switch from it; the end of a thread may come after the window's.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int there[2], back[2];
static int64_t slept_ns;
static long waits[3];

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static const struct timespec rest = { 0, 5000000 };

static long waits_of_this_thread(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    nanosleep(&rest, NULL);
    return usage.ru_nvcsw;
}

static void *sleeper(void *argument)
{
    pthread_setname_np(pthread_self(), "sleeper");
    for (int i = 0; i < 200; i++) {
        int64_t start = now();
        nanosleep(&rest, NULL);
        slept_ns += now() - start;
    }
    waits[0] = waits_of_this_thread();
    return argument;
}

static void *consumer(void *argument)
{
    char byte;
    pthread_setname_np(pthread_self(), "consumer");
    for (int i = 0; i < 300; i++)
        if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
            break;
    waits[1] = waits_of_this_thread();
    return argument;
}

static void *producer(void *argument)
{
    struct timespec t = { 0, 1000000 };
    char byte = 0;
    pthread_setname_np(pthread_self(), "producer");
    for (int i = 0; i < 300; i++) {
        nanosleep(&t, NULL);
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            break;
    }
    waits[2] = waits_of_this_thread();
    return argument;
}

int main(void)
{
    void *(*const bodies[])(void *) = { sleeper, consumer, producer };
    pthread_t threads[3];
    char line[16];

    printf("%d\n", (int)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin) || pipe(there) || pipe(back))
        return 1;
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, bodies[i], NULL))
            return 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("done %lld %ld %ld %ld\n", (long long)slept_ns / 200, waits[0], waits[1], waits[2]);
    fflush(stdout);
    return fgets(line, sizeof line, stdin) == NULL;
}
