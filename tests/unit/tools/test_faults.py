# SPDX-License-Identifier: Apache-2.0
"""Each planted fault still fits the product: its text occurs exactly once in its module."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.mutation.__main__ import REPOSITORY, list_rooms, read_faults, read_results

ROOMS = list_rooms()


@pytest.mark.parametrize("room", ROOMS)
def test_the_text_of_a_fault_occurs_once_in_its_module(room: str) -> None:
    texts: dict[str, str] = {}
    stale = []
    for fault in read_faults(room):
        path = REPOSITORY / fault.module
        if fault.module not in texts:
            texts[fault.module] = path.read_text(encoding="utf-8") if path.is_file() else ""
        count = texts[fault.module].count(fault.old)
        if count != 1:
            stale.append(f"{fault.name}: {count} times in {fault.module}")
    assert stale == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_fault_changes_a_module_of_its_room(room: str) -> None:
    faults = read_faults(room)
    assert [fault.name for fault in faults if fault.old == fault.new] == []
    assert [fault.name for fault in faults if fault.room != room] == []


def test_the_names_of_faults_are_unique() -> None:
    counts = Counter(fault.name for room in ROOMS for fault in read_faults(room))
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_kept_result_names_a_fault(room: str) -> None:
    assert set(read_results(room)) <= {fault.name for fault in read_faults(room)}
