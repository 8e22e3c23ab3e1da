/*
 * Ground truth for wake-ups: each thread sleeps in one named chain of calls at an exact rate.
 *
 *     sleepers DURATION_S [log=FILE] [name=RATE_HZ ...]
 *
 * names: nanosleep poll epoll condvar timerfd pipe futex (defaults: primes). Deadlines are absolute, so a late
 * wake-up does not shift the following ones and the rate over a window is exact. Prints one line of JSON first.
 * Chains: NAME_thread <- NAME_level1 <- NAME_level2 <- wait_NAME <- libc. For pipe and futex, `wake_NAME` is the
 * chain of the waking thread (it sleeps there too) and `wait_NAME` that of the woken thread.
 * log: the program's own count. Per thread, in the order of the JSON: how many sleeps ended, then when (CLOCK_MONOTONIC,
 * ns), as 64-bit numbers, 262,144 in all. A call that found its deadline past did not sleep, and is not counted; one that
 * slept twice (woken for a byte, and then for the pipe's lock, which its waker still held) is counted twice.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))
/* Work after the call keeps it from becoming a tail call, which would leave no frame. */
static volatile uint64_t sink;

enum { LOG_ENTRIES = 1 << 18 };

struct task {
    const char *name;
    double rate_hz;
    struct timespec next;
    pid_t tid;
    pthread_t thread;
    uint64_t *log;
};

static pthread_barrier_t ready;
static double duration_s;
static struct timespec deadline;
static int pipe_ends[2];
static uint32_t futex_word;
/* Threads that are past the barrier: whoever sleeps from then on sleeps in its chain. */
static int started;

static double seconds(struct timespec t) { return (double)t.tv_sec + (double)t.tv_nsec / 1e9; }
static struct timespec now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t; }
static int over(void) { return seconds(now()) >= seconds(deadline); }

static void advance(struct task *task)
{
    int64_t ns = task->next.tv_nsec + (int64_t)(1e9 / task->rate_hz + 0.5);
    task->next.tv_sec += ns / 1000000000;
    task->next.tv_nsec = ns % 1000000000;
}

static long sleeps_so_far(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static void note_sleeps(struct task *task, long sleeps)
{
    struct timespec t = now();
    for (; sleeps > 0; sleeps--) {
        uint64_t count = task->log[0];
        if (count + 1 < LOG_ENTRIES)
            task->log[count + 1] = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
        __atomic_store_n(&task->log[0], count + 1, __ATOMIC_RELEASE);
    }
}

/* poll and epoll take whole milliseconds: rounded up against an absolute deadline, the rate stays exact. */
static int milliseconds_left(const struct task *task)
{
    struct timespec t = now();
    int64_t ns = (task->next.tv_sec - t.tv_sec) * 1000000000 + (task->next.tv_nsec - t.tv_nsec);
    return ns <= 0 ? 0 : (int)((ns + 999999) / 1000000);
}

NOINLINE void wait_nanosleep(struct task *task)
{
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &task->next, NULL);
    sink++;
}

NOINLINE void wait_poll(struct task *task)
{
    poll(NULL, 0, milliseconds_left(task));
    sink++;
}

NOINLINE void wait_epoll(struct task *task)
{
    static int epoll = -1;
    struct epoll_event event;
    if (epoll < 0)
        epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_wait(epoll, &event, 1, milliseconds_left(task));
    sink++;
}

NOINLINE void wait_condvar(struct task *task)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t condition;
    static int initialised;
    if (!initialised) {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&condition, &attributes);
        initialised = 1;
    }
    pthread_mutex_lock(&mutex);
    while (pthread_cond_timedwait(&condition, &mutex, &task->next) == 0)
        ;
    pthread_mutex_unlock(&mutex);
    sink++;
}

NOINLINE void wait_timerfd(struct task *task)
{
    static int fd = -1;
    uint64_t expirations;
    if (fd < 0) {
        struct itimerspec setting = { .it_value = task->next };
        setting.it_interval.tv_nsec = (long)(1e9 / task->rate_hz + 0.5) % 1000000000;
        setting.it_interval.tv_sec = (time_t)(1.0 / task->rate_hz);
        fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
        timerfd_settime(fd, TFD_TIMER_ABSTIME, &setting, NULL);
    }
    if (read(fd, &expirations, sizeof expirations) != sizeof expirations)
        abort();
    sink++;
}

NOINLINE void wake_pipe(struct task *task)
{
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &task->next, NULL);
    if (write(pipe_ends[1], "x", 1) != 1)
        abort();
    sink++;
}

NOINLINE void wait_pipe(struct task *task)
{
    char byte;
    (void)task;
    if (read(pipe_ends[0], &byte, 1) != 1)
        abort();
    sink++;
}

NOINLINE void wake_futex(struct task *task)
{
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &task->next, NULL);
    __atomic_add_fetch(&futex_word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &futex_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    sink++;
}

