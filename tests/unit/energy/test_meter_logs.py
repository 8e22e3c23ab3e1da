# SPDX-License-Identifier: Apache-2.0
"""Recorded logs of wall meters and turbostat."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.energy.choice import open_meters
from powerprof.energy.meters.meter_log import looks_like_meter_log, parse_meter_log, read_meter_log
from powerprof.energy.meters.turbostat import read_domain_intervals
from powerprof.measure.turbostat import looks_like_turbostat, parse_turbostat
from powerprof.system.errors import CapabilityError, DataError


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("T,P,I,V,S,Q\n1737461935.5, 327.37, 1.4, 230, 333, -64\n1737461936.5,300,1,1,1,1\n", (1737461935.5, 327.37)),
        ("timestamp,watts\n2025-01-21T12:18:55Z,10.5\n2025-01-21T12:18:56Z,11\n", (1737461935.0, 10.5)),
        ("Time;Power (kW)\n1737461935;0,25\n1737461936;0,26\n", (1737461935.0, 250.0)),
        ("epoch\tpower_mW\n1737461935000\t1500\n1737461936000\t1600\n", (1737461935.0, 1.5)),
        (
            "date,active power [W],voltage\n2025-01-21T13:18:55+01:00,5,1\n2025-01-21T13:18:56+01:00,6,1\n",
            (1737461935.0, 5.0),
        ),
        ("1737461935,20\n1737461936,21\n", (1737461935.0, 20.0)),
        (
            "Timestamp_ms,power_factor,Apparent Power (VA),Active_Power_W\n"
            "1737461935000,0.9,50,45\n1737461936000,1,50,45\n",
            (1737461935.0, 45.0),
        ),
        ("time (s),Energy (Wh),wattage\n1737461935,7,45\n1737461936,7,45\n", (1737461935.0, 45.0)),
    ],
)
def test_headers_units_and_times(text: str, first: tuple[float, float]) -> None:
    assert looks_like_meter_log(text)
    log = parse_meter_log(text, "log")
    assert (log.samples[0].time_s, log.samples[0].watts) == (pytest.approx(first[0]), pytest.approx(first[1]))
    assert log.step_s == pytest.approx(1.0)
    assert log.notes == ()


def test_times_from_zero_are_not_epoch_times() -> None:
    assert not parse_meter_log("time,watts\n0,1\n1,2\n", "log").has_epoch
    assert parse_meter_log("time,watts\n1737461935,1\n1737461936,2\n", "log").has_epoch


def test_times_without_a_zone_are_local_with_a_note() -> None:
    log = parse_meter_log("time,watts\n2025-01-21 12:18:55,1\n2025-01-21 12:18:56,1\n", "log")
    assert log.notes == ("its times carry no zone and are taken as this machine's local time",)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", None, "empty"),
        ("time,volts\n1,2\n", 1, "no column of time and power"),
        ("time,watts\n1737461935,2\nx,3\n1737461937,3\n", 3, "not a time: 'x'"),
        ("time,watts\n1737461935,2\n1737461936,x\n1737461937,3\n", 3, "not a power: 'x'"),
        ("time,watts\n1737461935,2\n1737461936,nan\n1737461937,3\n", 3, "not a power: 'nan'"),
        ("time,watts\n1737461935,2\n1737461936,-3\n1737461937,3\n", 3, "not a power: '-3'"),
        ("time,watts\n1737461935,2\n1737461935,3\n1737461937,3\n", 3, "time does not advance"),
        ("time,watts\n1737461935,2\n1737461936\n1737461937,3\n", 3, "1 columns, the header has more"),
        ("time,watts\n1737461935,2\n", None, "fewer than two samples"),
    ],
)
def test_damaged_logs_are_refused(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_meter_log(text, "log")
    assert caught.value.line == line
    assert reason in caught.value.reason


def test_a_message_at_the_end_of_a_log_is_left_out() -> None:
    log = parse_meter_log("time,watts\n1737461935,2\n1737461936,3\nInterrupted, exiting\n", "log")
    assert len(log.samples) == 2
    assert log.notes == ("the last line is not a sample and was left out: 'Interrupted, exiting'",)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    for content in (text, "time,watts\n" + text):
        try:
            parse_meter_log(content, "log")
        except DataError as error:
            assert error.message.startswith("log")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("1737461935,2\n1737461936,3\n", "the last sample of .* is .* s old"),
        ("1737461935,2\n", "the last sample of .* is .* s old"),
        ("0,2\n1,3\n", "count from 0"),
        ("9000000000,2\n", "ahead of this machine's clock"),
    ],
)
def test_a_log_that_cannot_cover_the_window_is_refused_before_it(tmp_path: Path, rows: str, reason: str) -> None:
    path = tmp_path / "wall.csv"
    path.write_text(f"time,watts\n{rows}")
    with pytest.raises(CapabilityError, match=reason) as caught:
        open_meters("meter_log", meter_log=path)
    assert caught.value.hint


def test_a_log_with_one_row_in_the_end_gives_no_figure_and_no_error(tmp_path: Path) -> None:
    path = tmp_path / "wall.csv"
    path.write_text(f"time,watts\n{time.time():.3f},3\n")
    with open_meters("meter_log", meter_log=path) as meters:
        meters.sample()
        readings = meters.readings(time.monotonic() - 1, time.monotonic())
        assert readings[0].joules is None
        assert meters.notes == ["meter_log: wall fewer than two samples in the window"]


def test_no_log_named() -> None:
    with pytest.raises(CapabilityError, match="no log was named"):
        open_meters("meter_log")


def test_recorded_wall_log(recordings: Path) -> None:
    wall = read_meter_log(recordings / "genoa0/acpower.raw.txt")
    assert len(wall.samples) == 115
    assert wall.samples[0].watts == 327.37
    assert len(wall.notes) == 1


HEAD = """turbostat version 2024.12.03 - Len Brown <lenb@kernel.org>
Measurement interval: 5.000 seconds
Kernel command line: BOOT_IMAGE=/vmlinuz ro quiet
CPUID(0): AuthenticAMD 0x10 CPUID levels
CPUID(1): family:model:stepping 0x19:11:1 (25:17:1) microcode 0x0
current_driver: acpi_idle
current_governor: menu
cpu0: POLL: CPUIDLE CORE POLL IDLE
cpu0: C1: ACPI FFH MWAIT 0x0
"""
COLUMNS = "Time_Of_Day_Seconds\tPackage\tCore\tCPU\tBusy%\tIPC\tIRQ\tC1\tC1%\tCPU%c6\tCorWatt\tPkgWatt"


def table(end: float, watts: tuple[float, float], cores: float = 0.5) -> str:
    rows = [
        COLUMNS,
        f"{end}\t-\t-\t-\t1.00\t0.9\t40\t20\t98.50\t90.00\t{4 * cores}\t{sum(watts)}",
        f"{end - 0.02}\t0\t0\t0\t1.00\t0.9\t10\t5\t98.50\t90.00\t{cores}\t{watts[0]}",
        f"{end - 0.02}\t0\t0\t2\t1.00\tnan\t10\t5\t98.50\t90.00",
        f"{end - 0.01}\t0\t1\t4\t1.00\t0.9\t10\t5\t98.50\t90.00\t{cores}",
        f"{end - 0.01}\t1\t0\t1\t1.00\t0.9\t10\t5\t98.50\t90.00\t{2 * cores}\t{watts[1]}",
    ]
    return "\n".join(rows) + "\n"


LOG = HEAD + table(1000.0, (100.0, 50.0)) + table(1005.0, (110.0, 40.0)) + table(1010.0, (120.0, 30.0))


def test_header_and_tables() -> None:
    log = parse_turbostat(LOG, "log")
    assert log.idle_driver == "acpi_idle"
    assert [i.time_s for i in log.intervals] == [1000.0, 1005.0, 1010.0]
    assert [i.duration_s for i in log.intervals] == [5.0, 5.0, 5.0]
    assert log.requested_states() == ("C1",)
    assert log.achieved_columns() == ("CPU%c6",)
    first = log.intervals[0]
    assert first.system is not None
    assert first.system.values["IRQ"] == 40
    assert [row.cpu for row in first.cpus] == [0, 2, 4, 1]
    assert "IPC" not in first.cpus[1].values
    assert "CorWatt" not in first.cpus[1].values
    assert {row.package: row.values["PkgWatt"] for row in reversed(first.cpus) if "PkgWatt" in row.values} == {
        0: 100.0,
        1: 50.0,
    }


def test_without_times_the_stated_interval_is_the_axis() -> None:
    text = "\n".join("\t".join(line.split("\t")[1:]) if "\t" in line else line for line in LOG.splitlines()) + "\n"
    log = parse_turbostat(text, "log")
    (intervals,) = [domain.intervals for domain in read_domain_intervals(log) if domain.domain == "package-0"]
    assert [(i.start_s, i.end_s) for i in intervals] == [(0.0, 5.0), (5.0, 10.0), (10.0, 15.0)]


def test_an_unfinished_last_interval_is_left_out_with_a_note() -> None:
    cut = LOG[: LOG.rindex("1009.99")]
    log = parse_turbostat(cut, "log")
    assert len(log.intervals) == 2
    assert log.notes == ("the last interval is cut off and was left out",)


@pytest.mark.parametrize(
    ("damage", "line", "reason"),
    [
        (lambda t: t.replace(COLUMNS, ";x" + COLUMNS, 1), 10, "damaged table header"),
        (lambda t: t.replace(COLUMNS, COLUMNS.replace("IRQ", "I;Q"), 1), 10, "damaged table header (column 'I;Q')"),
        (lambda t: t.replace(COLUMNS, COLUMNS.replace("IRQ", "IPC"), 1), 10, "column IPC twice"),
        (lambda t: t[:900] + t[900:].replace(COLUMNS, ";x" + COLUMNS, 1), 22, "column Time_Of_Day_Seconds says"),
        (lambda t: t.replace("\t100.0\n", "\t1a0.0\n"), 12, "column PkgWatt says '1a0.0'"),
        (lambda t: t.replace("\t100.0\n", "\t100.0\t7\n"), 12, "13 figures under 12 columns"),
        (lambda t: t.replace("\t0\t1\t4\t", "\t0\tx\t4\t", 1), 14, "column Core says 'x'"),
        (lambda t: t.replace("1005.0\t-", "999.0\t-").replace("1004.9", "998.9"), 17, "time runs backwards"),
        (
            lambda t: t.replace(
                "1004.98\t0\t0\t0\t1.00\t0.9\t10\t5\t98.50\t90.00\t0.5\t110.0", "1004.98\t0\t0\t0\t1.00"
            ),
            18,
            "a row of 2 figures",
        ),
        (lambda t: t.replace(COLUMNS + "\n", "", 1), 10, "figures before any table header"),
    ],
)
def test_damage_is_refused_with_its_line(damage: object, line: int, reason: str) -> None:
    assert callable(damage)
    broken = damage(LOG)
    assert broken != LOG
    with pytest.raises(DataError) as caught:
        parse_turbostat(broken, "log")
    assert caught.value.line == line
    assert reason in caught.value.reason


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, len(LOG)), junk=st.text(max_size=8), removed=st.integers(0, 40))
def test_no_damage_ends_in_a_traceback(place: int, junk: str, removed: int) -> None:
    broken = LOG[:place] + junk + LOG[place + removed :]
    try:
        log = parse_turbostat(broken, "log")
        read_domain_intervals(log)
    except DataError as error:
        assert error.message.startswith("log")


def test_other_texts_are_not_turbostats() -> None:
    assert not looks_like_turbostat("T,P,I\n1,2,3\n")
    with pytest.raises(DataError, match="no turbostat table"):
        parse_turbostat("hello\n", "log")


@pytest.mark.parametrize(
    ("name", "cpus", "states"),
    [
        ("genoa0", 128, ("POLL", "C1", "C2")),
        ("bdwup0", 8, ("POLL", "C1", "C1E", "C3", "C6")),
        ("adl0", 16, ("POLL", "C1E", "C6", "C8", "C10")),
    ],
)
def test_recorded_turbostat_logs(recordings: Path, name: str, cpus: int, states: tuple[str, ...]) -> None:
    log = parse_turbostat(
        (recordings / name / "turbostat.raw.txt").read_text(), recordings / name / "turbostat.raw.txt"
    )
    assert len(log.intervals) == 23
    assert {len(i.cpus) for i in log.intervals} == {cpus}
    assert log.requested_states() == states
