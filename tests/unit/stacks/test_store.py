# SPDX-License-Identifier: Apache-2.0
"""Tables of all files together take no more than they may, and are the same when they are read again."""

from __future__ import annotations

import os

import msgspec
import pytest

from powerprof.stacks import debuginfo, store
from powerprof.stacks.image import snapshot
from powerprof.stacks.registers import X86_64
from powerprof.stacks.store import TableStore
from powerprof.stacks.unwind import Unwinder


@pytest.mark.parametrize("use_cache", [True, False])
def test_least_recently_used_tables_are_evicted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, use_cache: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    image = snapshot(os.getpid())
    mappings = [mapping for mapping in image.mappings if mapping.is_file]
    whole = TableStore(use_cache=use_cache)
    expected = [whole.tables(image, mapping) for mapping in mappings]
    sizes = [store._measure(module) for module in expected]
    assert sum(size > 0 for size in sizes) > 3
    limit = max(sizes) + sorted(sizes)[-2]
    assert whole._held_bytes > limit
    monkeypatch.setattr(store, "_HELD_BYTES", limit)
    bounded = TableStore(use_cache=use_cache)
    for _ in range(2):
        for mapping, module in zip(mappings, expected, strict=True):
            assert bounded.tables(image, mapping) == module
            assert bounded._held_bytes <= limit
            assert bounded._held_bytes == sum(map(store._measure, bounded._known.values()))


def test_table_larger_than_the_limit_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_HELD_BYTES", 1)
    image = snapshot(os.getpid())
    mapping = next(mapping for mapping in image.mappings if mapping.is_file)
    bounded = TableStore()
    assert not isinstance(bounded.tables(image, mapping), str)
    assert bounded.tables(image, mapping) is bounded.tables(image, mapping)


def test_ended_processes_share_one_reading_of_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    image = snapshot(os.getpid())
    mapping = next(mapping for mapping in image.mappings if mapping.is_file and mapping.bias is not None)
    searched: list[int] = []
    monkeypatch.setattr(debuginfo, "find_debug_file", lambda image, *_, **__: searched.append(image.pid))
    store = TableStore(use_cache=False, downloads=False)
    ended = [msgspec.structs.replace(image, pid=(1 << 22) + number) for number in range(200)]
    for one in (image, *ended):
        assert debuginfo.read_debug(store, one, mapping, inline=False).symbols is None
    assert searched == [image.pid]


def test_forked_processes_share_one_walker() -> None:
    image = snapshot(os.getpid())
    unwinder = Unwinder(TableStore(use_cache=False, downloads=False))
    walkers = {unwinder._find_walker(msgspec.structs.replace(image, pid=pid), X86_64)[0] for pid in (1, 2, 3)}
    assert len(walkers) == 1
