// SPDX-License-Identifier: Apache-2.0
// A process of an ordinary account whose files keep readers waiting: its program, its error log, its working directory
// and its socket are on an overlay over its own FUSE, in user and mount namespaces of its own.
//
//     stalling_files DEVICE FOLDER PROGRAM NAME DELAY_MS OPCODE…
//
// DEVICE is a node of /dev/fuse, FOLDER an empty folder of this account, PROGRAM the file that the FUSE serves under
// NAME. The process starts NAME from the overlay and prints "ready PID". From then on requests with these opcodes
// (include/uapi/linux/fuse.h) get their answer after DELAY_MS; with 0 they get none until this process ends. FOLDER/armed
// must exist for it. All end after ten minutes.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROGRAM = 2, LOG = 3, SUB = 4, MAX_REQUEST = 1 << 17, LIFE_S = 600 };

static int device, served, folder, stalled_count, delay_us;
static unsigned stalled[16];
static const char *name;
static char buffer[MAX_REQUEST + 4096];

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

static void put(const char *path, const char *format, ...) {
    char text[64];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    int file = open(path, O_WRONLY);
    check(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(file);
}

static void answer(unsigned long long unique, int error, const void *data, size_t size) {
    struct fuse_out_header head = {.len = sizeof head + size, .error = -error, .unique = unique};
    static char out[MAX_REQUEST + 64];
    memcpy(out, &head, sizeof head);
    if (size)
        memcpy(out + sizeof head, data, size);
    if (write(device, out, head.len) < 0 && errno != ENOENT && errno != EINTR)
        _exit(0);
}

static struct fuse_attr attributes(unsigned long long node) {
    struct stat file;
    fstat(served, &file);
    int is_folder = node == FUSE_ROOT_ID || node == SUB;
    // The account's number inside: 0 is the account itself.
    return (struct fuse_attr){.ino = node,
                              .mode = is_folder ? S_IFDIR | 0755 : node == PROGRAM ? S_IFREG | 0755 : S_IFREG | 0666,
                              .nlink = 1,
                              .size = node == PROGRAM ? (unsigned long long)file.st_size : 0,
                              .blksize = 4096};
}

static void serve(const struct fuse_in_header *head, const void *body) {
    unsigned long long unique = head->unique;
    switch (head->opcode) {
    case FUSE_INIT: {
        struct fuse_init_out out = {.major = 7, .minor = 31, .max_readahead = 1 << 16, .max_write = 1 << 16};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_LOOKUP: {
        unsigned long long node = !strcmp(body, name) ? PROGRAM : !strcmp(body, "log") ? LOG : !strcmp(body, "sub") ? SUB : 0;
        // The kernel keeps names: a look-up by an account that has no number here would fail.
        struct fuse_entry_out out = {.nodeid = node, .entry_valid = 3600, .attr = attributes(node)};
        answer(unique, node && head->nodeid == FUSE_ROOT_ID ? 0 : ENOENT, &out, node ? sizeof out : 0);
        return;
    }
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr = attributes(head->nodeid)};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
        struct fuse_open_out out = {0};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_READ: {
        const struct fuse_read_in *in = body;
        static char data[MAX_REQUEST];
        ssize_t size = head->nodeid == PROGRAM ? pread(served, data, in->size, in->offset) : 0;
        answer(unique, 0, data, size > 0 ? size : 0);
        return;
    }
    case FUSE_READDIR:
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_ACCESS:
        answer(unique, 0, NULL, 0);
        return;
    case FUSE_STATFS: {
        struct fuse_statfs_out out = {.st = {.bsize = 4096, .namelen = 255}};
        answer(unique, 0, &out, sizeof out);
        return;
    }
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        answer(unique, ENOSYS, NULL, 0);
    }
}

static int is_stalled(unsigned opcode) {
    if (faccessat(folder, "armed", F_OK, 0))
        return 0;
    for (int i = 0; i < stalled_count; i++)
        if (stalled[i] == opcode)
            return 1;
    return 0;
}

static void serve_all(void) {
    for (;;) {
        ssize_t size = read(device, buffer, sizeof buffer);
        if (size < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN))
            continue;
        if (size < 0)
            _exit(0);
        const struct fuse_in_header *head = (const void *)buffer;
        if (is_stalled(head->opcode)) {
            if (!delay_us)
                continue;
            usleep(delay_us);
        }
        serve(head, buffer + sizeof *head);
    }
}

static void hostile(const char *place) {
    char program[4096];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check(!chdir("ovl"), "chdir");
    int log = open("log", O_RDONLY);
    check(log >= 0, "log");
    dup2(log, 2);
    int channel = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/ovl/sub/s", place);
    check(!bind(channel, (void *)&address, sizeof address) && !listen(channel, 8), "bind");
    snprintf(program, sizeof program, "%s/ovl/%s", place, name);
    check(!chdir("sub"), "chdir");
    execl(program, name, "5000000", NULL);
    perror("exec");
    _exit(1);
}

int main(int count, char **words) {
    unsigned uid = getuid(), gid = getgid();
    char options[256];
    check(count > 6, "usage");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIFE_S);  // the others end with this process
    name = words[4];
    delay_us = 1000 * atoi(words[5]);
    for (int i = 6; i < count && stalled_count < 16; i++)
        stalled[stalled_count++] = atoi(words[i]);
    served = open(words[3], O_RDONLY | O_CLOEXEC);
    check(served >= 0, words[3]);
    check(!chdir(words[2]), words[2]);
    folder = open(".", O_PATH | O_CLOEXEC);
    check(!unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
    put("/proc/self/setgroups", "deny");
    put("/proc/self/uid_map", "0 %u 1", uid);
    put("/proc/self/gid_map", "0 %u 1", gid);
    device = open(words[1], O_RDWR | O_CLOEXEC);
    check(device >= 0, words[1]);
    mkdir("fuse", 0755), mkdir("ovl", 0755), mkdir("tmp", 0755);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    check(!mount("stall", "fuse", "fuse", MS_NOSUID | MS_NODEV, options), "mount fuse");
    pid_t server = fork();
    if (!server) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve_all();
    }
    check(!mount("tmpfs", "tmp", "tmpfs", 0, NULL), "mount tmpfs");
    mkdir("tmp/upper", 0755), mkdir("tmp/work", 0755);
    check(!mount("overlay", "ovl", "overlay", 0, "lowerdir=fuse,upperdir=tmp/upper,workdir=tmp/work,userxattr"),
          "mount overlay");
    pid_t process = fork();
    if (!process)
        hostile(words[2]);
    close(device);
    // The program has been started when its file is the served one: until then the link leads to this program.
    char link[64], target[4096];
    snprintf(link, sizeof link, "/proc/%d/exe", process);
    for (ssize_t size = 0; !strstr(target, "/ovl/"); usleep(1000)) {
        size = readlink(link, target, sizeof target - 1);
        check(size > 0, "the program");
        target[size] = 0;
    }
    printf("ready %d\n", process);
    fflush(stdout);
    for (;;)
        pause();
}
