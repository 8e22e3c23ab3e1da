# SPDX-License-Identifier: Apache-2.0
"""Interrupts that no tracepoint shows: counted from /proc/interrupts, as kernels and hypervisors write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.measure.procfs import count_unseen, read_unseen_counts

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


def test_what_a_hypervisor_sends_is_counted_over_all_cpus(proc: Path) -> None:
    proc.write_text(_HYPER_V)
    assert read_unseen_counts() == {"NMI": 7, "HYP": 127_004, "HRE": 0, "HVS": 1_700_000}


@pytest.mark.parametrize("text", [_ARM, "", "NMI\n", "HYP: x y\n", "\n\nHYP"])
def test_machines_without_such_rows_and_damaged_files_have_none(proc: Path, text: str) -> None:
    proc.write_text(text)
    assert sum(read_unseen_counts().values()) == 0


def test_only_what_came_in_the_window_is_told() -> None:
    before = {"HYP": 100, "NMI": 7, "PIW": 5}
    assert count_unseen(before, {"HYP": 160, "NMI": 7, "PIW": 3, "HVS": 2}) == {
        "hypervisor callbacks": 60,
        "Hyper-V timers": 2,
    }
