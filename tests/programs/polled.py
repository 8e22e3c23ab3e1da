# SPDX-License-Identifier: Apache-2.0
"""A thread that is woken from another CPU while its own polls: what ended these polls is known, and no interrupt did.

    python -m tests.programs.polled WAITING_CPU WAKING_CPU PAUSE_US

The first process waits for a byte on one CPU, answers, and waits again. The other never sleeps: it looks for the answer
all the time, and writes the next byte a pause later. Prints the waiting one's number, then runs until it is killed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time


def main() -> None:
    waiting, waking, pause_ns = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) * 1000
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.sched_setaffinity(0, {waiting})
        while os.read(there[0], 1):
            os.write(back[1], b"x")
        os._exit(0)
    os.sched_setaffinity(0, {waking})
    os.set_blocking(back[0], False)
    print(child, flush=True)
    while True:
        os.write(there[1], b"x")
        answered = b""
        while not answered:
            with contextlib.suppress(BlockingIOError):
                answered = os.read(back[0], 1)
        until = time.monotonic_ns() + pause_ns
        while time.monotonic_ns() < until:
            pass


if __name__ == "__main__":
    main()
