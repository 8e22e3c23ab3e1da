# SPDX-License-Identifier: Apache-2.0
"""Figures of /proc: accounting, frequency, CPU time of processes, and interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerprof.measure import procfs
from powerprof.measure.procfs import count_unseen, read_unseen_counts
from powerprof.system.errors import PowerprofError
from tests.unit.measure.fake_cpu import fake_stat

STAT = """cpu  0 0 0 0 0 0 0 0 0 0
cpu0 100 10 50 1000 20 5 5 10 30 0
cpu1 0 0 0 2000 0 0 0 0 0 0
intr 500 1 2 3
ctxt 1000
"""
LATER = """cpu  0 0 0 0 0 0 0 0 0 0
cpu0 120 10 60 1060 15 5 10 20 40 0
cpu1 0 0 0 2100 0 0 0 0 0 0
intr 700 1 2 3
ctxt 1500
"""


def test_accounting_splits_the_time() -> None:
    spent = procfs.compute_accounting(procfs.parse_stat(STAT, "stat", 0), procfs.parse_stat(LATER, "stat", 10**9))
    assert spent is not None
    # 20 user, 10 system, 60 + 100 idle, 5 softirq, 10 steal: 205 ticks; iowait went back by 5, which counts as 0.
    assert spent.user_percent == pytest.approx(100 * 20 / 205)
    assert spent.steal_percent == pytest.approx(100 * 10 / 205)
    assert spent.irq_percent == pytest.approx(100 * 5 / 205)
    assert spent.idle_percent == pytest.approx(100 * 160 / 205)
    assert (spent.cpus, spent.interrupts_hz, spent.context_switches_hz) == (2, 200.0, 500.0)


def test_an_unchanged_stat_gives_no_accounting() -> None:
    first, second = procfs.parse_stat(STAT, "stat", 0), procfs.parse_stat(STAT, "stat", 10**9)
    assert procfs.compute_accounting(first, second) is None


@pytest.mark.parametrize("text", ["", "cpu0 a b c\n", "nonsense\n", "cpu0 1 2 3\nctxt\n"])
def test_a_damaged_stat_is_refused(text: str) -> None:
    with pytest.raises(PowerprofError, match="cannot read stat"):
        procfs.parse_stat(text, "stat")


def test_frequency_is_cpufreqs_mean(tmp_path: Path) -> None:
    for policy, khz in ((0, 800_000), (1, 1_400_000)):
        folder = tmp_path / f"devices/system/cpu/cpufreq/policy{policy}"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    assert procfs.read_frequency_mhz(tmp_path, tmp_path) == 1100.0


@pytest.mark.parametrize(("flags", "mhz"), [("fpu", 2450.0), ("fpu hypervisor", None)])
def test_frequency_from_cpuinfo_but_not_a_guests_constant(tmp_path: Path, flags: str, mhz: float | None) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\ncpu MHz\t\t: 2400.000\ncpu MHz\t\t: 2500.000\n")
    assert procfs.read_frequency_mhz(tmp_path, tmp_path) == mhz


def test_process_time_counts_ended_threads_and_running_ones() -> None:
    before = procfs.process_cpu_ns(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = procfs.process_cpu_ns(os.getpid())
    assert before is not None and after is not None
    assert 0.05e9 <= after - before <= 0.5e9


def test_an_ended_process_is_noted_and_not_counted() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    times = procfs.ProcessTimes({"server": [os.getpid(), child.pid], "client": [os.getpid()]})
    before = times.read()
    child.kill()
    child.wait()
    found, notes = procfs.compute_process_times(before, times.read(), 2.0)
    assert [item.name for item in found] == ["server", "client"]
    assert found[0].percent == pytest.approx(found[0].cpu_s / 2.0 * 100)
    assert notes == [f"server: process {child.pid} ended during the window: its CPU time is not counted"]


def test_the_tree_can_be_moved(tmp_path: Path) -> None:
    fake_stat(tmp_path / "proc", [(5, 10)])
    assert procfs.read_stat(tmp_path / "proc").cpus[0]["idle"] == 0.1


def test_peak_memory_excludes_the_parent_process() -> None:
    """`parent` holds 200 MB when it starts the program that asks."""
    child = "from powerprof.measure.procfs import own_peak_bytes; print(own_peak_bytes())"
    run = f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    parent = f"import subprocess, sys; held = bytearray(200 << 20); {run}"
    said = subprocess.run([sys.executable, "-c", parent], check=True, capture_output=True, text=True).stdout
    assert 5e6 < int(said) < 100e6


_HYPER_V = """           CPU0       CPU1
  8:          0          0   IO-APIC   8-edge      rtc0
NMI:          3          4   Non-maskable interrupts
LOC:          0          0   Local timer interrupts
HYP:     120003       7001   Hypervisor callback interrupts
HRE:          0          0   Hyper-V reenlightenment interrupts
HVS:     900000     800000   Hyper-V stimer0 interrupts
ERR:          0
"""
_ARM = """           CPU0
 11:       1000     GICv3  27 Level     arch_timer
IPI0:        10       Rescheduling interrupts
"""


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    return tmp_path / "interrupts"


def test_hypervisor_interrupts_are_summed_over_all_cpus(proc: Path) -> None:
    proc.write_text(_HYPER_V)
    assert read_unseen_counts() == {"NMI": 7, "HYP": 127_004, "HRE": 0, "HVS": 1_700_000}


@pytest.mark.parametrize("text", [_ARM, "", "NMI\n", "HYP: x y\n", "\n\nHYP"])
def test_missing_rows_and_damaged_files_give_no_counts(proc: Path, text: str) -> None:
    proc.write_text(text)
    assert sum(read_unseen_counts().values()) == 0


def test_only_interrupts_of_the_window_are_counted() -> None:
    before = {"HYP": 100, "NMI": 7, "PIW": 5}
    assert count_unseen(before, {"HYP": 160, "NMI": 7, "PIW": 3, "HVS": 2}) == {
        "hypervisor callbacks": 60,
        "Hyper-V timers": 2,
    }
