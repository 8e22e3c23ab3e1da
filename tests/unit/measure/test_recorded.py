# SPDX-License-Identifier: Apache-2.0
"""Recorded servers: our figures beside those of the machine's own turbostat."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.measure.residency import read_recording
from powerprof.measure.turbostat import make_turbostat_window, parse_turbostat
from powerprof.model.records import Window
from powerprof.system.errors import UsageError

LOG = (
    "\t".join(
        [
            "Time_Of_Day_Seconds",
            "Core",
            "CPU",
            "Busy%",
            "Bzy_MHz",
            "POLL",
            "C1",
            "C6",
            "POLL%",
            "C1%",
            "C6%",
            "CPU%c6",
            "Pkg%pc6",
        ]
    )
    + """
100.0\t-\t-\t5.00\t2000\t5\t15\t10\t0.50\t20.00\t70.00\t60.00\t30.00
100.0\t0\t0\t6.00\t2000\t10\t10\t10\t1.00\t10.00\t80.00\t60.00\t30.00
100.0\t1\t1\t4.00\t2000\t0\t20\t10\t0.00\t30.00\t60.00\t60.00
"""
)


def shares(window: Window) -> dict[str, float]:
    return {state.name: state.residency_percent or 0.0 for state in window.states}


def test_turbostats_table_as_a_window() -> None:
    text = "turbostat version 2024\nMeasurement interval: 2.000 seconds\n" + LOG
    window = make_turbostat_window(parse_turbostat(text, "log"), "")
    assert shares(window) == {"POLL": 0.0, "C1": 20.0, "C6": 70.0}
    assert (window.c0_percent, window.idle_percent, window.window_s, window.cpus) == (10.0, 90.0, 2.0, 2)
    # 20 entries of C6 in 2 s over 70 % of 2 CPUs' time.
    assert window.states[2].entries_hz == 10.0
    assert window.states[2].average_residency_ms == pytest.approx(140.0)
    assert window.states[0].polling_percent == 0.5
    assert [(item.scope, item.name, item.residency_percent) for item in window.achieved] == [
        ("cpu", "Busy%", 5.0),
        ("core", "CPU%c6", 60.0),
        ("package", "Pkg%pc6", 30.0),
    ]


@pytest.mark.parametrize("machine", ["genoa0", "bdwup0", "adl0"])
def test_every_state_agrees_with_turbostat_within_a_point(recordings: Path, machine: str) -> None:
    """The dumps carry no wall time: these are shares of the idle time (C0 is 0.2 to 0.8 % of these machines).

    Largest differences: genoa0 C1 +0.5, bdwup0 C6 +0.7, adl0 C8 +0.2 points.
    """
    folder = recordings / machine
    dumps = read_recording(
        folder / "sys-cpuidle.before.raw.txt",
        folder / "sys-cpuidle.after.raw.txt",
        source=None,
        elapsed_s=None,
        read_at="",
    ).window
    log = read_recording(folder / "turbostat.raw.txt", None, source=None, elapsed_s=None, read_at="").window
    assert (dumps.c0_percent, dumps.percent_of) == (None, "idle_time")
    assert log.residency_source == "turbostat"
    assert set(shares(dumps)) == set(shares(log))
    for name, share in shares(log).items():
        assert shares(dumps)[name] == pytest.approx(share, abs=1.0), name


def test_c2_of_the_idle_epyc(recordings: Path) -> None:
    folder = recordings / "genoa0"
    window = read_recording(
        folder / "sys-cpuidle.before.raw.txt",
        folder / "sys-cpuidle.after.raw.txt",
        source="cpuidle",
        elapsed_s=None,
        read_at="",
    ).window
    assert window.cpus == 128
    assert shares(window)["C2"] == pytest.approx(98.81, abs=0.01)
    assert {state.name: state.entries_count for state in window.states} == {"POLL": 2455, "C1": 721249, "C2": 52102}


def test_with_the_wall_time_c0_is_known(recordings: Path) -> None:
    folder = recordings / "genoa0"
    window = read_recording(
        folder / "sys-cpuidle.before.raw.txt",
        folder / "sys-cpuidle.after.raw.txt",
        source=None,
        elapsed_s=140.0,
        read_at="",
    ).window
    assert window.c0_percent is not None and window.percent_of == "wall_time"
    assert sum(shares(window).values()) + window.c0_percent == pytest.approx(100.0)
    assert any(note.startswith("idle periods open at the edges of 128 CPUs") for note in window.notes)


def test_the_same_dump_twice_is_since_boot(recordings: Path) -> None:
    path = recordings / "sysfs-trees/lnl0-cpuidle.txt"
    once = read_recording(path, None, source=None, elapsed_s=None, read_at="")
    assert read_recording(path, path, source=None, elapsed_s=None, read_at="") == once
    assert once.window.notes[0] == "only one snapshot: the figures are those since boot"
    assert once.driver == "driver intel_idle, governor menu"


def test_a_source_that_does_not_fit_two_dumps(tmp_path: Path) -> None:
    for source in ("turbostat", "powertop", "procfs"):
        with pytest.raises(UsageError):
            read_recording(tmp_path, tmp_path, source=source, elapsed_s=None, read_at="")
    (tmp_path / "log").write_text(LOG)
    with pytest.raises(UsageError, match="a turbostat log has its own times"):
        read_recording(tmp_path / "log", None, source=None, elapsed_s=3.0, read_at="")
