// SPDX-License-Identifier: Apache-2.0
// A process of an ordinary account that maps a file and can keep the lock of its own memory map for some seconds.
//
//     map_locker DEVICE FOLDER FILE SECONDS [writer] [overlay] [ended] [always] [exec] [PROGRAM]
//
// DEVICE is a node of /dev/fuse, FOLDER an empty folder of this account. The process maps FILE, `overlay`: through an
// overlay of its own, and prints "ready PID". For each line of its input it reads a page of its own FUSE file through
// /proc/self/mem, which holds the lock until the page is served, SECONDS later. With `writer` a second thread waits for
// the lock in mmap(2). With `ended` a child reads, and the process ends: its map stays, without an owner. It prints
// "locked" and "free". At most 3 times 4 seconds; after two minutes it ends, whatever happens.
//
// With `always` it locks again and again without input, and ends after ten minutes. With `exec` a process that shares its
// memory map executes a program while the map is locked, and so holds its exec_update_lock. PROGRAM, a path, runs in a
// third process, and this one's command line in /proc covers its /tmp/perf-PID.map and /etc/passwd.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_NODE = 2, PAGES = 256, PAGE = 4096, MOST_TIMES = 3, MOST_MS = 4000, LIFE_S = 120, LONG_LIFE_S = 600 };

static int device, delay_ms;
static char *page;
static int next_page, life_s = LIFE_S;
static char stacks[8][1 << 16];

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

