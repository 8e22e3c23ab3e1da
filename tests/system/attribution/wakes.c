/*
 * Ground truth that counts for itself: every function notes the moment at which it woke.
 *
 *     wakes NOTES_FILE DURATION_S MODE[=NUMBER] ...
 *
 * Modes, each with threads of its own:
 *     twins=HZ    first_twin (two times in three) and second_twin sleep by the same call in frames of the same size:
 *                 pc and stack pointer of both are the same, only a return address differs
 *     rare        rare_sleep wakes every 1.7 s
 *     born=HZ     threads are born, sleep 20 ms in born_sleep, and end
 *     fast=HZ     fast_sleep
 *     pairs=HZ    pairs_send sleeps and wakes pairs_receive through a pipe
 *     many=N      N threads; each sleeps in many_sleep, a second at a time
 *     next        at SIGUSR1 this process runs itself anew (exec): then only next_sleep, at 50 Hz
 * The notes are records of 16 bytes: CLOCK_MONOTONIC in ns, tid, number of the function in `enum who`. A call that
 * found nothing to wait for did not sleep, and is not noted: the kernel's count of the thread's switches tells.
 * Prints one line of JSON when every thread is under way.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))
#define NOTES 400000

enum who { FIRST_TWIN, SECOND_TWIN, RARE, BORN, FAST, SEND, RECEIVE, MANY, NEXT };

struct note {
    int64_t at_ns;
    int32_t tid, who;
};

static struct note *notes;
static volatile int64_t noted, started;
static volatile uint64_t sink;
static int pipe_ends[2];
static double numbers[16];
static char **arguments;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void note(int32_t who)
{
    static __thread long switches;
    struct rusage usage;
    int64_t at = now(), place;

    getrusage(RUSAGE_THREAD, &usage);
    if (usage.ru_nvcsw == switches)
        return;
    switches = usage.ru_nvcsw;
    place = __atomic_fetch_add(&noted, 1, __ATOMIC_RELAXED);
    if (place < NOTES)
        notes[place] = (struct note){ at, (int32_t)syscall(SYS_gettid), who };
}

static void sleep_until(int64_t ns)
{
    struct timespec t = { ns / 1000000000, ns % 1000000000 };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

#define SLEEPER(name, who) NOINLINE void name(int64_t until) { sleep_until(until); note(who); sink++; }
SLEEPER(first_twin, FIRST_TWIN)
SLEEPER(second_twin, SECOND_TWIN)
SLEEPER(rare_sleep, RARE)
SLEEPER(born_sleep, BORN)
SLEEPER(fast_sleep, FAST)
SLEEPER(many_sleep, MANY)
SLEEPER(next_sleep, NEXT)

NOINLINE void pairs_send(int64_t until)
{
    sleep_until(until);
    note(SEND);
    if (write(pipe_ends[1], "x", 1) != 1)
        abort();
    sink++;
}

NOINLINE void pairs_receive(void)
{
    char byte;
    if (read(pipe_ends[0], &byte, 1) != 1)
        abort();
    note(RECEIVE);
    sink++;
}

static void under_way(void) { __atomic_fetch_add(&started, 1, __ATOMIC_SEQ_CST); }

static void *twins(void *hz)
{
    int64_t at = now(), step = (int64_t)(1e9 / *(double *)hz);
    under_way();
    for (int i = 0;; i++) {
        at += step;
        if (i % 3 == 2)
            second_twin(at);
        else
            first_twin(at);
    }
    return NULL;
}

static void *rare(void *unused)
{
    (void)unused;
    under_way();
    for (;;)
        rare_sleep(now() + 1700000000);
    return NULL;
}

static void *born_body(void *unused)
{
    (void)unused;
    born_sleep(now() + 20000000);
    return NULL;
}

static void *born(void *hz)
{
    int64_t at = now(), step = (int64_t)(1e9 / *(double *)hz);
    under_way();
    for (;;) {
        pthread_t thread;
        sleep_until(at += step);
        if (!pthread_create(&thread, NULL, born_body, NULL))
            pthread_detach(thread);
    }
    return NULL;
}

static void *fast(void *hz)
{
    int64_t at = now(), step = (int64_t)(1e9 / *(double *)hz);
    under_way();
    for (;;) {
        at += step;
        if (at > now())   /* a sleep into the past wakes nobody */
            fast_sleep(at);
    }
    return NULL;
}

static void *sender(void *hz)
{
    int64_t at = now(), step = (int64_t)(1e9 / *(double *)hz);
    under_way();
    for (;;) {
        at += step;
        if (at > now())
            pairs_send(at);
    }
    return NULL;
}

static void *receiver(void *unused)
{
    (void)unused;
    under_way();
    for (;;)
        pairs_receive();
    return NULL;
}

static void *many(void *which)
{
    int64_t at = now() + (int64_t)(uintptr_t)which * 1000000 % 1000000000;
    under_way();
    for (;;)
        many_sleep(at += 1000000000);
    return NULL;
}

static void *next(void *asked)
{
    int number;
    under_way();
    sigwait(asked, &number);
    char *words[] = { arguments[0], arguments[1], arguments[2], "then", NULL };
    execv("/proc/self/exe", words);
    abort();
}

static int launched;

static void launch(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument))
        abort();
    launched++;
}

int main(int argc, char **argv)
{
    arguments = argv;
    if (argc < 4)
        return 2;
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);   /* of all threads made from here: 50 us late is every second sleep of 66 us */
    int64_t end = now() + (int64_t)(1e9 * atof(argv[2]));
    int file = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, NOTES * sizeof *notes) || pipe2(pipe_ends, O_CLOEXEC))
        return 1;
    notes = mmap(NULL, NOTES * sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (notes == MAP_FAILED)
        return 1;
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &asked, NULL);
    if (!strcmp(argv[3], "then")) {
        while (notes[noted].at_ns)   /* after those of the program before */
            noted++;
        for (int64_t at = now(); at < end; next_sleep(at += 20000000))
            ;
        return 0;
    }
    for (int i = 3; i < argc && i < 16; i++) {
        char *equals = strchr(argv[i], '=');
        numbers[i] = equals ? atof(equals + 1) : 0;
        if (!strncmp(argv[i], "twins", 5))
            launch(twins, &numbers[i]);
        else if (!strncmp(argv[i], "rare", 4))
            launch(rare, NULL);
        else if (!strncmp(argv[i], "born", 4))
            launch(born, &numbers[i]);
        else if (!strncmp(argv[i], "fast", 4))
            launch(fast, &numbers[i]);
        else if (!strncmp(argv[i], "next", 4))
            launch(next, &asked);
        else if (!strncmp(argv[i], "pairs", 5)) {
            launch(receiver, NULL);
            launch(sender, &numbers[i]);
        } else if (!strncmp(argv[i], "many", 4)) {
            for (int k = 0; k < (int)numbers[i]; k++)
                launch(many, (void *)(uintptr_t)k);
        } else
            return 2;
    }
    while (started < launched)
        usleep(1000);
    printf("{\"pid\": %d}\n", (int)getpid());
    fflush(stdout);
    sleep_until(end);
    _exit(0);
}
