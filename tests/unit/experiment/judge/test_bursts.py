# SPDX-License-Identifier: Apache-2.0
"""Slices of a window: what moved between readings, and the slice with most."""

from __future__ import annotations

import os
import threading

import pytest

from powerprof.experiment import metrics
from powerprof.experiment.observers import Slicer, build_slices


def test_a_burst_is_the_slice_with_most_and_the_mean_hides_it() -> None:
    slices = build_slices(
        [(0.0, 0, 10), (0.25, 0, 20), (0.5, 1_000_000, 120), (0.75, 1_000_000, 130), (1.0, 1_000_000, 140)]
    )
    assert slices.write_bytes == [0, 1_000_000, 0, 0]
    assert metrics.mean_hz(slices, metrics.written_per_slice) == pytest.approx(1_000_000)
    assert metrics.peak_hz(slices, metrics.written_per_slice) == pytest.approx(4_000_000)
    assert metrics.peak_hz(slices, metrics.woken_per_slice) == pytest.approx(400)


def test_a_slice_that_the_windows_end_cut_is_no_burst() -> None:
    slices = build_slices([(0.0, 0, 0), (0.25, 100, 0), (0.5, 200, 0), (0.501, 300, 0)])
    assert metrics.peak_hz(slices, metrics.written_per_slice) == pytest.approx(400)


def test_what_this_host_does_not_tell_has_no_figure() -> None:
    slices = build_slices([(0.0, None, 5), (0.25, 7, 9), (0.5, 8, 9)])
    assert slices.write_bytes == []
    assert metrics.mean_hz(slices, metrics.written_per_slice) is None
    assert metrics.peak_hz(None, metrics.woken_per_slice) is None
    assert metrics.mean_hz(slices, metrics.woken_per_slice) == pytest.approx(8)


def test_a_window_that_breaks_leaves_no_thread_that_wakes_cpus() -> None:
    before = threading.active_count()
    slicer = Slicer([os.getpid()], slice_s=0.01)
    with pytest.raises(RuntimeError, match="the load failed"), slicer:
        slicer.start()
        raise RuntimeError("the load failed")
    assert threading.active_count() == before
    with Slicer([], slice_s=0.01):
        pass  # nor does one that never began hang
