# SPDX-License-Identifier: Apache-2.0
"""Recorded meters through the live code: layouts, time axes, containment, nothing twice."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.energy.recordings import parse_powercap, replay
from powerprof.measure.turbostat import parse_turbostat
from powerprof.report.energy import answer_of
from powerprof.system.errors import DataError, UsageError

ROOT = "/sys/class/powercap"


def bars(package: int, core: int, *, ranges: bool = True) -> str:
    top = f"{ROOT}/intel-rapl:0/max_energy_range_uj|262143328850\n" if ranges else ""
    return (
        f"{ROOT}/intel-rapl/enabled|1\n{ROOT}/intel-rapl:0/constraint_0_name|long_term\n"
        f"{ROOT}/intel-rapl:0/name|package-0\n{ROOT}/intel-rapl:0/energy_uj|{package}\n{top}"
        f"{ROOT}/intel-rapl:0:0/name|core\n{ROOT}/intel-rapl:0:0/energy_uj|{core}\n"
        f"{ROOT}/intel-rapl:0:0/max_energy_range_uj|262143328850\n"
    )


def blocks(package: int) -> str:
    return (
        f"{ROOT}/intel-rapl:0/name:\npackage-0\n\n{ROOT}/intel-rapl:0/energy_uj:\n{package}\n\n"
        f"{ROOT}/intel-rapl:0/max_energy_range_uj:\n262143328850\n\n"
    )


def grep(package: int) -> str:
    return (
        f"{ROOT}/intel-rapl:0/name:package-0\n{ROOT}/intel-rapl:0/energy_uj:{package}\n"
        f"{ROOT}/intel-rapl:0/max_energy_range_uj:262143328850\n"
    )


def save(folder: Path, *texts: str) -> list[Path]:
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.txt"
        path.write_text(text)
        paths.append(path)
    return paths


def test_powercap_dumps_in_series(tmp_path: Path) -> None:
    files = save(tmp_path, bars(262_143_000_000, 0), bars(671_149, 500_000), bars(5_671_149, 600_000))
    result = replay(files, 2.0)
    assert result.window_s == 4.0
    by_name = {r.domain: r for r in result.meters}
    # 328,851 units to the wrap and 671,149 after it, then 5 J.
    assert by_name["package-0"].joules == 6.0
    assert by_name["package-0"].watts == 1.5
    assert by_name["core"].joules == pytest.approx(0.6)
    assert by_name["core"].contained_in == "package-0"
    assert result.total.domains == ["package-0"]
    assert result.total.joules == 6.0


def test_dumps_one_after_the_other_in_one_file() -> None:
    assert len(parse_powercap(grep(1) + grep(2) + grep(3), "dump")) == 3


def test_an_unreadable_range_drops_the_samples(tmp_path: Path) -> None:
    result = replay(save(tmp_path, bars(0, 0, ranges=False), bars(9, 1_000_000, ranges=False)), 1.0)
    package = next(r for r in result.meters if r.domain == "package-0")
    assert package.joules is None
    assert package.dropped_samples_count == 2
    assert result.total.joules is None
    assert any("wrap point cannot be read" in note for note in result.notes)


def test_a_package_missing_in_a_dump_is_marked(tmp_path: Path) -> None:
    second = bars(0, 0).replace("intel-rapl:0", "intel-rapl:1").replace("package-0", "package-1")
    moved = bars(1_000_000, 0).replace("intel-rapl:0", "intel-rapl:1").replace("package-0", "package-1")
    files = save(tmp_path, bars(0, 0) + second, bars(1_000_000, 0), bars(2_000_000, 0) + moved)
    result = replay(files, 1.0)
    by_name = {r.domain: r.joules for r in result.meters}
    assert by_name["package-0"] == 2.0
    assert by_name["package-1"] is None
    assert result.total.joules is None
    assert any("package-1 went away" in note for note in result.notes)


@pytest.mark.parametrize(
    ("texts", "elapsed", "error", "reason"),
    [
        ((bars(0, 0),), 1.0, UsageError, "one powercap dump has no energy in it"),
        ((bars(0, 0), bars(1, 0)), None, UsageError, "powercap dumps carry no time"),
        (("time,watts\n1,2\n2,3\n",), 1.0, UsageError, "--elapsed is the time between powercap dumps"),
        (("nothing of use\n",), None, DataError, "not an energy recording"),
        ((bars(0, 0), bars(1, 0).replace("|1\n", "|x1\n")), 1.0, DataError, "is not a counter"),
        (
            (bars(0, 0), bars(1, 0).replace("|core", "|dram")),
            1.0,
            DataError,
            "intel-rapl:0:0 is dram here and core before",
        ),
        (("time,watts\n1,2\n2,3\n",) * 2, None, UsageError, "two wall meter logs"),
        (("Timestamp | 5\n" + grep(0), "Timestamp | 4\n" + grep(1)), None, DataError, "time does not advance"),
    ],
)
def test_contradictory_recordings_are_refused(
    tmp_path: Path, texts: tuple[str, ...], elapsed: float | None, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason.replace("(", r"\(")):
        replay(save(tmp_path, *texts), elapsed)


def test_without_a_common_time_each_has_its_own(tmp_path: Path) -> None:
    files = save(tmp_path, bars(0, 0), bars(10_000_000, 0), "time,watts\n1000,20\n1010,20\n")
    result = replay(files, 1.0)
    assert result.window_s is None
    assert {r.domain: r.watts for r in result.meters} == {"wall": 20.0, "package-0": 10.0, "core": None}
    assert any(note.startswith("no common time") for note in result.notes)


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 800), junk=st.text(max_size=6))
def test_no_damaged_dump_ends_in_a_traceback(place: int, junk: str) -> None:
    text = bars(5, 6) + grep(7) + blocks(8)
    try:
        parse_powercap(text[:place] + junk + text[place:], "dump")
    except DataError as error:
        assert error.message.startswith("dump")


@pytest.mark.parametrize("head", ["", "Core CPU Avg_MHz Busy% PkgWatt\n", "time,watts\n1,5\n", "time power\n"])
def test_a_line_of_millions_of_cells_is_not_split(tmp_path: Path, head: str) -> None:
    path = tmp_path / "log"
    path.write_text(head + "1 " * 2_000_000)
    with pytest.raises(DataError, match="a line of more than 1,048,576 characters"):
        replay([path])


def test_recorded_server_by_three_meters(recordings: Path) -> None:
    folder = recordings / "genoa0"
    result = replay([folder / name for name in ("turbostat.raw.txt", "ipmi-inband.raw.txt", "acpower.raw.txt")])
    assert result.window_s is not None
    assert 110 < result.window_s < 113
    readings = {r.domain: r for r in result.meters}
    assert {name: r.contained_in for name, r in readings.items()} == {
        "wall": None,
        "server": "wall",
        "package-0": "server",
        "package-1": "server",
        "package-0/core": "package-0",
        "package-1/core": "package-1",
    }
    # The log's own figure is its summary row's PkgWatt, over the intervals within the window.
    log = parse_turbostat((folder / "turbostat.raw.txt").read_text(), folder / "turbostat.raw.txt")
    rows = [i.system.values["PkgWatt"] for i in log.intervals[1:] if i.system]
    packages = (readings["package-0"].watts or 0) + (readings["package-1"].watts or 0)
    assert packages == pytest.approx(sum(rows) / len(rows), rel=0.005)
    assert result.total.domains == ["wall"]
    assert result.total.joules == readings["wall"].joules
    gap = (readings["wall"].watts or 0) - packages
    assert f"package-0 + package-1 (turbostat) {packages:.1f} W inside wall (meter_log) " in "\n".join(result.notes)
    assert f"{gap:.1f} W outside" in "\n".join(result.notes)
    assert 80 < gap < 110
    assert "289.7 W over 111.5 s, measured: wall by meter_log." in answer_of(result)


def test_recorded_mmio_duplicate(recordings: Path, tmp_path: Path) -> None:
    before = (recordings / "sysfs-trees/kepler-powercap-mmio.txt").read_text()
    after = before.replace("|240422366267", "|240425366267").replace("|118821284256", "|118822284256")
    result = replay(save(tmp_path, before, after), 3.0)
    assert {r.domain: r.joules for r in result.meters} == {"package-0": 3.0, "package-10": 3.0, "core": 1.0}
    assert any("intel-rapl-mmio:0 (package-0) repeats intel-rapl:0" in note for note in result.notes)


def test_recorded_damaged_log_is_refused(recordings: Path) -> None:
    with pytest.raises(DataError, match=r"turbostat\.raw\.txt:64: damaged table header"):
        replay([recordings / "corrupted/turbostat.raw.txt"])


IPMI = "".join(f"Timestamp | {1000 + 10 * i}\nPwr Consumption | {{}} Watts | ok\n" for i in range(6))


def turbostat(begin: int, watts: float, *, joules: bool = False, skip: tuple[int, ...] = ()) -> str:
    """Tables of one package and two CPUs every 5 s from `begin`."""
    column, value = ("Pkg_J", 5 * watts) if joules else ("PkgWatt", watts)
    header = f"Time_Of_Day_Seconds\tPackage\tCore\tCPU\tBusy%\t{column}\n"
    tables = [
        header
        + f"{begin + 5 * i}.0\t-\t-\t-\t1.0\t{value}\n"
        + f"{begin + 5 * i}.0\t0\t0\t0\t1.0\t{value}\n"
        + f"{begin + 5 * i}.0\t0\t1\t1\t1.0\n"
        for i in range(8)
        if i not in skip
    ]
    return "".join(tables)


def test_two_logs_of_one_controller_count_once(tmp_path: Path) -> None:
    in_band, out_of_band = save(tmp_path, IPMI.replace("{}", "300"), IPMI.replace("{}", "304"))
    result = replay([in_band, out_of_band])
    assert result.total.watts == pytest.approx(300.0)
    assert f"{out_of_band} repeats {in_band} (304.0 and 300.0 W) and is not counted" in result.notes


def test_the_same_log_twice_is_read_once(tmp_path: Path) -> None:
    result = replay(save(tmp_path, *[IPMI.replace("{}", "300")] * 2))
    assert result.total.watts == pytest.approx(300.0)
    assert any("is the same as" in note for note in result.notes)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ((IPMI.replace("{}", "300"), IPMI.replace("{}", "200")), "differ .300.0 W, 200.0 W.: two machines"),
        ((turbostat(1000, 100.0), turbostat(5000, 100.0)), "of different times"),
        ((turbostat(1000, 100.0), turbostat(1000, 50.0)), "two machines"),
    ],
)
def test_two_machines_and_two_times_have_no_sum(tmp_path: Path, texts: tuple[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        replay(save(tmp_path, *texts))
    assert "powerprof energy --from" in str(caught.value.hint)


def test_turbostat_in_joules(tmp_path: Path) -> None:
    watts = replay(save(tmp_path, turbostat(1000, 40.0)))
    joules = replay(save(tmp_path, turbostat(1000, 40.0, joules=True)))
    assert watts.total.watts == pytest.approx(40.0)
    assert joules.total.joules == pytest.approx(watts.total.joules)


def test_a_gap_in_a_turbostat_log_is_not_metered_time(tmp_path: Path) -> None:
    result = replay(save(tmp_path, turbostat(1000, 40.0, skip=(3, 4))))
    assert result.total.watts == pytest.approx(40.0)
    assert any("1 of its tables follow a gap" in note for note in result.notes)
    assert any("10.0 s between its samples are not covered" in note for note in result.notes)


def test_a_turbostat_that_was_started_again_into_its_log(tmp_path: Path) -> None:
    banner = "turbostat version 2024.07.26 - Len Brown\nKernel command line: quiet\nCPUID(0): GenuineIntel\n"
    result = replay(save(tmp_path, banner + turbostat(1000, 40.0) + banner + turbostat(1100, 60.0)))
    assert result.total.watts == pytest.approx(50.0, rel=0.05)
    assert any("follow a gap" in note for note in result.notes)


def test_packed_logs_are_read_and_empty_ones_called_empty(tmp_path: Path) -> None:
    packed = tmp_path / "turbostat.txt.gz"
    packed.write_bytes(gzip.compress(turbostat(1000, 40.0).encode()))
    assert replay([packed]).total.watts == pytest.approx(40.0)
    with pytest.raises(DataError, match=r"0\.txt: empty"):
        replay(save(tmp_path, ""))
    packed.write_bytes(gzip.compress(turbostat(1000, 40.0).encode())[:-20])
    with pytest.raises(DataError, match="damaged gzip file"):
        replay([packed])


def test_an_unusable_file_does_not_void_the_others(tmp_path: Path) -> None:
    result = replay(save(tmp_path, "nothing of use\n", turbostat(1000, 40.0), ""))
    assert result.total.watts == pytest.approx(40.0)
    assert [note for note in result.notes if note.startswith("not used: ")] == [
        f"not used: {tmp_path}/0.txt: not an energy recording: "
        "neither turbostat, powercap, IPMI nor a wall meter's CSV",
        f"not used: {tmp_path / '2.txt'}: empty",
    ]
