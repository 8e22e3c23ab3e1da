# SPDX-License-Identifier: Apache-2.0
"""A total needs a recognised layout: hosts with doubled, missing, partial and moving meters, over ten seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from powerprof.energy.domains import EnergyResult, host_energy
from powerprof.energy.meters import open_meters
from powerprof.energy.recordings import replay
from powerprof.report.energy import render_csv, render_terminal
from powerprof.system.errors import CapabilityError, UsageError
from tests.unit.energy.meter_trees import RANGE_UJ, Tree

AMD_RANGE_UJ = 65_532_610_987
START_S, WINDOW_S = 100.0, 10
Files = Mapping[str, object]


@dataclass(frozen=True)
class Zone:
    """A powercap zone: its first value in µJ, its watts, and the µs between the first read and its own."""

    id: str
    name: str
    watts: float
    first_uj: int = 5_000_000
    range_uj: int = RANGE_UJ
    late_us: float = 0.0


@dataclass(frozen=True)
class Host:
    """A host: the truth in watts, whether a total is demanded, allowed or forbidden, and its files and events."""

    truth: float | None
    demand: str
    zones: tuple[Zone, ...] = ()
    files: Files = field(default_factory=dict)
    events: Mapping[int, Callable[[Tree], object]] = field(default_factory=dict)
    dies: Mapping[int, int] = field(default_factory=dict)
    vendor: str | None = None
    meter: str = "auto"

    def draw(self, tree: Tree) -> None:
        for zone in self.zones:
            tree.zone(zone.id, zone.name, zone.first_uj, zone.range_uj)
        for name, value in self.files.items():
            tree.write(name, value)
        cpu = 0
        for package, dies in self.dies.items():
            for die in range(dies):
                tree.write(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", package)
                tree.write(f"devices/system/cpu/cpu{cpu}/topology/die_id", die)
                cpu += 1

    def pass_time(self, tree: Tree, second: int) -> None:
        for zone in self.zones:
            file = tree.root / f"class/powercap/{zone.id}/energy_uj"
            if file.exists() and file.read_text().strip().isdigit():
                joules = zone.watts * (second + zone.late_us * 1e-6)
                tree.count(zone.id, (zone.first_uj + round(joules * 1e6)) % (zone.range_uj + 1))
        if second in self.events:
            self.events[second](tree)


def chip(number: int, name: str, **channels: float | str) -> dict[str, object]:
    """Return the files of a chip. `power1=100.0` is in watts, `power1_label="pin"` a label."""
    folder = f"class/hwmon/hwmon{number}"
    files: dict[str, object] = {f"{folder}/name": name}
    for key, value in channels.items():
        if isinstance(value, str):
            files[f"{folder}/{key}"] = value
        else:
            files[f"{folder}/{key}_{'average' if name == 'power_meter' else 'input'}"] = round(value * 1e6)
    return files


def supply(number: int, watts: float, name: str = "cffps2") -> dict[str, object]:
    return chip(number, name, power1=watts, power1_label="pin", power2=0.92 * watts, power2_label="pout1")


def battery(name: str, watts: float | None, status: str = "Discharging", **more: object) -> dict[str, object]:
    power = {} if watts is None else {"power_now": round(watts * 1e6)}
    values = {"type": "Battery", "status": status, "present": 1, **power, **more}
    return {f"class/power_supply/{name}/{key}": value for key, value in values.items()}


def write(files: Files) -> Callable[[Tree], object]:
    return lambda tree: [tree.write(name, value) for name, value in files.items()]


def remove(folder: str) -> Callable[[Tree], object]:
    def move(tree: Tree) -> None:
        (tree.root / folder).rename(tree.root / f"removed-{folder.replace('/', '-')}")

    return move


def both(*events: Callable[[Tree], object]) -> Callable[[Tree], object]:
    return lambda tree: [event(tree) for event in events]


def dies(
    count: int, watts: float, *, package: int = 0, late_us: float = 0.0, first_uj: int = 9_000_000
) -> tuple[Zone, ...]:
    """Return one counter of a socket, listed once per die."""
    return tuple(
        Zone(f"intel-rapl:{8 * package + n}", f"package-{package}-die-{n}", watts, first_uj, AMD_RANGE_UJ, n * late_us)
        for n in range(count)
    )


def socket(number: int, watts: float, first_uj: int = 0, *, control: str = "intel-rapl") -> Zone:
    return Zone(f"{control}:{number}", f"package-{number}", watts, first_uj or 7_000_000 + 31_000 * number)


AMD, INTEL = "AuthenticAMD", "GenuineIntel"
_POWER = "class/power_supply"
_OFF = {f"{_POWER}/AC/type": "Mains", f"{_POWER}/AC/online": 0}

# Counters that move alike.
MIRRORED = {
    "16 dies of one AMD counter": Host(210.0, "total", dies(16, 210.0), dies={0: 16}, vendor=AMD),
    "2 AMD sockets of 4 dies": Host(
        300.0,
        "total",
        (*dies(4, 180.0), *dies(4, 120.0, package=1, first_uj=77_000_000)),
        dies={0: 4, 1: 4},
        vendor=AMD,
    ),
    "Hygon, reads 0.4 ms apart": Host(95.0, "total", dies(4, 95.0, late_us=400), dies={0: 4}, vendor="HygonGenuine"),
    "3 dies of an unknown vendor": Host(61.0, "total", dies(3, 61.0)),
    "2 dies whose reads are 20 µs apart": Host(140.0, "total", dies(2, 140.0, late_us=20)),
    "2 dies whose reads are 1 ms apart": Host(140.0, "either", dies(2, 140.0, late_us=1000)),
    "one counter that wraps": Host(155.0, "total", dies(2, 155.0, first_uj=AMD_RANGE_UJ - 400_000_000)),
    "2 Intel dies that differ": Host(
        201.0,
        "total",
        (
            Zone("intel-rapl:0", "package-0-die-0", 100.0, 4_000_000),
            Zone("intel-rapl:1", "package-0-die-1", 101.0, 4_000_000),
        ),
        dies={0: 2},
        vendor=INTEL,
    ),
    "2 Intel dies of equal power and other starts": Host(
        200.0,
        "either",
        (
            Zone("intel-rapl:0", "package-0-die-0", 100.0, 4_000_000),
            Zone("intel-rapl:1", "package-0-die-1", 100.0, 5_000_000),
        ),
        dies={0: 2},
        vendor=INTEL,
    ),
    "2 Intel dies of equal power and starts far apart": Host(
        200.0,
        "total",
        (
            Zone("intel-rapl:0", "package-0-die-0", 100.0, 4_000_000),
            Zone("intel-rapl:1", "package-0-die-1", 100.0, 9_000_000),
        ),
        dies={0: 2},
        vendor=INTEL,
    ),
    "2 equal sockets": Host(
        240.0, "total", (socket(0, 120.0), socket(1, 120.0, 7_000_000)), dies={0: 1, 1: 1}, vendor=INTEL
    ),
    "2 nearly equal sockets without a topology": Host(240.1, "total", (socket(0, 120.0), socket(1, 120.1, 7_000_000))),
    "2 names of one counter without a topology": Host(
        120.0, "either", (socket(0, 120.0, 7_000_000), socket(1, 120.0, 7_000_000))
    ),
    "dram of mirrored dies": Host(
        180.0,
        "total",
        (
            *dies(2, 150.0),
            Zone("intel-rapl:0:0", "dram", 30.0, 2_000_000),
            Zone("intel-rapl:1:0", "dram", 30.0, 2_000_000),
        ),
    ),
}

# Channels that go or come.
MOVING = {
    "the third of 3 supplies pulled at 7 s": Host(
        450.0,
        "unknown",
        files={**supply(0, 150.0), **supply(1, 150.0), **supply(2, 150.0)},
        events={7: both(remove("class/hwmon/hwmon2"), write({**supply(0, 225.0), **supply(1, 225.0)}))},
    ),
    "a supply that does not answer for the last second": Host(
        300.0,
        "unknown",
        files={**supply(0, 150.0), **supply(1, 150.0)},
        events={10: write({"class/hwmon/hwmon1/power1_input": "ENXIO"})},
    ),
    "a supply plugged in at 2 s": Host(
        300.0, "unknown", files=supply(0, 300.0), events={2: write({**supply(0, 150.0), **supply(1, 150.0)})}
    ),
    "a supply pulled for 3 s": Host(
        300.0,
        "unknown",
        files={**supply(0, 150.0), **supply(1, 150.0)},
        events={
            4: write({"class/hwmon/hwmon1/power1_input": "ENXIO"}),
            7: write({"class/hwmon/hwmon1/power1_input": 150_000_000}),
        },
    ),
    "one failed reading of a supply": Host(
        300.0,
        "total",
        files={**supply(0, 150.0), **supply(1, 150.0)},
        events={
            4: write({"class/hwmon/hwmon1/power1_input": "EIO"}),
            5: write({"class/hwmon/hwmon1/power1_input": 150_000_000}),
        },
    ),
    "a second ACPI meter that appears": Host(
        250.0,
        "unknown",
        files=chip(0, "power_meter", power1=250.0),
        events={5: write(chip(1, "power_meter", power1=90.0))},
    ),
    "a card that appears": Host(
        250.0, "total", files=chip(0, "power_meter", power1=250.0), events={5: write(chip(1, "amdgpu", power1=90.0))}
    ),
    "a second battery taken out at 8 s": Host(
        14.0,
        "unknown",
        files={**battery("BAT0", 7.0), **battery("BAT1", 7.0), **_OFF},
        events={8: both(write(battery("BAT0", 14.0)), remove(f"{_POWER}/BAT1"))},
        meter="battery",
    ),
    "a second battery put in at 8 s": Host(
        14.0,
        "unknown",
        files={**battery("BAT0", 14.0), **_OFF},
        events={8: write({**battery("BAT0", 7.0), **battery("BAT1", 7.0)})},
        meter="battery",
    ),
    "a battery that rests is put in": Host(
        14.0, "total", files={**battery("BAT0", 14.0), **_OFF}, events={5: write(battery("BAT1", 0.0, "Full"))}
    ),
    "mains for the last two seconds": Host(
        14.0, "unknown", files={**battery("BAT0", 14.0), **_OFF}, events={9: write({f"{_POWER}/AC/online": 1})}
    ),
    "a package that comes online": Host(
        200.0, "unknown", (socket(0, 100.0),), events={5: lambda tree: tree.zone("intel-rapl:1", "package-1", 0)}
    ),
    "a psys that comes": Host(
        100.0, "total", (socket(0, 100.0),), events={5: lambda tree: tree.zone("intel-rapl:1", "psys", 0)}
    ),
    "an energy counter of a socket goes": Host(
        150.0,
        "unknown",
        files={
            "class/hwmon/hwmon0/name": "amd_energy",
            "class/hwmon/hwmon0/energy1_label": "Esocket0",
            "class/hwmon/hwmon0/energy1_input": 0,
        },
        events={
            3: write({"class/hwmon/hwmon0/energy1_input": 450_000_000}),
            6: remove("class/hwmon/hwmon0/energy1_input"),
        },
    ),
}

# Two channels of one role, and peers that are not understood.
PEERS = {
    "a POWER server of three System channels": Host(
        900.0,
        "either",
        files=chip(
            0,
            "ibmpowernv",
            power1=300.0,
            power1_label="System",
            power2=310.0,
            power2_label="System",
            power3=290.0,
            power3_label="System",
        ),
    ),
    "a POWER server with an unlabelled channel": Host(
        700.0, "either", files=chip(0, "ibmpowernv", power1=700.0, power1_label="System", power2=650.0)
    ),
    "an ACPI meter beside a POWER server's System": Host(
        None,
        "unknown",
        files={**chip(0, "ibmpowernv", power1=700.0, power1_label="System"), **chip(1, "power_meter", power1=300.0)},
    ),
    "a supply of two inputs": Host(
        310.0, "either", files=chip(0, "pfe1100", power1=150.0, power1_label="pin1", power2=160.0, power2_label="pin2")
    ),
    "a supply of three inputs and two outputs": Host(
        450.0,
        "either",
        files=chip(
            0,
            "crps185",
            power1=150.0,
            power1_label="pin1",
            power2=150.0,
            power2_label="pin2",
            power3=150.0,
            power3_label="pin3",
            power4=200.0,
            power4_label="pout1",
            power5=210.0,
            power5_label="pout2",
        ),
    ),
    "the second of 2 supplies without labels": Host(
        300.0, "either", files={**supply(0, 150.0), **chip(1, "dps920ab", power1=150.0, power2=138.0)}
    ),
    "a second supply of an unknown driver": Host(
        300.0, "either", files={**supply(0, 150.0), **chip(1, "acme_psu9", power1=150.0, power1_label="pin")}
    ),
    "a supply next to a hot-swap controller": Host(
        150.0, "total", files={**supply(0, 150.0), **chip(1, "adm1275", power1=120.0, power1_label="pin")}
    ),
    "Altra without its memory regulators": Host(
        110.0, "either", files=chip(0, "smpro_hwmon", power1=70.0, power2=30.0, power5=3.0)
    ),
    "X-Gene without its I/O": Host(42.0, "either", files=chip(0, "apm_xgene", power1=30.0, power1_label="CPU power")),
    "2 sockets, zenpower of one": Host(
        104.0,
        "either",
        files=chip(0, "zenpower", power1=40.0, power1_label="SVI2_P_Core", power2=12.0, power2_label="SVI2_P_SoC"),
        dies={0: 1, 1: 1},
    ),
    "4 sockets, package-2 has only power_uw": Host(
        None,
        "unknown",
        (socket(0, 50.0), socket(1, 51.0), socket(3, 53.0)),
        files={"class/powercap/intel-rapl:2/name": "package-2", "class/powercap/intel-rapl:2/power_uw": 52_000_000},
    ),
    "a package without a name": Host(
        None, "unknown", (socket(0, 50.0),), files={"class/powercap/intel-rapl:1/energy_uj": 5_000_000}
    ),
    "TPMI has one package more": Host(
        None,
        "unknown",
        (socket(0, 50.0), socket(0, 50.0, control="intel-rapl-tpmi"), socket(1, 60.0, control="intel-rapl-tpmi")),
    ),
    "MSR and MMIO agree": Host(50.0, "total", (socket(0, 50.0), socket(0, 50.0, control="intel-rapl-mmio"))),
    "package-1 alone": Host(None, "unknown", (socket(1, 50.0),)),
    "packages 0 and 2 of a topology that has them": Host(
        111.0, "total", (socket(0, 55.0), Zone("intel-rapl:1", "package-2", 56.0, 9_100_000)), dies={0: 1, 2: 1}
    ),
    "2 sockets, psys of one": Host(
        None, "unknown", (socket(0, 50.0), socket(1, 60.0), Zone("intel-rapl:2", "psys", 150.0)), dies={0: 1, 1: 1}
    ),
    "2 psys of one socket": Host(
        None,
        "unknown",
        (socket(0, 50.0), Zone("intel-rapl:2", "psys", 90.0), Zone("intel-rapl:3", "psys-1", 95.0)),
        dies={0: 1},
    ),
}

# A part, or a wrong unit, is not the whole.
PARTS = {
    **{
        f"an ACPI meter of {text}": Host(
            None, "unknown", files={**chip(0, "power_meter", power1=90.0), "class/hwmon/hwmon0/power1_oem_info": text}
        )
        for text in ("Module Power Socket 0", "SysIO Power Socket 1", "DIMM group A", "Blade 3 PSU input")
    },
    "an ACPI meter that names the system": Host(
        300.0,
        "total",
        files={**chip(0, "power_meter", power1=300.0), "class/hwmon/hwmon0/power1_oem_info": "System Power Meter"},
    ),
    "an ACPI meter with an empty description": Host(
        300.0, "total", files={**chip(0, "power_meter", power1=300.0), "class/hwmon/hwmon0/power1_oem_info": ""}
    ),
    "a Mac mini by its input": Host(
        9.0, "total", files=chip(0, "macsmc_hwmon", power1=9.0, power1_label="AC Input Power")
    ),
    "a MacBook that charges": Host(
        20.0,
        "either",
        files={
            **chip(0, "macsmc_hwmon", power1=60.0, power1_label="AC Input Power"),
            **battery("macsmc-battery", 40.0, "Charging"),
        },
    ),
    "one battery by ACPI and a gauge": Host(
        11.0,
        "total",
        files={
            **battery("BAT0", 11.0, serial_number="X81"),
            **battery("bq28z610-0", 11.1, serial_number="X81"),
            **_OFF,
        },
    ),
    "one battery by ACPI and a gauge without numbers": Host(
        11.0, "either", files={**battery("BAT0", 11.0), **battery("max17055", 11.0), **_OFF}
    ),
    "2 batteries of one bogus number": Host(
        19.0,
        "either",
        files={
            **battery("BAT0", 11.0, serial_number="12345", voltage_now=12_100_000),
            **battery("BAT1", 8.0, serial_number="12345", voltage_now=11_400_000),
            **_OFF,
        },
    ),
    "2 batteries numbered 0": Host(
        19.0,
        "total",
        files={**battery("BAT0", 11.0, serial_number="0000"), **battery("BAT1", 8.0, serial_number="0000"), **_OFF},
    ),
    "power_now in mW": Host(
        9.0, "either", files={**battery("BAT0", 0.009, current_now=750_000, voltage_now=12_000_000), **_OFF}
    ),
    "voltage_now in mV": Host(
        9.0, "either", files={**battery("BAT0", None, current_now=750_000, voltage_now=12_000), **_OFF}
    ),
    "power_now in nW": Host(
        9.0, "either", files={**battery("BAT0", 9000.0, current_now=750_000, voltage_now=12_000_000), **_OFF}
    ),
}

# Counters that may have wrapped unseen, and a bad meter before a good one.
WRAPS_AND_CHOICE = {
    "unreadable packages before an ACPI meter": Host(
        300.0,
        "total",
        (socket(0, 100.0),),
        files={
            "class/powercap/intel-rapl:1/name": "package-1",
            "class/powercap/intel-rapl:1/energy_uj": "EIO",
            **chip(0, "power_meter", power1=300.0),
        },
    ),
    "a core zone before two supplies": Host(
        300.0, "total", (Zone("intel-rapl:0", "core", 4.0),), files={**supply(0, 140.0), **supply(1, 160.0)}
    ),
    "2 ACPI meters before a battery": Host(
        13.0,
        "total",
        files={
            **chip(0, "power_meter", power1=9.0),
            **chip(1, "power_meter", power1=8.0),
            **battery("BAT0", 13.0),
            **_OFF,
        },
    ),
    "a named part before a battery": Host(
        13.0, "total", files={**chip(0, "ina226", power1=9.0), **battery("BAT0", 13.0), **_OFF}
    ),
}

HOSTS = {**MIRRORED, **MOVING, **PEERS, **PARTS, **WRAPS_AND_CHOICE}


def measure(host: Host, root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[float | None, list[str]]:
    """Return the total of a host over the window, and the notes."""
    tree = Tree(root)
    monkeypatch.setenv("POWERPROF_SYSFS", str(root))
    if host.vendor is not None:
        (root / "proc").mkdir(parents=True)
        (root / "proc/cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {host.vendor}\n")
        monkeypatch.setenv("POWERPROF_PROCFS", str(root / "proc"))
    host.draw(tree)
    try:
        opened = open_meters(host.meter)
    except CapabilityError as error:
        return None, [error.message]
    with opened as meters:
        meters.sample(START_S)
        for second in range(1, WINDOW_S + 1):
            host.pass_time(tree, second)
            meters.sample(START_S + second)
        readings = meters.readings(START_S, START_S + WINDOW_S)
        return host_energy(readings).watts, [*meters.notes(), meters.why]


@pytest.mark.parametrize("name", HOSTS)
def test_a_total_is_right_or_unknown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = HOSTS[name]
    watts, notes = measure(host, tmp_path, monkeypatch)
    if host.demand == "total" or watts is not None:
        assert host.demand != "unknown", (watts, notes)
        assert watts == pytest.approx(host.truth, rel=2e-3), notes
    else:
        assert notes


def test_a_battery_without_a_current_has_its_true_reason(tree: Tree) -> None:
    for name, value in {**battery("BAT0", None, voltage_now=11_140_000, charge_now=3_850_000), **_OFF}.items():
        tree.write(name, value)
    with pytest.raises(CapabilityError) as caught:
        open_meters("battery")
    assert caught.value.message == "battery: BAT0 has neither power_now nor current_now"


def test_a_dump_of_two_dies_of_one_counter_is_counted_once(tmp_path: Path) -> None:
    file = tmp_path / "threadripper.txt"
    lines = []
    for second, (first, second_die) in {0: (33_040, 33_040), 10: (33_720, 33_720), 20: (34_400, 34_400.0009)}.items():
        lines.append(f"Timestamp | {1_764_000_000 + second}")
        for die, joules in enumerate((first, second_die)):
            folder = f"/sys/class/powercap/intel-rapl/intel-rapl:{die}"
            lines += [
                f"{folder}/name|package-0-die-{die}",
                f"{folder}/energy_uj|{round(joules * 1e6)}",
                f"{folder}/max_energy_range_uj|{AMD_RANGE_UJ}",
            ]
    file.write_text("\n".join(lines) + "\n")
    result = replay([file])
    assert result.total.watts == pytest.approx(68.0)
    assert result.total.domains == ["package-0"]


def test_the_user_may_name_the_domains_of_the_machine(tree: Tree) -> None:
    for name, value in {**chip(0, "power_meter", power1=200.0), **chip(1, "power_meter", power1=150.0)}.items():
        tree.write(name, value)

    def total_of(choice: str) -> float | None:
        with open_meters(choice) as meters:
            meters.sample(START_S)
            meters.sample(START_S + 2)
            return host_energy(meters.readings(START_S, START_S + 2)).watts

    assert total_of("auto") is None
    assert total_of("hwmon") is None
    assert total_of("hwmon:hwmon1/server") == pytest.approx(150.0)
    assert total_of("hwmon:hwmon0/server+hwmon1/server") == pytest.approx(350.0)
    with pytest.raises(CapabilityError, match="it has no domain 'server'") as caught:
        open_meters("hwmon:server")
    assert caught.value.hint == "it has hwmon0/server, hwmon1/server"
    for choice in ("hwmon:", "auto:server", "none:x", "hwmon:a,hwmon:b"):
        with pytest.raises(UsageError):
            open_meters(choice)


def test_the_first_line_gives_the_reason_and_the_remedy(tree: Tree) -> None:
    for name, value in {**chip(0, "power_meter", power1=200.0), **chip(1, "power_meter", power1=150.0)}.items():
        tree.write(name, value)
    with open_meters("auto") as meters:
        meters.sample(START_S)
        meters.sample(START_S + 2)
        readings = meters.readings(START_S, START_S + 2)
        notes = [f"energy source: {meters.why}", *meters.notes()]
    result = EnergyResult(window_s=2.0, meters=readings, total=host_energy(readings), notes=notes)
    answer = " ".join(" ".join(render_terminal(result)).split())
    assert answer.startswith("The total is unknown over 2.0 s: 2 meters each measure a whole machine.")
    assert "--energy-source hwmon:DOMAIN+DOMAIN" in answer
    assert "no total:" not in answer
    assert [row[-2] for row in render_csv(result)][1:] == ["no", "no"]
    document = msgspec.to_builtins(result)
    assert (document["total"]["joules"], document["total"]["watts"]) == (None, None)
    assert document["total"]["reason"] == "2 meters each measure a whole machine"
