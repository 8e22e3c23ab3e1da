# SPDX-License-Identifier: Apache-2.0
"""The parts of a monitor: its clock, the CPU time of busy processes and of itself, and its heap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from powerprof.live import monitor
from powerprof.live.intervals import CpuUse
from powerprof.live.monitor import COUNTED_INTERVALS, BusyProcesses, IntervalClock, OwnCpuTime
from powerprof.tracing.bpf.loaded import LoadedProgram


def test_work_after_an_interval_does_not_delay_the_next_end() -> None:
    pace, now_s, ends = IntervalClock(1.0, 100.0), 100.0, []
    for after_s in (0.0, 0.3, 0.05, 0.4, 0.1):
        now_s = pace.next_end_s(now_s + after_s)
        ends.append(now_s)
    assert ends == pytest.approx([101.0, 102.0, 103.0, 104.0, 105.0])


def test_a_late_interval_starts_a_new_sequence() -> None:
    """Naming took 3.1 s: the next interval is half as long, and the following ones are whole."""
    pace = IntervalClock(1.0, 0.0)
    first = pace.next_end_s(0.0)
    late = pace.next_end_s(first + 3.1)
    assert (first, late) == pytest.approx((1.0, 4.6))
    assert pace.next_end_s(late + 0.1) == pytest.approx(5.6)


def test_clocks_are_read_while_the_cpus_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 10**9
    readings = iter(
        [
            {1: 0, 2: 5 * second, 3: second},
            {1: 2 * second, 2: 5 * second, 3: 2 * second, 4: second},  # 4 is new, its start is unknown
            {1: 3 * second},
            {1: 4 * second},
        ]
    )
    monkeypatch.setattr(monitor, "_read_clocks", lambda: next(readings))
    monkeypatch.setattr(monitor, "name_of", {1: "cc1", 2: "sshd", 3: "cc1", 4: "new"}.get)
    look = BusyProcesses()
    assert look.measure(0.8, 5.0) == {"cc1": CpuUse(2, 3.0)}
    assert look.measure(0.1, 5.0) is None  # idle: no clock is read
    assert look.measure(0.9, 5.0) is None  # no earlier reading
    assert look.measure(0.9, 5.0) == {"cc1": CpuUse(1, 1.0)}


_STAT = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\nctxt {}\n"


class Program:
    counting = False

    def count_run_time(self) -> None:
        self.counting = True

    def stop_counting(self) -> None:
        self.counting = False


def test_bpf_time_is_counted_at_first_and_then_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    stat = tmp_path / "stat"
    stat.write_text(_STAT.format(1000))
    program = Program()
    own = OwnCpuTime(cast(LoadedProgram, program))
    switches = 1000
    for number in range(1, COUNTED_INTERVALS + 1):
        assert program.counting
        switches += 1000
        assert own.take_bpf_s(0.001 * number, switches) == 0.001 * number
    assert not program.counting
    # The kernel no longer counts. There were half as many switches as in the last counted interval.
    assert own.take_bpf_s(0.0, switches + 500) == pytest.approx(0.0005 * COUNTED_INTERVALS)


def test_bpf_time_is_unknown_without_a_count(tmp_path: Path) -> None:
    assert OwnCpuTime(cast(LoadedProgram, Program())).take_bpf_s(None, 1000) is None


_HOLDS_AND_FREES = """
from powerprof.live.monitor import HeapTrimmer
trim = HeapTrimmer()
before = trim.trim()
held = bytearray(b"x") * (64 << 20)
assert trim.trim() - before > 50 << 20
del held
assert trim.trim() - before < 20 << 20
blocks = [bytes([number % 255 + 1]) * 100_000 for number in range(600)]
full = trim.trim()
assert full - before > 20 << 20
kept = blocks[-1]
del blocks
# It lies between blocks in use, so glibc alone keeps it.
again = bytearray(b"x") * (70 << 20)
trim.trim()
del again
assert full - trim.trim() > 20 << 20
assert len(kept) == 100_000
"""


def test_freed_memory_is_given_back() -> None:
    # A separate process: the kernel reclaims cold pages of a large one.
    subprocess.run([sys.executable, "-c", _HOLDS_AND_FREES], check=True)
