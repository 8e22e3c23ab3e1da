# SPDX-License-Identifier: Apache-2.0
"""Python functions that sleep and note their own wake-ups: `sleepers.py SECONDS NOTES`.

The first line on stdout is JSON: pid; threads: name → tid. NOTES get `struct.pack("<qii")` at the end of each sleep:
CLOCK_MONOTONIC in ns, tid, number of the function.
"""

import json
import os
import queue
import select
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

NOTE = struct.Struct("<qii")
END = time.monotonic() + float(sys.argv[1])
NOTES = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
known: dict[str, int] = {}
started = threading.Barrier(8)


def note(who: int) -> None:
    os.write(NOTES, NOTE.pack(time.monotonic_ns(), threading.get_native_id(), who))


def wait_sleep() -> None:
    time.sleep(0.023)  # here: sleep
    note(0)


def wait_select() -> None:
    select.select([], [], [], 0.029)  # here: select
    note(1)


EMPTY: queue.Queue[int] = queue.Queue()


def wait_queue() -> None:
    try:
        EMPTY.get(timeout=0.031)  # here: queue
    except queue.Empty:
        note(2)


def first_twin() -> None:
    time.sleep(0.019)  # here: first
    note(3)


def second_twin() -> None:
    time.sleep(0.037)  # here: second
    note(4)


def twins() -> None:
    first_twin()
    second_twin()


def generated() -> Iterator[None]:
    while True:
        time.sleep(0.041)  # here: generator
        note(5)
        yield


GENERATOR = generated()


def wait_generator() -> None:
    next(GENERATOR)


class Worker:
    @classmethod
    def wait(cls) -> None:
        sorted([2, 1], key=cls.keyed)

    @classmethod
    def keyed(cls, number: int) -> int:
        if number == 1:
            time.sleep(0.043)  # here: method
            note(6)
        return number


def nested(depth: int = 0) -> None:
    if depth < 20:
        nested(depth + 1)
        return
    for _ in filter(lambda seconds: time.sleep(seconds) is None, [0.047]):  # here: nested
        note(7)


WAITS: dict[str, Callable[[], None]] = {
    "sleep": wait_sleep,
    "select": wait_select,
    "queue": wait_queue,
    "twins": twins,
    "generator": wait_generator,
    "method": Worker.wait,
    "nested": nested,
}


def run(name: str, wait: Callable[[], None]) -> None:
    known[name] = threading.get_native_id()
    started.wait()
    while time.monotonic() < END:
        wait()


if __name__ == "__main__":
    for name, wait in WAITS.items():
        threading.Thread(target=run, args=(name, wait), daemon=True).start()
    started.wait()
    print(json.dumps({"pid": os.getpid(), "threads": known}), flush=True)
    time.sleep(max(0.0, END - time.monotonic()))
