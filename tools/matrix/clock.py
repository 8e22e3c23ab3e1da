# SPDX-License-Identifier: Apache-2.0
"""How fast an emulated x86 machine's clock runs, for its kernel to be told.

QEMU hands out the host's own time-stamp counter. A kernel that measures its rate while the host is busy may find a
sixth of it, and then lives six times too fast: whatever has a time limit in there runs into it.
"""

from __future__ import annotations

import platform
import tempfile
from functools import cache
from pathlib import Path

from powerprof.system.program_search import need
from powerprof.system.programs import run

_SOURCE = r"""
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>
/* The counter at a moment of the clock: of several reads the one that took least. */
static void look(double *seconds, double *ticks)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 1000; i++) {
        struct timespec now;
        uint64_t before = __rdtsc(), after;
        clock_gettime(CLOCK_MONOTONIC_RAW, &now);
        after = __rdtsc();
        if (after - before < least) {
            least = after - before;
            *seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
            *ticks = (double)before + (double)least / 2;
        }
    }
}
int main(void)
{
    double seconds[2], ticks[2];
    look(&seconds[0], &ticks[0]);
    nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    look(&seconds[1], &ticks[1]);
    printf("%.0f\n", (ticks[1] - ticks[0]) / (seconds[1] - seconds[0]) / 1e3);
    return 0;
}
"""


@cache
def counter_khz() -> int | None:
    """The rate of this host's time-stamp counter; None where it has none."""
    if platform.machine() != "x86_64":
        return None
    with tempfile.TemporaryDirectory(prefix="powerprof-matrix-clock-") as folder:
        source, program = Path(folder, "clock.c"), Path(folder, "clock")
        source.write_text(_SOURCE)
        run([need("gcc", "gcc"), "-O2", "-o", program, source])
        return int(run([program]).stdout)
