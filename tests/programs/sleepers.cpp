// Ground truth in C++: names to demangle, methods, templates, an inlined call, with and without frame pointers.
//
//     sleepers-cpp DURATION_S [condvar=RATE_HZ] [poll=RATE_HZ]
//
// Chains: Worker<I>::run() -> outer -> [inlined: middle] -> deepest -> libc. Deadlines are absolute.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <poll.h>
#include <pthread.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uint64_t sink;
static pthread_barrier_t ready;
static timespec deadline;
// Threads that are past the barrier: whoever sleeps from then on sleeps in its chain.
static std::atomic<int> started;

static int64_t nanoseconds(const timespec &t) { return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec; }
static int64_t now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return nanoseconds(t);
}
static timespec as_timespec(int64_t ns) { return {time_t(ns / 1000000000), long(ns % 1000000000)}; }

namespace ground {

struct Poll {
    [[gnu::noinline]] static void deepest(int64_t next, const std::string &)
    {
        int64_t left = next - now();
        ::poll(nullptr, 0, left <= 0 ? 0 : int((left + 999999) / 1000000));
        sink = sink + 1;
    }
};

struct Condvar {
    [[gnu::noinline]] static void deepest(int64_t next, const std::string &)
    {
        static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
        static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
        timespec until = as_timespec(next);
        pthread_mutex_lock(&mutex);
        while (pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &until) == 0)
            ;
        pthread_mutex_unlock(&mutex);
        sink = sink + 1;
    }
};

template <typename Way> struct Worker {
    const char *name;
    double rate_hz;
    int64_t start = 0;
    pid_t tid = 0;

    [[gnu::always_inline]] inline void middle(int64_t next) { Way::deepest(next, name); sink = sink + 1; }
    [[gnu::noinline]] void outer(int64_t next) { middle(next); sink = sink + 1; }
    [[gnu::noinline]] void run()
    {
        tid = pid_t(syscall(SYS_gettid));
        pthread_setname_np(pthread_self(), name);
        pthread_barrier_wait(&ready);
        pthread_barrier_wait(&ready);
        started++;
        for (uint64_t count = 1; now() < nanoseconds(deadline); count++)
            outer(start + int64_t(double(count) * 1e9 / rate_hz));
    }
    static void *body(void *self) { static_cast<Worker *>(self)->run(); return nullptr; }
};

} // namespace ground

int main(int argc, char **argv)
{
    double duration_s = argc > 1 ? atof(argv[1]) : 0;
    if (duration_s <= 0) {
        fprintf(stderr, "usage: sleepers-cpp DURATION_S [condvar=RATE_HZ] [poll=RATE_HZ]\n");
        return 2;
    }
    static ground::Worker<ground::Condvar> condvar{"condvar", 41};
    static ground::Worker<ground::Poll> poller{"poll", 43};
    for (int i = 2; i < argc; i++) {
        if (!strncmp(argv[i], "condvar=", 8))
            condvar.rate_hz = atof(argv[i] + 8);
        if (!strncmp(argv[i], "poll=", 5))
            poller.rate_hz = atof(argv[i] + 5);
    }
    pthread_barrier_init(&ready, nullptr, 3);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, condvar.body, &condvar) || pthread_create(&thread, nullptr, poller.body, &poller))
        return 1;
    pthread_barrier_wait(&ready);
    condvar.start = now() + 777777;
    poller.start = now() + 1555554;
    deadline = as_timespec(now() + int64_t(duration_s * 1e9));
    pthread_barrier_wait(&ready);
    while (started < 2)
        usleep(1000);
    printf("{\"pid\": %d, \"threads\": {\"condvar\": {\"tid\": %d, \"rate_hz\": %g}, \"poll\": {\"tid\": %d, \"rate_hz\": %g}}}\n",
           int(getpid()), int(condvar.tid), condvar.rate_hz, int(poller.tid), poller.rate_hz);
    fflush(stdout);
    timespec end = as_timespec(nanoseconds(deadline) + 1000000000);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr);
}
