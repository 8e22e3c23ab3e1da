# SPDX-License-Identifier: Apache-2.0
"""What BPF programs cost: counted for a while, then by what a context switch had cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from powerprof.live.monitor import COUNTED_INTERVALS, OwnCpuTime
from powerprof.tracing.bpf.loaded import LoadedProgram

_STAT = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\nctxt {}\n"


class Program:
    counting = False

    def count_run_time(self) -> None:
        self.counting = True

    def stop_counting(self) -> None:
        self.counting = False


def test_the_clock_runs_for_some_intervals_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # The kernel counts nothing any more: half as many switches as in the last interval that it counted.
    assert own.take_bpf_s(0.0, switches + 500) == pytest.approx(0.0005 * COUNTED_INTERVALS)


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
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
# It lies between what is in use: glibc alone keeps it.
again = bytearray(b"x") * (70 << 20)
trim.trim()
del again
assert full - trim.trim() > 20 << 20
assert len(kept) == 100_000
"""


def test_memory_is_what_is_held_now_and_what_was_freed_is_given_back() -> None:
    # In a process of its own: of a large one the kernel takes back cold pages meanwhile.
    subprocess.run([sys.executable, "-c", _HOLDS_AND_FREES], check=True)
