# SPDX-License-Identifier: Apache-2.0
"""Waiting for descriptors, of which a process with many connections has more than 1,024."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from powerprof.system import files


@pytest.fixture
def far() -> Iterator[tuple[int, int]]:
    """A pipe whose reading end has a number above what select() takes."""
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


def test_a_descriptor_above_1023_is_waited_for(far: tuple[int, int]) -> None:
    reading, writing = far
    assert files.readable([reading], 0.0) == []
    os.write(writing, b"x")
    assert files.readable([reading]) == [reading]


def test_an_ended_pipe_is_readable() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert files.readable([reading], -1.0) == [reading]
    os.close(reading)
