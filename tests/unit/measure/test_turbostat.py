# SPDX-License-Identifier: Apache-2.0
"""turbostat's output with hidden columns, of one command, and of versions from 2015 to 2025: C0, watts and joules."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.energy.replay import replay
from powerprof.measure.residency_recordings import read_recording
from powerprof.measure.turbostat import TurbostatLog, is_sum_or_mean, parse_turbostat
from powerprof.measure.turbostat_residency import make_turbostat_window
from powerprof.system.errors import DataError

REFUSED = "refused"
Figure = float | str | None

# Every state that the kernel has, as turbostat lists them without --quiet.
BANNER = """turbostat version 2023.11.07 - Len Brown <lenb@kernel.org>
current_driver: intel_idle
current_governor: menu
current_governor_ro: menu
cpu0: POLL: CPUIDLE CORE POLL IDLE
cpu0: C1: MWAIT 0x00
cpu0: C6: MWAIT 0x20
cpu0: MSR_PKGC6_IRTL: 0x0000886b (valid, 109568 ns)
"""
COMMAND = """turbostat version 4.7 27-May, 2015
CPUID(0): GenuineIntel 11 CPUID levels; family:model:stepping 0x6:1a:5 (6:26:5)
cpu0: MSR_NHM_PLATFORM_INFO: 0xc0000011401
20 * 133 = 2667 MHz base frequency
"""
COMMAND_TABLE = """
 Core CPU Avg_MHz Busy% Bzy_MHz TSC_MHz SMI CPU%c1 CPU%c3 CPU%c6 CoreTmp Pkg%pc3 Pkg%pc6 PkgWatt
 - - 9 0.55 1652 2660 0 1.41 0.24 97.80 31 12.02 71.20 22.50
 0 0 13 0.79 1651 2660 0 1.86 0.28 97.07 31 12.02 71.20 22.50
 0 4 6 0.35 1655 2660 0 2.29
 1 1 8 0.51 1650 2660 0 0.96 0.20 98.33 29
 1 5 9 0.55 1652 2660 0 0.93
