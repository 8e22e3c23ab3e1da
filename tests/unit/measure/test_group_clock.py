# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a control group, as both versions write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.measure.window import GroupCpuClock, read_group_cpu_ns


@pytest.mark.parametrize(
    ("file", "text", "ns"),
    [
        ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n", 1_500_000),
        ("cpuacct.usage", "987654321\n", 987_654_321),
        ("cpu.stat", "nr_periods 0\nnr_throttled 0\n", None),  # version 1's file of that name
        ("cpu.stat", "usage_usec many\n", None),
        ("cpuacct.usage", "", None),
    ],
)
def test_each_version_and_what_is_no_count(tmp_path: Path, file: str, text: str, ns: int | None) -> None:
    (tmp_path / file).write_text(text)
    assert read_group_cpu_ns(tmp_path) == ns


def test_a_group_that_is_gone_at_the_end_has_none(tmp_path: Path) -> None:
    usage = tmp_path / "cpuacct.usage"
    usage.write_text("5\n")
    clock, nobody = GroupCpuClock(tmp_path), GroupCpuClock(None)
    for one in (clock, nobody):
        one.begin()
    usage.write_text("9\n")
    for one in (clock, nobody):
        one.end()
    assert (clock.used_ns, nobody.used_ns) == (4, None)
    clock = GroupCpuClock(tmp_path)
    clock.begin()
    usage.unlink()
    clock.end()
    assert clock.used_ns is None