NOINLINE void wait_futex(struct task *task)
{
    uint32_t seen = __atomic_load_n(&futex_word, __ATOMIC_SEQ_CST);
    (void)task;
    syscall(SYS_futex, &futex_word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    sink++;
}

#define CHAIN(chain, wait)                                                                   \
    NOINLINE void chain##_level2(struct task *task) { wait(task); sink++; }                  \
    NOINLINE void chain##_level1(struct task *task) { chain##_level2(task); sink++; }        \
    NOINLINE void *chain##_thread(void *argument)                                            \
    {                                                                                        \
        struct task *task = argument;                                                        \
        task->tid = (pid_t)syscall(SYS_gettid);                                              \
        pthread_setname_np(pthread_self(), task->name);                                      \
        pthread_barrier_wait(&ready);                                                        \
        pthread_barrier_wait(&ready);                                                        \
        __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);                                   \
        while (!over()) {                                                                    \
            long before = task->log ? sleeps_so_far() : 0;                                   \
            advance(task);                                                                   \
            chain##_level1(task);                                                            \
            if (task->log)                                                                   \
                note_sleeps(task, sleeps_so_far() - before);                                 \
        }                                                                                    \
        return NULL;                                                                         \
    }

CHAIN(nanosleep, wait_nanosleep)
CHAIN(poll, wait_poll)
CHAIN(epoll, wait_epoll)
CHAIN(condvar, wait_condvar)
CHAIN(timerfd, wait_timerfd)
CHAIN(pipe_waker, wake_pipe)
CHAIN(pipe, wait_pipe)
CHAIN(futex_waker, wake_futex)
CHAIN(futex, wait_futex)

static struct task tasks[] = {
    { .name = "nanosleep", .rate_hz = 101 }, { .name = "poll", .rate_hz = 53 },
    { .name = "epoll", .rate_hz = 37 },      { .name = "condvar", .rate_hz = 29 },
    { .name = "timerfd", .rate_hz = 23 },    { .name = "pipe_waker", .rate_hz = 17 },
    { .name = "pipe", .rate_hz = 17 },       { .name = "futex_waker", .rate_hz = 13 },
    { .name = "futex", .rate_hz = 13 },
};
static void *(*const bodies[])(void *) = {
    nanosleep_thread, poll_thread, epoll_thread, condvar_thread, timerfd_thread,
    pipe_waker_thread, pipe_thread, futex_waker_thread, futex_thread,
};
enum { COUNT = sizeof tasks / sizeof *tasks };

static int set_rate(const char *argument)
{
    const char *equals = strchr(argument, '=');
    double rate = equals ? atof(equals + 1) : 0;
    int found = 0;
    for (int i = 0; equals && i < COUNT; i++) {
        size_t length = (size_t)(equals - argument);
        /* `pipe` and `futex` set the waking thread with the woken one. */
        if (!strncmp(tasks[i].name, argument, length) && (!tasks[i].name[length] || tasks[i].name[length] == '_')) {
            tasks[i].rate_hz = rate;
            found = rate > 0;
        }
    }
    return found;
}

static int open_log(const char *path)
{
    size_t bytes = sizeof(uint64_t) * LOG_ENTRIES;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)(bytes * COUNT)))
        return 0;
    uint64_t *log = mmap(NULL, bytes * COUNT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (log == MAP_FAILED)
        return 0;
    for (int i = 0; i < COUNT; i++)
        tasks[i].log = log + (size_t)i * LOG_ENTRIES;
    return 1;
}

int main(int argc, char **argv)
{
    duration_s = argc > 1 ? atof(argv[1]) : 0;
    if (duration_s <= 0) {
        fprintf(stderr, "usage: sleepers DURATION_S [log=FILE] [name=RATE_HZ ...]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], "log=", 4) ? !set_rate(argv[i]) : !open_log(argv[i] + 4)) {
            fprintf(stderr, "sleepers: what is %s?\n", argv[i]);
            return 2;
        }
    if (pipe(pipe_ends))
        return 1;
    pthread_barrier_init(&ready, NULL, COUNT + 1);
    for (int i = 0; i < COUNT; i++)
        if (pthread_create(&tasks[i].thread, NULL, bodies[i], &tasks[i]))
            return 1;
    pthread_barrier_wait(&ready);
    struct timespec start = now();
    deadline = start;
    deadline.tv_sec += (time_t)duration_s;
    deadline.tv_nsec += (long)((duration_s - (double)(time_t)duration_s) * 1e9);
    for (int i = 0; i < COUNT; i++) {
        /* Spread the phases, so that two tasks seldom expire in one interrupt. */
        int64_t ns = start.tv_nsec + (i + 1) * 777777;
        tasks[i].next = (struct timespec){ start.tv_sec + ns / 1000000000, ns % 1000000000 };
    }
    pthread_barrier_wait(&ready);
    while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) < COUNT)
        usleep(1000);
    printf("{\"pid\": %d, \"threads\": {", (int)getpid());
    for (int i = 0; i < COUNT; i++)
        printf("%s\"%s\": {\"tid\": %d, \"rate_hz\": %.6g}", i ? ", " : "", tasks[i].name, (int)tasks[i].tid,
               tasks[i].rate_hz);
    printf("}}\n");
    fflush(stdout);
    struct timespec end = deadline;
    end.tv_sec += 1;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
    return 0;
}
