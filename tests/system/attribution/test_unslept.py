# SPDX-License-Identifier: Apache-2.0
"""Wakings of threads that do not sleep, and of threads without user registers: io_uring's workers and timers."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from powerprof.system.tasks import read_switches
from tests.system.attribution.conftest import Attributed, compile_c, running

Attribute = Callable[..., Attributed]


def count_origins(window: Attributed) -> Counter[tuple[str, str]]:
    """Return the wakings by the thread's name and origin."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in window.rows:
        counts[row["thread"]["comm"][:7], row["origin"]] += row["wakings_count"] or 0
    return counts


@pytest.mark.parametrize(
    ("call", "real_sleeps"),
    [
        *(("futex", 0), ("nanosleep", 5), ("wall", 0)),
        *(pytest.param(*row, marks=pytest.mark.nightly) for row in (("futex", 5), ("nanosleep", 0), ("wall", 5))),
    ],
)
def test_waking_without_a_sleep_is_none(call: str, real_sleeps: int, attribute: Attribute, programs_dir: Path) -> None:
    """Seen sleeping before or not: the deadline has passed before the thread calls schedule()."""
    with running(compile_c("unslept", programs_dir), call, real_sleeps) as first:
        window = attribute(first["pid"], duration=2, halfway=lambda: os.kill(first["pid"], signal.SIGUSR1))
    if window.record["wakings_window_s"] is None:
        pytest.fail("the load was too high to count wakings")
    origins = count_origins(window)
    assert origins["unslept", "own_timer"] <= real_sleeps + 3, "a few of the calls may be preempted and sleep"
    noted = any("in no row" in note for note in window.record["notes"])
    # Its first sleep, or a preempted call on a busy host, gives it a row.
    assert noted or any(comm == "unslept" for comm, _ in origins), (window.record["notes"], window.rows)


@contextmanager
def ring(mode: str, programs_dir: Path) -> Iterator[int]:
    with running(compile_c("ring", programs_dir), mode) as first:
        if not first["ring"]:
            pytest.skip("io_uring is not allowed here")
        yield first["pid"]


@pytest.mark.parametrize(
    ("mode", "function"),
    [("timeout", "io_timeout_fn"), ("link", "io_link_timeout_fn"), ("wait", "io_cqring_timer_wakeup")],
)
def test_timers_of_io_uring_are_the_threads_own(
    mode: str, function: str, attribute: Attribute, programs_dir: Path
) -> None:
    with ring(mode, programs_dir) as pid:
        window = attribute(pid, duration=2)
    counts = count_origins(window)
    assert 60 <= counts["ring", "own_timer"] <= 110
    assert counts["ring", "kernel"] <= 2
    assert {row["detail"] for row in window.rows if row["origin"] == "own_timer"} == {function}


def rows_of(window: Attributed, comm: str) -> list[dict[str, Any]]:
    return [row for row in window.rows if row["thread"]["comm"].startswith(comm)]


@pytest.mark.parametrize(("mode", "comm"), [("poll", "iou-sqp"), ("worker", "iou-wrk")])
def test_workers_of_io_uring_have_rows(mode: str, comm: str, attribute: Attribute, programs_dir: Path) -> None:
    """Their wakings are counted, and the rows hold all running time of the process."""
    with ring(mode, programs_dir) as pid:
        window = attribute(pid, duration=2)
        slept = sum(read_switches(pid).values())
    rows = rows_of(window, comm)
    # 100 on a quiet host. The kernel counts the sleeps since the start.
    assert 10 <= sum(row["wakings_count"] for row in rows) <= slept
    assert all(row["stack"] == [] for row in rows)
    own_ms = sum(row["own_ms"] for row in window.rows)
    assert own_ms == pytest.approx(window.record["running"]["target_ms"], rel=0.02, abs=2)
    assert sum(row["own_ms"] for row in rows) > 0.1 * own_ms