"""
PARTIAL = "Package\tCore\tCPU\tBusy%\tC6\tC6%\tPkgWatt\n" + (
    "-\t-\t-\t10.00\t1400\t60.00\t30.00\n0\t0\t0\t12.00\t700\t58.00\t30.00\n0\t1\t1\t8.00\t700\t62.00\n"
)


def tab(text: str) -> str:
    """The table with a tab between its cells."""
    return "\n".join("\t".join(line.split(" ")) for line in text.strip().splitlines()) + "\n"


def shown_time(seconds: int, packages: tuple[float, float]) -> str:
    rows = (f"{seconds}.99 {sum(packages):.2f}", f"{seconds}.98 {packages[0]:.2f}", f"{seconds}.97 {packages[1]:.2f}")
    return tab("Time_Of_Day_Seconds PkgWatt\n" + "\n".join(rows))


def two_sockets(columns: str, *rows: str) -> str:
    return tab("\n".join([columns, *rows]))


# (text, C0 in percent, watts, joules). None: unknown. REFUSED: a one-line error.
CASES: dict[str, tuple[str, Figure, Figure, Figure]] = {
    # Inputs of public bug reports, typed anew.
    "a state is hidden, Busy% is shown": (PARTIAL * 2, 10.0, 30.0, None),
    "no ids": (
        tab("Busy% C1 C6 C1% C6%\n10.00 300 900 15.00 75.00\n2.00 100 500 5.00 93.00\n18.00 200 400 25.00 57.00"),
        10.0,
        REFUSED,
        REFUSED,
    ),
    "no ids, time of every row": (
        "".join(shown_time(1764000005 + 5 * i, (120.0 + 10 * i, 80.0 - 10 * i)) for i in range(3)),
        REFUSED,
        200.0,
        2000.0,
    ),
    "no ids, no times": (
        "".join(tab(f"PkgWatt RAMWatt\n200.00 30.00\n{p}.00 16.00\n{200 - p}.00 14.00") for p in (120, 130, 110)),
        REFUSED,
        230.0,
        None,
    ),
    "command, length above the table": (
        COMMAND + "10.002304 sec\n" + tab(COMMAND_TABLE.replace("\n ", "\n")),
        0.55,
        22.5,
        225.05184,
    ),
    "command, length below the table": (
        COMMAND + COMMAND_TABLE.lstrip("\n") + "10.002304 sec\n",
        0.55,
        22.5,
        225.05184,
    ),
    # Inputs of our own.
    "rows by die that repeat one counter": (
        two_sockets(
            "Package Die Node Core CPU Busy% PkgWatt",
            "- - - - - 5.00 100.00",
            "0 0 0 0 0 5.00 100.00",
            "0 1 0 4 4 5.00 100.00",
        ),
        5.0,
        100.0,
        None,
    ),
    "rows by die that are counters of their own": (
        two_sockets(
            "Package Die Node Core CPU Busy% PkgWatt",
            "- - - - - 5.00 150.00",
            "0 0 0 0 0 5.00 100.00",
            "0 1 0 4 4 5.00 50.00",
        ),
        5.0,
        150.0,
        None,
    ),
    "one CPU of --cpu 0": (
        two_sockets(
            "Package Core CPU Busy% C1 C1% PkgWatt", "- - - 20.00 800 40.00 150.00", "0 0 0 60.00 50 20.00 90.00"
        ),
        20.0,
        150.0,
        None,
    ),
    "no package column on two sockets": (
        two_sockets("CPU Busy% PkgWatt RAMWatt", "- 20.00 150.00 20.00", "0 10.00 90.00 15.00", "1 30.00 60.00 5.00"),
        20.0,
        170.0,
        None,
    ),
    "a second socket without watts": (
        two_sockets("Package Core CPU Busy% PkgWatt", "- - - 20.00 90.00", "0 0 0 10.00 90.00", "1 0 1 30.00"),
        20.0,
        None,
        None,
    ),
    "--Summary with times": (
        tab("Time_Of_Day_Seconds Busy% PkgWatt\n100.0 10.00 50.00\n105.0 20.00 70.00\n110.0 30.00 90.00"),
        20.0,
        80.0,
        800.0,
    ),
    "--Summary without ids and times": (tab("Busy% PkgWatt\n10.00 50.00\n20.00 70.00\n30.00 90.00"), 20.0, 70.0, None),
    "joules of a command": (
        COMMAND
        + "2.000000 sec\n"
        + tab(
            "Package Core CPU Busy% Pkg_J Cor_J RAM_J\n- - - 3.00 80.00 20.00 10.00\n"
            "0 0 0 3.00 80.00 20.00 10.00\n0 1 1 3.00"
        ),
        3.0,
        45.0,
        90.0,
    ),
    "joules without a length": (tab("CPU Busy% Pkg_J\n- 3.00 80.00\n0 3.00 80.00"), 3.0, REFUSED, REFUSED),
    "columns of 2025": (
        tab(
            "usec Time_Of_Day_Seconds Package Die L3 Node Core CPU APIC X2APIC Avg_MHz Busy% Bzy_MHz TSC_MHz IPC "
            + "IRQ NMI SMI LLCkRPS LLC%hit POLL C1 C1+ C1- POLL% C1% CPU%c1 CPU%c6 CoreTmp CoreThr Totl%C0 "
            + "Any%C0 GFX%C0 CPUGFX% Pkg%pc2 Pk%pc10 CPU%LPI SYS%LPI PkgWatt CorWatt UncMHz SysWatt\n"
            + "300 10.0 - - - - - - - - 30 1.50 2000 2400 0.9 40 0 0 7 50.00 0 20 1 2 0.00 98.00 20.00 70.00 40 0 "
            + "140.0 90.00 0.00 0.00 50.00 20.00 10.00 5.00 12.00 3.00 1200 25.00\n"
            + "20 10.0 0 0 0 0 0 0 0 0 30 1.50 2000 2400 0.9 40 0 0 7 50.00 0 20 1 2 0.00 98.00 20.00 70.00 40 0 "
            + "140.0 90.00 0.00 0.00 50.00 20.00 10.00 5.00 12.00 3.00 1200"
        ),
        1.5,
        25.0,
        None,
    ),
    "a header whose columns run together": (
        BANNER
        + "Core CPUAvg_MHz Busy%Bzy_MHz C1ACPIC2ACPI C1ACPI%C2ACPI% CPU%c1CPU%c6 CoreTmpPkg%pc6PkgWatt\n"
        + "- - 30 2.00 1500 10 20 8.00 90.00 5.00 90.00 40 60.00 33.00\n"
        + "0 0 30 2.00 1500 10 20 8.00 90.00 5.00 90.00 40 60.00 33.00\n",
        2.0,
        33.0,
        None,
    ),
    "a header with one column too few": (
        "Core CPU Busy% PkgWatt\n- - 2.00 33.00 7\n0 0 2.00 33.00 7\n",
        REFUSED,
        REFUSED,
        REFUSED,
    ),
    "cells that run together": (
        "Core CPU Busy% IRQ PkgWatt\n- - 2.00 123456789 33.00\n- - 2.0012345678933.00\n",
        REFUSED,
        REFUSED,
        REFUSED,
    ),
    "output of the command around the table": (
        "5 rows\ta\tb\tc\nTime: 12.5\n"
        + COMMAND
        + "4.000000 sec\n"
        + tab("CPU Busy% PkgWatt\n- 7.00 11.00\n0 7.00 11.00")
        + "Requests/sec: 4\n",
        7.0,
        11.0,
        44.0,
    ),
    "two commands in one file": (
        2 * (COMMAND + tab("CPU Busy% PkgWatt\n- 7.00 10.00\n0 7.00 10.00") + "4.000000 sec\n"),
        7.0,
        10.0,
        80.0,
    ),
    "tabs at the ends of lines": ("CPU\tBusy%\tPkgWatt\t\n-\t7.00\t11.00\t\n0\t7.00\t11.00\t\n", 7.0, 11.0, None),
    "a Busy% of a little above 100": (tab("CPU Busy% PkgWatt\n- 100.04 11.00\n0 100.04 11.00"), 100.0, 11.0, None),
    "an impossible Busy%": (tab("CPU Busy% PkgWatt\n- 4294967.00 11.00\n0 4294967.00 11.00"), None, 11.0, None),
    "a warning between tables": (PARTIAL + "turbostat: Counter reset detected\n" + PARTIAL, 10.0, 30.0, None),
    "tables of other columns": (PARTIAL + tab("CPU PkgWatt\n- 90.00\n0 90.00"), REFUSED, REFUSED, REFUSED),
    "a socket that goes offline": (
        two_sockets("Package Core CPU Busy% PkgWatt", "- - - 20.00 150.00", "0 0 0 10.00 90.00", "1 0 1 30.00 60.00")
        + two_sockets("Package Core CPU Busy% PkgWatt", "- - - 10.00 90.00", "0 0 0 10.00 90.00")
        + two_sockets("Package Core CPU Busy% PkgWatt", "- - - 20.00 150.00", "0 0 0 10.00 90.00", "1 0 1 30.00 60.00"),
        (20 + 10 + 20) / 3,
        None,
        None,
    ),
}


def c0_of(path: Path) -> Figure:
    try:
        return read_recording(path, None, source=None, elapsed_s=None, read_at="").window.c0_percent
    except DataError:
        return REFUSED


def energy_of(path: Path) -> tuple[Figure, Figure]:
    try:
        total = replay([path]).total
    except DataError:
        return REFUSED, REFUSED
    return total.watts, total.joules


@pytest.mark.parametrize("name", CASES)
def test_figures_of_a_log(tmp_path: Path, name: str) -> None:
    text, c0, watts, joules = CASES[name]
    path = tmp_path / "turbostat.txt"
    path.write_text(text)

    def expect(figure: Figure) -> object:
        return pytest.approx(figure) if isinstance(figure, float) else figure

    assert c0_of(path) == expect(c0)
    assert energy_of(path) == (expect(watts), expect(joules))


@pytest.mark.parametrize(
    ("columns", "hz"), [("POLL C1 C6 POLL% C1% C6%", 7.0), ("C1 C6 C1% C6%", None), ("POLL C1 POLL% C1%", None)]
)
def test_wake_ups_need_every_state(tmp_path: Path, columns: str, hz: float | None) -> None:
    counts = {"POLL": "4", "C1": "8", "C6": "16", "POLL%": "0.10", "C1%": "9.00", "C6%": "80.00"}
    row = " ".join(counts[column] for column in columns.split())
    path = tmp_path / "turbostat.txt"
    path.write_text(BANNER + "4.000000 sec\n" + tab(f"CPU Busy% {columns}\n- 10.00 {row}\n0 10.00 {row}"))
    window = read_recording(path, None, source=None, elapsed_s=None, read_at="").window
    assert (window.c0_percent, window.wakeups_hz) == (10.0, hz)


@dataclass(frozen=True)
class Host:
    """A drawn host: watts of each package, and the shares of C0, C1 and C6 of each CPU in percent."""

    watts: tuple[float, ...]
    cpus: tuple[tuple[float, float, float], ...]

    def table(self, shown: Set[str], end_s: float) -> list[list[str]]:
        """The header and the rows of one table, with the columns that are shown."""
        per_package = len(self.cpus) // len(self.watts)
        mean = [sum(cpu[i] for cpu in self.cpus) / len(self.cpus) for i in range(3)]
        rows = [dict(zip(COLUMNS, COLUMNS, strict=True))]
        for number, cpu in enumerate([mean, *map(list, self.cpus)]):
            package, core = divmod(max(0, number - 1), per_package)
            ids = ("-", "-", "-") if number == 0 else (str(package), str(core), str(number - 1))
            count = len(self.cpus) if number == 0 else 1
            row = dict(zip(COLUMNS, [f"{end_s - 0.01 * number:.2f}", *ids, f"{cpu[0]:.2f}"], strict=False))
            row |= {"C1": str(10 * count), "C6": str(20 * count), "C1%": f"{cpu[1]:.2f}", "C6%": f"{cpu[2]:.2f}"}
            if number == 0 or core == 0:
                row["PkgWatt"] = f"{sum(self.watts) if number == 0 else self.watts[package]:.2f}"
            rows.append(row)
        kept = [[row[column] for column in COLUMNS if column in shown and column in row] for row in rows]
        return [row for row in kept if row]


COLUMNS = ("Time_Of_Day_Seconds", "Package", "Core", "CPU", "Busy%", "C1", "C6", "C1%", "C6%", "PkgWatt")
# A host may be idle, but two of its CPUs never have the same figures.
SHARES = st.tuples(st.floats(1, 40), st.floats(1, 30)).map(lambda s: (s[0], s[1], 100.0 - s[0] - s[1]))
HOSTS = st.integers(1, 2).flatmap(
    lambda packages: st.builds(
        Host,
        st.tuples(*[st.floats(10, 300) for _ in range(packages)]),
        st.integers(1, 3).flatmap(lambda cores: st.tuples(*[SHARES for _ in range(packages * cores)])),
    )
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    host=HOSTS,
    shown=st.sets(st.sampled_from(COLUMNS), min_size=1),
    has_tabs=st.booleans(),
    banner=st.sampled_from(["", BANNER]),
    tables=st.integers(1, 3),
)
def test_hidden_columns_give_the_true_figures_or_none(
    tmp_path: Path, host: Host, shown: Set[str], has_tabs: bool, banner: str, tables: int
) -> None:
    rows = [row for i in range(tables) for row in host.table(shown, 1000.0 + 5 * i)]
    path = tmp_path / "turbostat.txt"
    path.write_text(banner + "".join(("\t" if has_tabs else "   ").join(row) + "\n" for row in rows))
    c0 = c0_of(path)
    if "Busy%" in shown:
        assert c0 == pytest.approx(sum(cpu[0] for cpu in host.cpus) / len(host.cpus), abs=0.02)
    elif isinstance(c0, float):
        assert banner and {"C1%", "C6%"} <= shown
        assert c0 == pytest.approx(sum(cpu[0] for cpu in host.cpus) / len(host.cpus), abs=0.03)
    watts, joules = energy_of(path)
    if "PkgWatt" in shown:
        assert watts == pytest.approx(sum(host.watts), abs=0.02)
        has_times = "Time_Of_Day_Seconds" in shown and tables > 1
        assert joules == (pytest.approx(sum(host.watts) * 5 * (tables - 1), rel=0.01) if has_times else None)
    else:
        assert watts == REFUSED


# Four tables: the length of the first is unknown, two last 2 and 3 s, and 15 s are missing before the last one.
ODD_COLUMNS = "Time_Of_Day_Seconds Package Core CPU Busy% Bzy_MHz POLL C1 C6 POLL% C1% C6% CPU%c6 Pkg%pc6"
ODD_TIMES = (1000.0, 1002.0, 1005.0, 1025.0)
# Per table and CPU: Busy%, MHz, entries and percent of POLL, C1 and C6, CPU%c6, Pkg%pc6.
ODD_CPUS = (
    ((10.0, 1100, 3, 40, 500, 0.5, 9.0, 70.0, 60.0, 21.0), (14.0, 1300, 5, 60, 700, 0.7, 11.0, 66.0, 52.0, 21.0)),
    ((20.0, 1500, 2, 30, 300, 0.3, 8.0, 60.0, 50.0, 17.0), (30.0, 1900, 4, 10, 900, 0.9, 2.0, 50.0, 40.0, 17.0)),
    ((31.0, 2000, 9, 70, 210, 1.1, 6.0, 40.0, 33.0, 13.0), (45.0, 2600, 1, 20, 330, 0.1, 4.0, 30.0, 27.0, 13.0)),
    ((60.0, 3000, 7, 90, 110, 2.1, 3.0, 20.0, 12.0, 4.0), (80.0, 3400, 6, 50, 130, 1.3, 5.0, 10.0, 6.0, 4.0)),
)


def odd_log(*, interval_s: float | None = None, hidden: str = "") -> TurbostatLog:
    tables = []
    keep = [n for n, column in enumerate(ODD_COLUMNS.split()) if column not in hidden.split()]
    for time_s, cpus in zip(ODD_TIMES, ODD_CPUS, strict=True):
        whole = [(a + b) / (1 if n in (2, 3, 4) else 2) for n, (a, b) in enumerate(zip(*cpus, strict=True))]
        rows = [[time_s, "-", "-", "-", *whole], *([time_s, 0, n, n, *cpu] for n, cpu in enumerate(cpus))]
        cells = [ODD_COLUMNS.split(), *rows]
        tables.append("".join("\t".join(str(row[n]) for n in keep) + "\n" for row in cells))
    banner = BANNER if interval_s is None else f"{BANNER}Measurement interval: {interval_s} s\n"
    return parse_turbostat(banner + "".join(tables), "odd.txt")


@pytest.mark.parametrize(("interval_s", "first_s", "last_s"), [(None, None, 3.0), (4.0, 4.0, 4.0)])
def test_means_are_weighted_by_the_length_of_each_table(
    interval_s: float | None, first_s: float | None, last_s: float
) -> None:
    window = make_turbostat_window(odd_log(interval_s=interval_s), "")
    # A table of unknown length counts as one of the usual length, 3 s.
    weights = [first_s or 3.0, 2.0, 3.0, last_s]

    def mean(column: int) -> float:
        return sum(w * (a[column] + b[column]) / 2 for w, (a, b) in zip(weights, ODD_CPUS, strict=True)) / sum(weights)

    assert (window.cpus, window.c0_percent) == (2, pytest.approx(mean(0)))
    assert (window.idle_percent, window.residual_percent) == (pytest.approx(100 - mean(0)), 0.0)
    assert window.frequency_mhz == pytest.approx(mean(1))
    assert window.window_s == (None if first_s is None else 4.0 + 2.0 + 3.0 + 4.0)
    known = range(1 if first_s is None else 0, 4)
    seconds = sum(weights[n] for n in known)
    total_hz = 0.0
    for number, (name, state) in enumerate(zip(("POLL", "C1", "C6"), window.states, strict=True)):
        entries_hz = sum(a[2 + number] + b[2 + number] for a, b in (ODD_CPUS[n] for n in known)) / seconds
        percent, total_hz = mean(5 + number), total_hz + entries_hz
        assert (state.name, state.entries_hz) == (name, pytest.approx(entries_hz))
        assert state.average_residency_ms == pytest.approx(percent / 100 * 2 * 1000 / entries_hz)
        assert state.residency_percent == pytest.approx(0.0 if name == "POLL" else percent)
        assert state.polling_percent == (pytest.approx(percent) if name == "POLL" else None)
    assert window.wakeups_hz == pytest.approx(total_hz)
    achieved = {(a.scope, a.name): a.residency_percent for a in window.achieved}
    assert achieved == pytest.approx(
        {("cpu", "Busy%"): mean(0), ("core", "CPU%c6"): mean(8), ("package", "Pkg%pc6"): mean(9)}
    )
    assert "1 of its tables follow a gap, in which nothing was metered" in window.notes


def test_without_busy_c0_is_what_all_states_leave() -> None:
    window = make_turbostat_window(odd_log(hidden="Busy%"), "")
    weights = (3.0, 2.0, 3.0, 3.0)
    idle = sum(w * (a[6] + b[6] + a[7] + b[7]) / 2 for w, (a, b) in zip(weights, ODD_CPUS, strict=True)) / 11
    assert (window.c0_percent, window.residual_percent) == (pytest.approx(100 - idle), 0.0)
    hidden = make_turbostat_window(odd_log(hidden="Busy% C6%"), "")
    assert (hidden.c0_percent, hidden.idle_percent, hidden.residual_percent) == (None, None, None)
    # With a state hidden the sum of the wake-ups is unknown.
    assert make_turbostat_window(odd_log(hidden="C1 C1%"), "").wakeups_hz is None


@pytest.mark.parametrize(
    ("whole", "parts", "is_one"),
    [(30.0, [10.0, 20.0], True), (15.0, [10.0, 20.0], True), (10.0, [10.0, 20.0], False), (900.0, [10.0, 20.0], False)],
)
def test_a_system_row_is_the_sum_or_the_mean(whole: float, parts: list[float], is_one: bool) -> None:
    assert is_sum_or_mean(whole, parts) is is_one


@pytest.mark.parametrize(("busy", "c0"), [(104.9, 100.0), (105.1, None), (-0.1, None)])
def test_a_busy_share_above_its_rounding_is_impossible(busy: float, c0: float | None) -> None:
    window = make_turbostat_window(parse_turbostat(tab(f"CPU Busy%\n- {busy}\n0 {busy}"), "x"), "")
    assert window.c0_percent == c0


def test_entries_of_a_table_that_lacks_a_row_are_unknown() -> None:
    """The row of CPU 1 has no cell of C1 in the second table: its count is not 0."""
    rows = ["- 9.00 30", "0 8.00 12", "1 10.00 18"]
    tables = [["CPU C1% C1", *rows], ["CPU C1% C1", "- 9.00 12", "0 8.00 12", "1 10.00"]]
    text = "".join(f"{BANNER if not n else ''}{tab(chr(10).join(table))}" for n, table in enumerate(tables))
    log = parse_turbostat("Measurement interval: 2.0 s\n".join(["turbostat version 1\n", text]), "x")
    whole, lost = (replace(log, intervals=log.intervals[:count]) for count in (1, 2))
    assert make_turbostat_window(whole, "").states[0].entries_hz == pytest.approx(15.0)
    assert make_turbostat_window(lost, "").states[0].entries_hz is None
