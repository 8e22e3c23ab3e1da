# SPDX-License-Identifier: Apache-2.0
"""perf's PMU, live turbostat, IPMI and PowerTOP: real descriptors and real programs, faked at the system's edge."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from powerprof.energy.meters import open_meters
from powerprof.energy.program_meters import find_report_watts
from powerprof.energy.rapl import OpenCounter, PerfPowerMeter, list_events
from powerprof.system.errors import CapabilityError
from tests.programs.waiting import wait_until


def test_events_of_the_power_pmu(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    for name, text in (
        ("energy-pkg", "event=0x02"),
        ("energy-pkg.scale", "2.3283064365386962890625e-10"),
        ("energy-pkg.unit", "Joules"),
        ("energy-cores", "event=0x01"),
        ("energy-cores.scale", "1e-9"),
        ("energy-cores.unit", "Joules"),
        ("other", "event=0x09"),
        ("energy-odd", "event=0x07"),
    ):
        (events / name).write_text(text + "\n")
    (tmp_path / "type").write_text("9\n")
    (tmp_path / "cpumask").write_text("0,28-29\n")
    kind, found, cpus = list_events(tmp_path)
    assert kind == 9
    assert cpus == [0, 28, 29]
    assert [(e.name, e.config) for e in found] == [("energy-cores", 1), ("energy-pkg", 2)]
    assert found[1].joules_per_unit == pytest.approx(2**-32)


def test_perf_counters_are_scaled_and_an_offline_cpu_is_marked() -> None:
    read_pkg, write_pkg = os.pipe()
    read_core, write_core = os.pipe()
    os.write(write_pkg, struct.pack("=QQ", 1 << 32, 4 << 32))
    os.write(write_core, struct.pack("=Q", 1 << 32))
    os.close(write_core)  # the next read is empty, as perf's is when the CPU has gone
    meter = PerfPowerMeter(
        [
            OpenCounter(read_pkg, "package-0", "package", None, 2**-32),
            OpenCounter(read_core, "core", "core", "package-0", 2**-32),
        ],
        [],
    )
    meter.sample(0.0)
    assert meter.is_counting() is None
    meter.sample(1.0)
    assert meter.is_counting()
    package, core = meter.energies(0.0, 1.0)
    assert package.energy.joules == 3.0
    assert core.energy.joules is None
    assert core.inside == "package-0"
    meter.close()
    os.close(write_pkg)


def test_a_platform_of_several_sockets_may_draw_kilowatts() -> None:
    read, write = os.pipe()
    os.write(write, struct.pack("=QQ", 0, 1800 << 32))
    meter = PerfPowerMeter([OpenCounter(read, "psys", "psys", None, 2**-32)], [])
    meter.sample(0.0)
    meter.sample(1.0)
    assert meter.energies(0.0, 1.0)[0].energy.joules == 1800.0
    meter.close()
    os.close(write)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched for programs first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


TURBOSTAT = """#!/bin/sh
print() { printf 'Time_Of_Day_Seconds\\tPackage\\tCPU\\tCorWatt\\tPkgWatt\\n%s\\t-\\t-\\t1.0\\t20.0\\n' "$1"
printf '%s\\t0\\t0\\t1.0\\t20.0\\n' "$1"; }
case "$*" in *num_iterations*) print $(date +%s.%N); exit 0;; esac
while :; do sleep 0.2; print $(date +%s.%N); echo >> "$0.printed"; done
"""


def _until_printed(folder: Path, more: int) -> None:
    """Wait for so many intervals more, however slowly they come."""
    printed = folder / "turbostat.printed"
    printed.touch()
    due = printed.stat().st_size + more
    wait_until(lambda: printed.stat().st_size >= due, f"{more} intervals more")


def test_live_turbostat(program: Path) -> None:
    script(program, "turbostat", TURBOSTAT)
    with open_meters("turbostat") as meters:
        _until_printed(program, 1)
        meters.sample()
        start_s = time.monotonic()
        _until_printed(program, 4)
        end_s = time.monotonic()
        meters.sample()
        readings = {r.domain: r for r in meters.readings(start_s, end_s)}
        assert any("wakes every CPU" in note for note in meters.notes())
    assert readings["package-0"].watts == pytest.approx(20.0)
    assert readings["core"].watts == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho 'turbostat: Failed to set rlimit' >&2\nexit 1\n", "Failed to set rlimit"),
        ("#!/bin/sh\nprintf 'CPU\\tPkgWatt\\n-\\t0.00\\n0\\t0.00\\n'\n", "shows no watts"),
        ("#!/bin/sh\necho hello\n", "no turbostat table"),
    ],
)
def test_a_turbostat_without_watts_is_refused(program: Path, text: str, reason: str) -> None:
    script(program, "turbostat", text)
    with pytest.raises(CapabilityError, match=reason):
        open_meters("turbostat")


def test_live_ipmi(program: Path) -> None:
    script(program, "ipmitool", "#!/bin/sh\necho '    Instantaneous power reading:     220 Watts'\n")
    with open_meters("ipmi") as meters:
        assert meters.max_interval_s == 5.0
        meters.sample()
        start_s = time.monotonic()
        time.sleep(0.1)
        end_s = time.monotonic()
        meters.sample()
        readings = meters.readings(start_s, end_s)
    assert readings[0].domain == "server"
    assert readings[0].watts == pytest.approx(220.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/sh\necho 'Could not open device' >&2; exit 1\n", "no management controller answers"),
        ("#!/bin/sh\necho 'Instantaneous power reading: 0 Watts'\n", "reports no power"),
    ],
)
def test_ipmi_that_does_not_answer(program: Path, text: str, reason: str) -> None:
    script(program, "ipmitool", text)
    with pytest.raises(CapabilityError, match=reason):
        open_meters("ipmi")


def test_recorded_powertop_reports(recordings: Path) -> None:
    folder = recordings / "powertop"
    assert find_report_watts((folder / "powertop-2.14-laptop.csv").read_text()) == (8.43, "battery discharge")
    assert find_report_watts((folder / "powertop-2.14-laptop-2.csv").read_text()) == (11.7, "system baseline")
