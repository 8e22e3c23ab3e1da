# SPDX-License-Identifier: Apache-2.0
"""Records out of shared memory, laid out as the kernel lays it out, in a file."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.tracing.bpf.loaded import RingBuffer

PAGE, SIZE = mmap.PAGESIZE, mmap.PAGESIZE
BUSY, DISCARD = 1 << 31, 1 << 30


class Producer:
    """Writes records as kernel/bpf/ringbuf.c does."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.handle, 2 * PAGE + SIZE)
        self.position = 0

    def put(self, data: bytes, flags: int = 0) -> int:
        """Returns where the record begins."""
        start, whole = self.position, struct.pack("=II", len(data) | flags, 0) + data
        for offset, byte in enumerate(whole):
            os.pwrite(self.handle, bytes([byte]), 2 * PAGE + (start + offset) % SIZE)
        self.position += (len(whole) + 7) & ~7
        os.pwrite(self.handle, struct.pack("=Q", self.position), PAGE)
        return start

    def reserve(self, length: int) -> None:
        """A record of whatever lies there."""
        os.pwrite(self.handle, struct.pack("=II", length, 0), 2 * PAGE + self.position % SIZE)
        self.position += 8 + length
        os.pwrite(self.handle, struct.pack("=Q", self.position), PAGE)

    def commit(self, start: int, length: int) -> None:
        os.pwrite(self.handle, struct.pack("=I", length), 2 * PAGE + start % SIZE)

    def consumed(self) -> int:
        return int(struct.unpack("=Q", os.pread(self.handle, 8, 0))[0])


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[Producer]:
    found = Producer(tmp_path / "ring")
    yield found
    os.close(found.handle)


@pytest.fixture
def taken(producer: Producer) -> Iterator[tuple[RingBuffer, list[bytes]]]:
    records: list[bytes] = []
    ring = RingBuffer(producer.handle, SIZE, records.append)
    yield ring, records
    ring.close()


def test_records_come_in_order_and_once(producer: Producer, taken: tuple[RingBuffer, list[bytes]]) -> None:
    ring, records = taken
    for number in range(5):
        producer.put(bytes([number]) * (number * 3 + 1))
    ring.consume()
    ring.consume()
    assert records == [bytes([number]) * (number * 3 + 1) for number in range(5)]
    assert producer.consumed() == producer.position


def test_what_is_discarded_is_passed_over(producer: Producer, taken: tuple[RingBuffer, list[bytes]]) -> None:
    ring, records = taken
    producer.put(b"one")
    producer.put(b"gone", DISCARD)
    producer.put(b"two")
    ring.consume()
    assert records == [b"one", b"two"]


def test_a_record_that_is_being_written_is_waited_for(
    producer: Producer, taken: tuple[RingBuffer, list[bytes]]
) -> None:
    ring, records = taken
    producer.put(b"one")
    start = producer.put(b"later", BUSY)
    producer.put(b"two")
    ring.consume()
    assert records == [b"one"]
    producer.commit(start, 5)
    ring.consume()
    assert records == [b"one", b"later", b"two"]


_WATCHER = """
import mmap, os, sys
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)
position = memoryview(memory).cast("Q")
step, last = int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
torn = before = 0
while before < last:
    now = position[0]
    torn += now % step != 0 or now < before
    before = max(before, now) if now <= last else before
print(torn)
"""


def test_the_kernel_never_sees_half_a_position(producer: Producer, tmp_path: Path) -> None:
    """Another process watches the position while it is written: for one that is torn the kernel would find no room, or
    write over what is not read yet."""
    step, rounds = 264, 3000
    ring = RingBuffer(producer.handle, SIZE, lambda record: None)
    each = SIZE // step - 1
    watcher = subprocess.Popen(
        [sys.executable, "-c", _WATCHER, tmp_path / "ring", str(step), str(rounds * each * step)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watcher.stdout.readline() == "ready\n"
        for _ in range(rounds):
            for _ in range(each):
                producer.reserve(256)
            ring.consume()
        assert int(watcher.stdout.readline()) == 0
    finally:
        watcher.kill()
        watcher.wait()
        watcher.stdout.close()
        ring.close()


def test_records_across_the_end_are_whole(producer: Producer, taken: tuple[RingBuffer, list[bytes]]) -> None:
    """A hundred times around, in lengths that divide nothing."""
    ring, records = taken
    sent = [os.urandom(1 + number * 37 % 900) for number in range(900)]
    for one in sent:
        producer.put(one)
        ring.consume()
    assert records == sent
    assert producer.position > 90 * SIZE
