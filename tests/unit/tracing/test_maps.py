# SPDX-License-Identifier: Apache-2.0
"""Tables of sums that are read while they grow."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.tracing.bpf import maps
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.maps import DoubleBufferedTable

KEY = np.dtype([("thread", "<u4"), ("flags", "<u4")])
SUM = np.dtype([("count", "<u8"), ("latest", "<u8"), ("states", "<u4", (2,))])
BIT = 1 << 16


class Kernel:
    """A hash table of the kernel's with so many places, and the half that its program was told to use."""

    def __init__(self, places: int) -> None:
        self.places, self.half, self.lost, self.turns = places, 0, 0, 0
        self.entries: dict[bytes, np.ndarray] = {}
        self.late: list[int] = []

    def add(self, thread: int, half: int | None = None) -> None:
        used = self.half if half is None else half
        key = np.array((thread, 1 | used * BIT), dtype=KEY).tobytes()
        if key not in self.entries and len(self.entries) == self.places:
            self.lost += 1
            return
        entry = self.entries.setdefault(key, np.zeros((), dtype=SUM))
        entry["count"] += 1
        entry["states"][thread % 2] += 1
        entry["latest"] = thread * 7

    def turn(self, half: int) -> None:
        old, self.half = self.half, half
        self.turns += 1
        # Programs that were running meanwhile had seen the old half.
        for thread in self.late:
            self.add(thread, old)

    def slots(self, name: str) -> int:
        return self.places

    def hash_bytes(self, name: str) -> tuple[bytes, bytes]:
        return b"".join(self.entries), b"".join(value.tobytes() for value in self.entries.values())

    def delete(self, name: str, keys: bytes) -> None:
        for place in range(0, len(keys), KEY.itemsize):
            del self.entries[keys[place : place + KEY.itemsize]]

    def clear(self, name: str) -> None:
        self.entries.clear()


def table(kernel: Kernel) -> DoubleBufferedTable:
    return DoubleBufferedTable(
        cast(LoadedProgram, kernel), "causes", (KEY, SUM), ("flags", BIT), sums=("count", "states"), turn=kernel.turn
    )


@settings(max_examples=60, deadline=None)
@given(
    rounds=st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=12),
    late=st.lists(st.integers(0, 40), max_size=5),
)
def test_all_reads_together_count_each_entry_once(rounds: list[list[int]], late: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "GRACE_S", 0.0)
        kernel = Kernel(150)
        kernel.late = late
        read, came = table(kernel), np.zeros(41, dtype=int)
        said, states = np.zeros(41, dtype=int), np.zeros(2, dtype=int)
        for threads in rounds:
            turns = kernel.turns
            for thread in threads:
                kernel.add(thread)
            found = read.since()
            assert set(found["flags"].tolist()) <= {1}
            np.add.at(came, threads, 1)
            if kernel.turns > turns:
                np.add.at(came, late, 1)
            np.add.at(said, found["thread"], found["count"].astype(int))
            states += found["states"].sum(axis=0).astype(int)
            assert said.tolist() == came.tolist()
        assert states.tolist() == [came[::2].sum(), came[1::2].sum()]
        assert kernel.lost == 0


def test_short_lived_threads_never_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "GRACE_S", 0.0)
    kernel = Kernel(90)
    read, said = table(kernel), 0
    for first in range(0, 10_000, 25):
        for thread in range(first, first + 25):
            kernel.add(thread)
        said += int(read.since()["count"].sum())
    assert (said, kernel.lost) == (10_000, 0)
    assert kernel.turns >= 10_000 // 90
    assert len(kernel.entries) <= 60


def test_old_entries_are_dropped_from_a_table_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a read depends on the entries since the last one, not on all entries."""
    monkeypatch.setattr(maps, "GRACE_S", 0.0)
    kernel = Kernel(100_000)
    read, said, most = table(kernel), 0, 0
    for first in range(0, 20_000, 100):
        for thread in range(first, first + 100):
            kernel.add(thread)
        said += int(read.since()["count"].sum())
        most = max(most, len(kernel.entries))
    assert (said, kernel.lost) == (20_000, 0)
    assert most <= 1100
    # Many that come again and again are no past.
    turns = kernel.turns
    for _ in range(5):
        for thread in range(5000):
            kernel.add(thread)
        read.since()
    assert kernel.turns <= turns + 1


def test_fields_that_are_not_sums_have_their_present_value() -> None:
    kernel = Kernel(100)
    read = table(kernel)
    kernel.add(3)
    assert read.since()["latest"].tolist() == [21]
    assert len(read.since()) == 0
    kernel.add(3)
    (entry,) = read.since()
    assert (int(entry["count"]), int(entry["latest"])) == (1, 21)


def test_a_cleared_table_begins_at_zero() -> None:
    kernel = Kernel(100)
    read = table(kernel)
    kernel.add(1)
    read.since()
    read.clear()
    assert not kernel.entries
    kernel.add(1)
    assert read.since()["count"].tolist() == [1]


def test_a_read_that_turns_counts_both_halves_until_its_last_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that are read by `after_read` agree with the entries, also when the kernel was turned meanwhile."""
    monkeypatch.setattr(maps, "GRACE_S", 0.0)
    kernel = Kernel(90)
    sums = table(kernel)
    for thread in range(40):
        kernel.add(thread)
    turn, counted = kernel.turn, []

    def turn_and_add(half: int) -> None:
        turn(half)
        for thread in (1, 50, 51):
            kernel.add(thread)

    monkeypatch.setattr(kernel, "turn", turn_and_add)
    sums = table(kernel)

    def count_all() -> None:
        counted.append(sum(int(entry["count"]) for entry in kernel.entries.values()))

    read = sums.since(after_read=count_all)
    assert kernel.turns == 1
    assert int(read["count"].sum()) == counted[-1] == 43
    kernel.add(50)
    assert sums.since()["count"].tolist() == [1]
