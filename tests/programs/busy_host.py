# SPDX-License-Identifier: Apache-2.0
"""Tests of idleness on a host that other programs keep busy."""

from __future__ import annotations

import os

import psutil
import pytest

from powerprof.measure.procfs import read_stat

# From this share of all CPUs on, a CPU has no idle periods of a known length. A test of idleness uses a few percent.
LIMIT_PERCENT = 40.0
_IDLE, _BUSY = ("idle", "iowait"), ("user", "nice", "system", "irq", "softirq", "steal")


# /proc/stat counts in steps of 10 ms for each CPU.
_SHORTEST_S = 1.0


class OtherLoad:
    """The CPU time of programs that are not of this test, stolen time included, from now on."""

    def __init__(self) -> None:
        self._before = _read()

    def percent(self) -> float:
        """Return the share of all CPUs so far; 0 for a time that is too short to know it."""
        busy_s, whole_s, own_s = (now - then for now, then in zip(_read(), self._before, strict=True))
        if whole_s < _SHORTEST_S * (os.cpu_count() or 1):
            return 0.0
        return 100 * max(0.0, busy_s - max(0.0, own_s)) / whole_s


def skip_on_busy_host(failure: BaseException, *loads: OtherLoad) -> None:
    """Skip the test if other programs used much of the CPUs in one of the times. The failure is in the reason."""
    percent = max(load.percent() for load in loads)
    if percent >= LIMIT_PERCENT:
        first, *_ = str(failure).strip().splitlines() or [type(failure).__name__]
        pytest.skip(f"busy host: other programs used {percent:.0f} % of the CPUs ({first[:120]})")


def _read() -> tuple[float, float, float]:
    """Return seconds: of all CPUs running, of all CPUs, and of this process with its descendants."""
    cpus = read_stat().cpus.values()
    busy_s = sum(cpu.get(name, 0.0) for cpu in cpus for name in _BUSY)
    idle_s = sum(cpu.get(name, 0.0) for cpu in cpus for name in _IDLE)
    own_s = 0.0
    this = psutil.Process(os.getpid())
    for process in (this, *this.children(recursive=True)):
        try:
            own_s += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return busy_s, busy_s + idle_s, own_s