static void put(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    check(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(file);
}

static void answer(unsigned long long unique, int error, const void *data, size_t size) {
    static char out[PAGE * 32 + 64];
    struct fuse_out_header head = {.len = sizeof head + size, .error = -error, .unique = unique};
    memcpy(out, &head, sizeof head);
    if (size)
        memcpy(out + sizeof head, data, size);
    if (write(device, out, head.len) < 0 && errno != ENOENT && errno != EINTR)
        _exit(0);
}

static struct fuse_attr attributes(unsigned long long node) {
    return (struct fuse_attr){
        .ino = node, .mode = node == FILE_NODE ? S_IFREG | 0666 : S_IFDIR | 0755, .nlink = 1, .size = PAGES * PAGE, .blksize = PAGE};
}

static void serve(const struct fuse_in_header *head, const void *body) {
    static const char zeros[PAGE * 32];
    switch (head->opcode) {
    case FUSE_INIT: {
        struct fuse_init_out out = {.major = 7, .minor = 31, .max_write = PAGE};
        answer(head->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.nodeid = FILE_NODE, .entry_valid = 3600, .attr_valid = 3600, .attr = attributes(FILE_NODE)};
        answer(head->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 3600, .attr = attributes(head->nodeid)};
        answer(head->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_OPEN: {
        struct fuse_open_out out = {0};
        answer(head->unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_READ: {
        const struct fuse_read_in *in = body;
        usleep(1000 * delay_ms);
        answer(head->unique, 0, zeros, in->size < sizeof zeros ? in->size : sizeof zeros);
        return;
    }
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        answer(head->unique, 0, NULL, 0);
        return;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        answer(head->unique, ENOSYS, NULL, 0);
    }
}

static void serve_all(void) {
    static char buffer[1 << 17];
    for (;;) {
        ssize_t size = read(device, buffer, sizeof buffer);
        if (size < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN))
            continue;
        if (size < 0)
            _exit(0);
        serve((const void *)buffer, buffer + sizeof(struct fuse_in_header));
    }
}

static void *keep_lock(void *name) {
    char byte;
    int memory = open(name, O_RDONLY);
    check(memory >= 0, name);
    pread(memory, &byte, 1, (off_t)(page + PAGE * next_page));
    close(memory);
    return name;
}

static void *wait_for_lock(void *unused) {
    usleep(100000);
    void *space = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(space, PAGE);
    return unused;
}

static int execute(void *unused) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    usleep(200000);
    execl("/bin/sleep", "sleep", "1", NULL);
    _exit(unused != NULL);
}

static void run_covered(const char *program) {
    char source[64], target[64];
    snprintf(source, sizeof source, "/proc/%d/cmdline", getpid());
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(target, sizeof target, "/tmp/perf-%d.map", getpid());
        int file = open(target, O_CREAT | O_EXCL | O_WRONLY, 0644);
        check(file >= 0, target);
        check(!mount(source, target, "none", MS_BIND, NULL), "mount over the perf map");
        check(!mount(source, "/etc/passwd", "none", MS_BIND, NULL), "mount over passwd");
        execl(program, program, NULL);
        _exit(1);
    }
    printf("covered %d\n", pid);
}

int main(int count, char **words) {
    char text[4096];
    unsigned uid = getuid(), gid = getgid();
    int has_writer = 0, has_overlay = 0, has_ended = 0, is_always = 0, has_exec = 0;
    const char *program = NULL;
    check(count > 4, "usage");
    for (int i = 5; i < count; i++)
        if (*words[i] == '/')
            program = words[i];
        else
            has_writer |= !strcmp(words[i], "writer"), has_overlay |= !strcmp(words[i], "overlay"),
                has_ended |= !strcmp(words[i], "ended"), is_always |= !strcmp(words[i], "always"),
                has_exec |= !strcmp(words[i], "exec");
    life_s = is_always ? LONG_LIFE_S : LIFE_S;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(life_s);
    signal(SIGCHLD, SIG_IGN);
    delay_ms = 1000 * atof(words[4]);
    delay_ms = delay_ms < MOST_MS ? delay_ms : MOST_MS;
    check(!chdir(words[2]), words[2]);
    check(!unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
    prctl(PR_SET_DUMPABLE, 1);
    put("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "0 %u 1", uid);
    put("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "0 %u 1", gid);
    put("/proc/self/gid_map", text);
    device = open(words[1], O_RDWR | O_CLOEXEC);
    check(device >= 0, words[1]);
    mkdir("fuse", 0755), mkdir("ovl", 0755), mkdir("tmp", 0755);
    snprintf(text, sizeof text, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    check(!mount("locker", "fuse", "fuse", MS_NOSUID | MS_NODEV, text), "mount fuse");
    if (!fork()) {
        if (is_always)  // else it serves the child of an ended process, too
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(life_s);
        serve_all();
    }
    close(device);
    char *path = words[3];
    if (has_overlay) {
        char folder[4096], name[4096];
        check(!mount("tmpfs", "tmp", "tmpfs", 0, NULL), "mount tmpfs");
        mkdir("tmp/upper", 0755), mkdir("tmp/work", 0755);
        snprintf(folder, sizeof folder, "%s", path), snprintf(name, sizeof name, "%s", path);
        snprintf(text, sizeof text, "lowerdir=%s,upperdir=tmp/upper,workdir=tmp/work,userxattr", dirname(folder));
        check(!mount("overlay", "ovl", "overlay", 0, text), "mount overlay");
        snprintf(text, sizeof text, "ovl/%s", basename(name));
        path = text;
    }
    struct stat status;
    int file = open(path, O_RDONLY);
    check(file >= 0 && !fstat(file, &status), path);
    void *mapped = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    check(mapped != MAP_FAILED, "mmap");
    int slow = open("fuse/page", O_RDONLY);
    check(slow >= 0, "fuse/page");
    page = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, slow, 0);
    check(page != MAP_FAILED && !madvise(page, PAGES * PAGE, MADV_RANDOM), "mmap");
    close(slow);  // its flush at the end would wait for the page
    if (program)
        run_covered(program);
    printf("ready %d\n", getpid());
    fflush(stdout);
    int most = is_always ? PAGES : MOST_TIMES;
    for (next_page = 0; next_page < most && (is_always || fgets(text, sizeof text, stdin)); next_page++) {
        pthread_t keeper, waiter;
        if (has_ended) {
            snprintf(text, sizeof text, "/proc/%d/mem", getpid());
            if (fork()) {
                usleep(150000);
                write(1, "locked\n", 7);
                _exit(0);
            }
            munmap(mapped, status.st_size);
            keep_lock(text);
            write(1, "free\n", 5);
            _exit(0);
        }
        if (has_exec)
            clone(execute, stacks[next_page % 8] + sizeof stacks[0], CLONE_VM | SIGCHLD, NULL);
        if (has_writer)  // before the lock is taken: a thread's stack is a mapping
            pthread_create(&waiter, NULL, wait_for_lock, NULL);
        pthread_create(&keeper, NULL, keep_lock, "/proc/self/mem");
        usleep(150000);
        if (!is_always)
            write(1, "locked\n", 7);
        pthread_join(keeper, NULL);
        if (has_writer)
            pthread_join(waiter, NULL);
        if (!is_always)
            write(1, "free\n", 5);
    }
    for (;;)
        pause();
}
