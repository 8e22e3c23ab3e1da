# SPDX-License-Identifier: Apache-2.0
"""Waiting for descriptors above 1,023, as a process with many connections has them."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from powerprof.system import files


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
    assert files.readable([reading], 0.0) == []
    os.write(writing, b"x")
    assert files.readable([reading]) == [reading]


def test_closed_pipe_is_readable() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert files.readable([reading], -1.0) == [reading]
    os.close(reading)
