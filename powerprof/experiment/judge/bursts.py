# SPDX-License-Identifier: Apache-2.0
"""Pure: how unevenly something came within a window, from its slices."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from powerprof.experiment.records import Slices

Of = Callable[[Slices], list[int]]


def written(slices: Slices) -> list[int]:
    """Bytes that the server wrote."""
    return slices.write_bytes


def woken(slices: Slices) -> list[int]:
    """Idle exits of all CPUs."""
    return slices.wakeups_count


def mean_hz(slices: Slices | None, of: Of) -> float | None:
    """The rate over all slices; None where it was not read."""
    return None if slices is None or not of(slices) else sum(of(slices)) / sum(slices.lengths_s)


def peak_hz(slices: Slices | None, of: Of) -> float | None:
    """The rate in the slice with most. The window's last slice is cut, and says little where it is short."""
    if slices is None or not of(slices):
        return None
    least_s = median(slices.lengths_s) / 2
    pairs = zip(of(slices), slices.lengths_s, strict=True)
    return max(count / length_s for count, length_s in pairs if length_s >= least_s)
