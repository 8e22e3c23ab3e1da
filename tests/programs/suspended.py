# SPDX-License-Identifier: Apache-2.0
"""A host that was suspended, as its clocks tell it: CLOCK_BOOTTIME is ahead by more than it was.

A virtual machine on a machine that runs tests can seldom be suspended; what powerprof sees of it are these clocks.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

HOUR_S = 3600
_LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>
static int slept;
static double waited;
static int get(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, at);
}
int clock_gettime(clockid_t clock, struct timespec *at)
{
    int failed = get(clock, at);
    if (!failed && clock == CLOCK_BOOTTIME && slept) at->tv_sec += 3600;
    return failed;
}
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    struct timespec now = {0, 0};
    if (!real) real = dlsym(RTLD_NEXT, "clock_nanosleep");
    if (flags & TIMER_ABSTIME) get(clock, &now);
    double seconds = until->tv_sec - now.tv_sec + (until->tv_nsec - now.tv_nsec) / 1e9;
    int failed = real(clock, flags, until, left);
    if (seconds > 0.15 && IN_SLEEPS) slept = 1;
    return failed;
}
int poll(struct pollfd *all, nfds_t count, int milliseconds)
{
    static int (*real)(struct pollfd *, nfds_t, int);
    if (!real) real = dlsym(RTLD_NEXT, "poll");
    struct timespec a, b;
    get(CLOCK_MONOTONIC, &a);
    int ready = real(all, count, milliseconds);
    get(CLOCK_MONOTONIC, &b);
    // A window on a busy host waits in pieces; a wait for a child's answer may last, and asks for longer.
    if (access(ONCE, F_OK)) return ready;
    if (milliseconds > LEAST_MS && milliseconds <= 2500) waited += b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) / 1e9;
    if ((!ready && milliseconds > LEAST_MS) || waited > 0.3) slept = 1;
    return ready;
}
"""


class SuspendedClock:
    """Of this process: `sleep` lets CLOCK_BOOTTIME jump ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real, self._ahead_ns = time.clock_gettime_ns, 0

        def gettime(clock: int) -> int:
            return real(clock) + (self._ahead_ns if clock == time.CLOCK_BOOTTIME else 0)

        monkeypatch.setattr(time, "clock_gettime_ns", gettime)

    def sleep(self, seconds: float) -> None:
        """As after so long a suspend."""
        self._ahead_ns += round(seconds * 1e9)


def suspended_while_it_sleeps(folder: Path, waits_once: Path | None = None) -> dict[str, str]:
    """The environment of a program: the host is suspended for an hour in its first sleep of more than 0.15 s, or in the
    first wait for something that does not come for so long, or where waits for at most 2.5 s sum to 0.3 s.

    `waits_once`: in no sleep, in no wait that is over before this file exists, and in none for half a second or less:
    for so long things settle outside of windows.
    """
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_LIBRARY)
    least_ms = 150 if waits_once is None else 500
    defined = [f"-DIN_SLEEPS={int(waits_once is None)}", f"-DLEAST_MS={least_ms}", f'-DONCE="{waits_once or "/"}"']
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", *defined, "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
