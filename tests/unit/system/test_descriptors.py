# SPDX-License-Identifier: Apache-2.0
"""Waiting for descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
import select
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from powerprof.system import descriptors


@pytest.fixture
def high_pipe() -> Iterator[tuple[int, int]]:
    """Return a pipe. The number of its reading end is above the limit of select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    reading, writing = os.pipe()
    moved = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 2000)
    os.close(reading)
    try:
        yield moved, writing
    finally:
        os.close(moved)
        os.close(writing)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_above_1023_can_be_polled(high_pipe: tuple[int, int]) -> None:
    reading, writing = high_pipe
    assert descriptors.readable([reading], 0.0) == []
    os.write(writing, b"x")
    assert descriptors.readable([reading]) == [reading]


def test_closed_pipe_is_readable() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert descriptors.readable([reading], -1.0) == [reading]
    os.close(reading)


@pytest.mark.parametrize(("timeout_s", "milliseconds"), [(1.5, 1500), (0.0001, 1), (0.0, 0), (-3.0, 0), (None, None)])
def test_a_wait_has_its_length_in_milliseconds(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float | None, milliseconds: int | None
) -> None:
    waits: list[int | None] = []
    poll = SimpleNamespace(register=lambda *_: None, poll=lambda wait: waits.append(wait) or [])
    monkeypatch.setattr(select, "poll", lambda: poll)
    assert descriptors.readable([0], timeout_s) == descriptors.writable([0], timeout_s) == []
    assert waits == [milliseconds] * 2
