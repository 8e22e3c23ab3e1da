# SPDX-License-Identifier: Apache-2.0
"""Recorded meters through the live code: time axes, containment, one of each meter, and files of other tools."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from powerprof.energy.replay import replay
from powerprof.measure.turbostat import parse_turbostat
from powerprof.report.energy import answer_of
from powerprof.system.errors import DataError, UsageError
from tests.programs.cpu_time import least_cpu_s

WALL = "time,watts\n1000,20\n1010,20\n"


def save(folder: Path, *texts: str) -> list[Path]:
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.txt"
        path.write_text(text)
        paths.append(path)
    return paths


@pytest.mark.parametrize(
    ("texts", "error", "reason"),
    [
        (("nothing of use\n",), DataError, "not an energy recording"),
        ((WALL, WALL), UsageError, "are both recordings of a wall meter: their sum has no meaning"),
    ],
)
def test_contradictory_recordings_are_refused(
    tmp_path: Path, texts: tuple[str, ...], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        replay(save(tmp_path, *texts))


def test_without_a_common_time_each_has_its_own(tmp_path: Path) -> None:
    result = replay(save(tmp_path, turbostat(5000, 10.0), WALL))
    assert result.window_s is None
    assert {r.domain: r.watts for r in result.meters} == {"wall": 20.0, "package-0": pytest.approx(10.0)}
    assert any(note.startswith("no common time") for note in result.notes)


DCMI = "    Instantaneous power reading:                   220 Watts\n"
OTHERS = {
    "ipmitool sdr": ("Pwr Consumption  | 98 Watts          | ok\n", "ipmitool"),
    "ipmitool sdr elist": ("Fan1  | 30h | ok | 7.1 | 6840 RPM\nPwr  | 77h | ok  |  7.1 | 98 Watts\n", "ipmitool"),
    "ipmitool sensor": ("PS1 Power In     | 132.000    | Watts      | ok    | na   | na | na\n", "ipmitool"),
    "ipmitool -c sdr": ("Pwr Consumption,98,Watts,ok\n", "ipmitool"),
    "ipmitool dcmi": (f"\n{DCMI}    IPMI timestamp:     Tue Jan 21 12:18:55 2025\n", "ipmitool"),
    "ipmitool with times": ("Timestamp | 1764000000.5\nFan1A     | 6840 RPM   | ok\n", "ipmitool"),
    "powercap by grep": ("/sys/class/powercap/intel-rapl:0/name:package-0\n", "powercap"),
    "powercap by tail": ("==> ./intel-rapl/intel-rapl:0/intel-rapl:0:0/energy_uj <==\n5\n", "powercap"),
    "powercap with bars": ("/sys/class/powercap/intel-rapl/enabled|1\nintel-rapl-mmio:0/energy_uj|7\n", "powercap"),
    "powercap with times": ("Timestamp | 1764000000\n/sys/class/powercap/intel-rapl:0/energy_uj|5\n", "powercap"),
    "a page of Scaphandre": ("# HELP scaph_self_cpu_usage CPU\nscaph_self_cpu_usage 5\n", "Scaphandre"),
    "perf stat": (
        " Performance counter stats for 'system wide':\n\n    152.30 Joules power/energy-pkg/\n\n"
        "   5.001 seconds time elapsed\n",
        "perf stat",
    ),
    "perf stat -x,": ("152.30,Joules,power/energy-pkg/,5001234567,100.00,,\n", "perf stat"),
    "perf stat -I": ("     1.001057 29.40 Joules power/energy-pkg/\n", "perf stat"),
    "sensors": (
        "power_meter-acpi-0\nAdapter: ACPI interface\npower1:       210.00 W  (interval =   1.00 s)\n",
        "lm-sensors",
    ),
    "sensors -u": ("amdgpu-pci-0300\nAdapter: PCI adapter\nslowPPT:\n  power1_average: 9.000\n", "lm-sensors"),
    "sensors -j": ('{\n   "power_meter-acpi-0":{\n      "Adapter": "ACPI interface",\n', "lm-sensors"),
    "Redfish": (
        '{"@odata.id": "/redfish/v1/Chassis/1/Power", "PowerControl": [{"PowerConsumedWatts": 210}]}',
        "Redfish",
    ),
    "ipmi-dcmi": ("Current Power                        : 164 Watts\n", "ipmi-dcmi"),
    "a page of node_exporter": (
        '# HELP node_rapl_package_joules_total Current RAPL value\nnode_rapl_package_joules_total{index="0"} 5\n',
        "exporter",
    ),
    "PowerTOP's CSV": ("PowerTOP Version;v2.14 ran at Fri\n * * *   Top 10 Power Consumers   * * *\n", "PowerTOP"),
    "PowerTOP's page": ("<!DOCTYPE html>\n<html><head><title>PowerTOP report</title></head></html>\n", "PowerTOP"),
}


@pytest.mark.parametrize("title", OTHERS)
def test_the_files_of_other_tools_are_named_with_a_remedy(tmp_path: Path, title: str) -> None:
    text, name = OTHERS[title]
    with pytest.raises(DataError, match=f"{name}.*, which --from does not read") as caught:
        replay(save(tmp_path, text))
    assert "powerprof energy" in str(caught.value.hint)
    assert "record a turbostat log: " in str(caught.value.hint) or "columns time,watts" in str(caught.value.hint)


def test_a_long_line_of_another_tool_takes_linear_time(tmp_path: Path) -> None:
    text = "intel-rapl" * 20_000 + "|" * 200_000 + "\n"
    (path,) = save(tmp_path, text)

    def read() -> None:
        with pytest.raises(DataError, match="not an energy recording"):
            replay([path])

    assert least_cpu_s(read, 1.0) < 1.0


@pytest.mark.parametrize("head", ["", "Core CPU Avg_MHz Busy% PkgWatt\n", "time,watts\n1,5\n", "time power\n"])
def test_a_line_of_millions_of_cells_is_not_split(tmp_path: Path, head: str) -> None:
    path = tmp_path / "log"
    path.write_text(head + "1 " * 2_000_000)
    with pytest.raises(DataError, match="a line of more than 1,048,576 characters"):
        replay([path])


def test_recorded_server_by_two_meters(recordings: Path) -> None:
    folder = recordings / "genoa0"
    result = replay([folder / name for name in ("turbostat.raw.txt", "acpower.raw.txt")])
    assert result.window_s is not None
    assert 114 < result.window_s < 116
    readings = {r.domain: r for r in result.meters}
    assert {name: r.contained_in for name, r in readings.items()} == {
        "wall": None,
        "package-0": "wall",
        "package-1": "wall",
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
    assert "290.4 W over 115.2 s, measured: wall by meter_log." in answer_of(result)


def test_recorded_damaged_log_is_refused(recordings: Path) -> None:
    with pytest.raises(DataError, match=r"turbostat\.raw\.txt:64: damaged table header"):
        replay([recordings / "corrupted/turbostat.raw.txt"])


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


def test_two_logs_of_one_meter_have_no_sum(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="both recordings of turbostat") as caught:
        replay(save(tmp_path, turbostat(1000, 100.0), turbostat(1000, 50.0)))
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
        f"not used: {tmp_path}/0.txt: not an energy recording: neither a turbostat log nor a wall meter's CSV",
        f"not used: {tmp_path / '2.txt'}: empty",
    ]
