/* `dtrace` of another root, for programs of this one: mounts what it needs there in a namespace of its own, and becomes it.
 * Compiled with -DROOT, -DLIBRARIES (its D libraries, as seen in the root).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const SHARED[] = {"/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/root", "/home", NULL};

static int fail(const char *what)
{
    perror(what);
    return 99;
}

int main(int argc, char **argv)
{
    char path[4096], **words = calloc(argc + 3, sizeof *words);
    int i;

    if (!words || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return fail("a mount namespace");
    for (i = 0; SHARED[i]; i++) {
        snprintf(path, sizeof path, "%s%s", ROOT, SHARED[i]);
        if (access(SHARED[i], F_OK))
            continue;
        mkdir(path, 0755);
        if (mount(SHARED[i], path, NULL, MS_BIND | MS_REC, NULL))
            return fail(path);
    }
    /* EBUSY: they are mounted there. */
    if (mount("debugfs", ROOT "/sys/kernel/debug", "debugfs", 0, NULL) && errno != EBUSY)
        return fail("debugfs");
    if (mount("tracefs", ROOT "/sys/kernel/tracing", "tracefs", 0, NULL) && errno != EBUSY)
        return fail("tracefs");
    if (chroot(ROOT) || chdir("/"))
        return fail(ROOT);
    words[0] = "dtrace";
    words[1] = "-xsyslibdir=" LIBRARIES;
    memcpy(words + 2, argv + 1, argc * sizeof *words);
    execv("/usr/sbin/dtrace", words);
    return fail("dtrace");
}
