/* A thread that sleeps in a loop and counts it: `slack_truth FILE POLL_MS`. Its count lies in the first 8 bytes of FILE.
 * The thread is called `truth-poller`; the main thread waits for ever. It says `ready TID` once it runs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile uint64_t *wakings;
static int poll_ms;

static void *poller(void *argument)
{
    pthread_setname_np(pthread_self(), "truth-poller");
    printf("ready %d\n", gettid());
    fflush(stdout);
    for (;;) {
        poll(NULL, 0, poll_ms);
        ++*wakings;
    }
    return argument;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int file = argc == 3 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, 4096))
        return 1;
    wakings = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    poll_ms = atoi(argv[2]);
    if (wakings == MAP_FAILED || pthread_create(&thread, NULL, poller, NULL))
        return 1;
    pause();
    return 0;
}
