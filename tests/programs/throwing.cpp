/* What a tracer must leave alive: each line on stdin makes it throw through two functions 10,000 times, load a library,
 * and fork a child that loads another and executes a program. `alive CAUGHT CHILD` says what came of it; before, its pid.
 */
#include <dlfcn.h>
#include <stdexcept>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile int sink;

extern "C" NOINLINE void truth_throws(int i)
{
    if (i >= 0)
        throw std::runtime_error("passed");
    sink++;
}

extern "C" NOINLINE int truth_passed(int i)
{
    truth_throws(i);
    sink++;
    return i;
}

extern "C" NOINLINE int truth_catches(int i)
{
    try {
        return truth_passed(i) + 1;
    } catch (const std::runtime_error &) {
        sink++;
        return -1;
    }
}

int main()
{
    char line[16];

    printf("%d\n", (int)getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int caught = 0, status = -1;
        for (int i = 0; i < 10000; i++)
            caught += truth_catches(i) == -1;
        void *library = dlopen("libutil.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library)
            dlclose(library);
        pid_t child = fork();
        if (!child) {
            if (dlopen("libresolv.so.2", RTLD_NOW))
                execl("/bin/true", "true", (char *)0);
            _exit(9);
        }
        waitpid(child, &status, 0);
        printf("alive %d %d\n", caught, status);
        fflush(stdout);
    }
    return 0;
}
