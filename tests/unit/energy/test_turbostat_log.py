# SPDX-License-Identifier: Apache-2.0
"""turbostat's text: what it says is read exactly, what is damaged is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.energy.program_meters import read_domain_intervals, sum_log_energies
from powerprof.measure.turbostat import looks_like_turbostat, parse_turbostat
from powerprof.system.errors import DataError

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
    assert log.header.version == "2024.12.03"
    assert (log.header.vendor, log.header.family, log.header.model) == ("AuthenticAMD", 25, 17)
    assert (log.header.idle_driver, log.header.idle_governor) == ("acpi_idle", "menu")
    assert log.header.states == ("POLL", "C1")
    assert log.header.kernel == "BOOT_IMAGE=/vmlinuz ro quiet"
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


def test_watts_by_package_and_amds_cores_added_up() -> None:
    energies = {e.domain: e for e in sum_log_energies(parse_turbostat(LOG, "log"), 1000.0, 1010.0)}
    assert energies["package-0"].energy.joules == 5 * 110.0 + 5 * 120.0
    assert energies["package-1"].energy.joules == 5 * 40.0 + 5 * 30.0
    assert energies["package-0/core"].energy.joules == pytest.approx(10 * 1.0)
    assert energies["package-1/core"].inside == "package-1"


def test_without_times_the_stated_interval_is_the_axis() -> None:
    text = "\n".join("\t".join(line.split("\t")[1:]) if "\t" in line else line for line in LOG.splitlines()) + "\n"
    log = parse_turbostat(text, "log")
    intervals, _ = read_domain_intervals(log)["package-0"]
    assert [(i.start_s, i.end_s) for i in intervals] == [(0.0, 5.0), (5.0, 10.0), (10.0, 15.0)]


def test_one_header_only_and_summary_rows_only() -> None:
    text = "PkgWatt\tBusy%\n1.5\t3.0\n2.5\t4.0\n"
    log = parse_turbostat(text, "log")
    assert [i.system.values["PkgWatt"] for i in log.intervals if i.system] == [1.5, 2.5]


def test_an_unfinished_last_interval_is_left_out_and_said() -> None:
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


def test_recorded_damaged_log(recordings: Path) -> None:
    with pytest.raises(DataError) as caught:
        parse_turbostat(
            (recordings / "corrupted/turbostat.raw.txt").read_text(), recordings / "corrupted/turbostat.raw.txt"
        )
    assert caught.value.line == 64
    assert "damaged table header" in caught.value.reason


@pytest.mark.parametrize(
    ("name", "cpus", "states", "family_model"),
    [
        ("genoa0", 128, ("POLL", "C1", "C2"), (25, 17)),
        ("bdwup0", 8, ("POLL", "C1", "C1E", "C3", "C6"), (6, 71)),
        ("adl0", 16, ("POLL", "C1E", "C6", "C8", "C10"), (6, 154)),
    ],
)
def test_recorded_logs(
    recordings: Path, name: str, cpus: int, states: tuple[str, ...], family_model: tuple[int, int]
) -> None:
    log = parse_turbostat(
        (recordings / name / "turbostat.raw.txt").read_text(), recordings / name / "turbostat.raw.txt"
    )
    assert len(log.intervals) == 23
    assert {len(i.cpus) for i in log.intervals} == {cpus}
    assert log.requested_states() == states == log.header.states
    assert (log.header.family, log.header.model) == family_model
