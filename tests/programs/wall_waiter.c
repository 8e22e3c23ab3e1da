/* A thread that waits for a lock by the wall clock, 10 ms each time. It is called `wall-waiter` and says `ready TID`. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static void *waiter(void *argument)
{
    struct timespec until;

    pthread_setname_np(pthread_self(), "wall-waiter");
    printf("ready %d\n", gettid());
    fflush(stdout);
    pthread_mutex_lock(&lock);
    for (;;) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 10 * 1000 * 1000;
        if (until.tv_nsec >= 1000 * 1000 * 1000) {
            until.tv_sec++;
            until.tv_nsec -= 1000 * 1000 * 1000;
        }
        pthread_cond_timedwait(&never, &lock, &until);
    }
    return argument;
}

int main(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, waiter, NULL))
        return 1;
    pause();
    return 0;
}
