/*
 * Ground truth for blame that is easily laid on the wrong thread. Prints one line of JSON first, then runs until it is killed.
 *
 *     bystanders rps RATE_HZ SPIN_CPU WAIT_CPU   a thread receives datagrams over loopback while another spins without any call
 *     bystanders spin                            runs all the time and never sleeps
 *     bystanders family NOTES CHILDREN_HZ SLEEPS forks children that sleep SLEEPS times for 5 ms, note when (CLOCK_MONOTONIC,
 *                                                ns) each sleep ended, and end; one child stays
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))
static volatile uint64_t sink;
static int port;
static int tids[2];

static void on_cpu(int cpu)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
}

static void sleep_ns(long ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

static void *spin_on(void *cpu)
{
    on_cpu(*(int *)cpu);
    __atomic_store_n(&tids[0], (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    for (;;)
        sink++;
    return NULL;
}

NOINLINE void receive(void)
{
    char byte;
    recv(port, &byte, 1, 0);
    sink++;
}

static void *receiver(void *cpu)
{
    on_cpu(*(int *)cpu);
    __atomic_store_n(&tids[1], (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    for (;;)
        receive();
    return NULL;
}

static void rps(double rate_hz, int spin_cpu, int wait_cpu)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int from = socket(AF_INET, SOCK_DGRAM, 0);
    pthread_t threads[2];

    port = socket(AF_INET, SOCK_DGRAM, 0);
    if (bind(port, (struct sockaddr *)&address, bytes) || getsockname(port, (struct sockaddr *)&address, &bytes))
        exit(1);
    pthread_create(&threads[0], NULL, spin_on, &spin_cpu);
    pthread_create(&threads[1], NULL, receiver, &wait_cpu);
    while (!__atomic_load_n(&tids[0], __ATOMIC_ACQUIRE) || !__atomic_load_n(&tids[1], __ATOMIC_ACQUIRE))
        sleep_ns(1000000);
    on_cpu(wait_cpu);
    printf("{\"pid\": %d, \"spinner\": %d, \"receiver\": %d}\n", getpid(), tids[0], tids[1]);
    fflush(stdout);
    for (;;) {
        sleep_ns((long)(1e9 / rate_hz));
        sendto(from, "", 1, 0, (struct sockaddr *)&address, bytes);
    }
}

NOINLINE void short_sleep(void)
{
    sleep_ns(5000000);
    sink++;
}

static void family(const char *path, double rate_hz, int sleeps, int is_alone)
{
    int notes = open(path, O_CREAT | O_TRUNC | O_APPEND | O_WRONLY, 0600);

    signal(SIGCHLD, SIG_IGN);
    if (!is_alone && fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    printf("{\"pid\": %d}\n", getpid());
    fflush(stdout);
    for (;;) {
        sleep_ns((long)(1e9 / rate_hz));
        if (fork() == 0) {
            for (int i = 0; i < sleeps; i++) {
                struct timespec t;
                int64_t at;
                short_sleep();
                clock_gettime(CLOCK_MONOTONIC, &t);
                at = t.tv_sec * 1000000000LL + t.tv_nsec;
                if (write(notes, &at, sizeof at) != sizeof at)
                    _exit(1);
            }
            _exit(0);
        }
    }
}

int main(int argc, char **argv)
{
    prctl(PR_SET_TIMERSLACK, 1);
    if (argc == 5 && !strcmp(argv[1], "rps"))
        rps(atof(argv[2]), atoi(argv[3]), atoi(argv[4]));
    if (argc == 5 && (!strcmp(argv[1], "family") || !strcmp(argv[1], "alone")))
        family(argv[2], atof(argv[3]), atoi(argv[4]), !strcmp(argv[1], "alone"));
    if (argc == 2 && !strcmp(argv[1], "spin")) {
        printf("{\"pid\": %d}\n", getpid());
        fflush(stdout);
        for (;;)
            sink++;
    }
    return 2;
}
