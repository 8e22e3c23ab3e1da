/* SPDX-License-Identifier: Apache-2.0 */
/* Makes idle exits that never happened: runs the loaded BPF programs with the arguments of CPUs that do not exist.
 *
 *     exits IDLE NO_IPI FIRST CPUS COUNT      (two program descriptors; CPUs FIRST … FIRST + CPUS - 1; exits in all)
 *
 * Each exit goes idle, is woken without an interrupt, and leaves; the last of each CPU stays open. BPF_PROG_TEST_RUN runs a
 * raw tracepoint's program as the tracepoint would (Linux 5.10). Prints the seconds of CPU time that it took.
 */
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void run(int program, unsigned long first, unsigned long second)
{
    unsigned long arguments[8] = {first, second};
    union bpf_attr attributes;

    memset(&attributes, 0, sizeof attributes);
    attributes.test.prog_fd = program;
    attributes.test.ctx_in = (unsigned long)arguments;
    attributes.test.ctx_size_in = sizeof arguments;
    if (syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attributes, sizeof attributes) < 0) {
        perror("BPF_PROG_TEST_RUN");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int idle, no_ipi;
    unsigned long first, cpus, count, number;
    struct timespec began, ended;

    if (argc != 6)
        return 2;
    idle = atoi(argv[1]);
    no_ipi = atoi(argv[2]);
    first = strtoul(argv[3], 0, 10);
    cpus = strtoul(argv[4], 0, 10);
    count = strtoul(argv[5], 0, 10);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
    for (number = 0; number < count + cpus; number++) {
        unsigned long cpu = first + number % cpus;
        run(idle, number % 3, cpu);
        run(no_ipi, cpu, 0);
        run(idle, 0xffffffff, cpu);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
    printf("%.9f\n", ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) / 1e9);
    return 0;
}
