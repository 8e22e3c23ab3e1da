# SPDX-License-Identifier: Apache-2.0
"""The automatic choice on hosts with several meters: the meter that is chosen, or the reason against each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from powerprof.energy import choice
from powerprof.energy.choice import open_meters
from powerprof.energy.meters import ipmi
from powerprof.host.meter_probes import probe_meter
from powerprof.system import paths, program_search, programs
from tests.unit.energy.meter_trees import Tree
from tests.unit.host.test_meter_reasons import find_contradictions

_ROOT_ONLY = "<unreadable>"
_MASKED = "<dangling link>"
_DCMI = "#!/bin/sh\necho '    Instantaneous power reading:     {} Watts'\necho '    Power reading state is: {}'\n"
_TURBOSTAT = "#!/bin/sh\nprintf 'Package\\tCPU\\tPkgWatt\\n-\\t-\\t{0}\\n0\\t0\\t{0}\\n'\nexec sleep {1}\n"
_FREEIPMI = (
    "#!/bin/sh\necho 'Current Power                        : 164 Watts'\n"
    "echo 'Power Measurement                    : Active'\n"
)
_SENSORS = """#!/bin/sh
case "$1" in
dcmi) echo 'DCMI request failed because: Invalid command (c1)' >&2; exit 1 ;;
sdr) echo 'PS1_Power        | 52h | ok  | 10.1 | 132 Watts'; echo 'PS2_Power        | 53h | ok  | 10.2 | 160 Watts' ;;
sensor) echo 'PS1_Power        | 132'; echo 'PS2_Power        | 160' ;;
esac
"""
_REFUSED = "#!/bin/sh\n[ $1 = sdr ] && exit 0\necho 'DCMI request failed because: Invalid command (c1)' >&2\nexit 1\n"
_CLOSED = (
    "#!/bin/sh\necho 'Could not open device at /dev/ipmi0 or /dev/ipmi/0 or /dev/ipmidev/0: Permission denied' >&2\n"
    "exit 1\n"
)


@dataclass(frozen=True)
class Host:
    """Files below /sys, programs, and the right choice. `moving`: zones whose counters count.

    `chosen`: the source; None for no meter. `reasons`: parts of the printed sentence. `never`: false reasons.
    """

    name: str
    chosen: str | None
    files: Mapping[str, str | int] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    moving: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def _zone(
    number: int, name: str, energy: str | int = 5_000_000, limit: int | None = 262_143_328_850
) -> dict[str, str | int]:
    folder = f"class/powercap/intel-rapl:{number}"
    made: dict[str, str | int] = {f"{folder}/name": name, f"{folder}/energy_uj": energy}
    return made if limit is None else {**made, f"{folder}/max_energy_range_uj": limit}


def _chip(number: int, name: str, **values: str | int) -> dict[str, str | int]:
    return {f"class/hwmon/hwmon{number}/{file}": value for file, value in {"name": name, **values}.items()}


def _battery(status: str, **values: str | int) -> dict[str, str | int]:
    all_values = {"type": "Battery", "status": status, "present": 1, **values}
    return {f"class/power_supply/BAT0/{file}": value for file, value in all_values.items()}


def _mains(online: int) -> dict[str, str | int]:
    return {"class/power_supply/AC/type": "Mains", "class/power_supply/AC/online": online}


def _sockets(count: int) -> dict[str, str | int]:
    cpu = "devices/system/cpu/cpu{}/topology/physical_package_id"
    return {"devices/system/cpu/online": f"0-{count - 1}"} | {cpu.format(n): n for n in range(count)}


_ZONE = "intel-rapl:0"
_SERVER = _chip(0, "power_meter", power1_average=210_000_000)
_TWO_METERS = {**_SERVER, **_chip(1, "power_meter", power1_average=150_000_000)}
_BMC = {"ipmitool": _DCMI.format(220, "activated")}
HOSTS = [
    Host("RAPL, an ACPI meter and a controller", "rapl", {**_zone(0, "package-0"), **_SERVER}, _BMC, (_ZONE,)),
    Host(
        "RAPL for root only, an ACPI meter",
        "hwmon",
        {**_zone(0, "package-0", _ROOT_ONLY), **_SERVER},
        reasons=("only root may",),
    ),
    Host(
        "RAPL that stands still, a controller",
        "ipmi",
        _zone(0, "package-0"),
        _BMC,
        reasons=("rapl: present but does not count",),
    ),
    Host(
        "RAPL of one of two sockets, a controller",
        "ipmi",
        {**_zone(0, "package-0"), **_sockets(2)},
        _BMC,
        (_ZONE,),
        reasons=("rapl: ", "package-1"),
    ),
    Host(
        "RAPL of one of two sockets, two ACPI meters",
        "rapl",
        {**_zone(0, "package-0"), **_sockets(2), **_TWO_METERS},
        moving=(_ZONE,),
        reasons=("which has no total", "no better meter"),
    ),
    Host("two ACPI meters, a controller", "ipmi", _TWO_METERS, _BMC, reasons=("hwmon: 2 meters",)),
    Host(
        "a controller that answers too slowly",
        None,
        programs={"ipmitool": "#!/bin/sh\nexec sleep 20\n"},
        reasons=("ipmi: ", "did not finish in"),
    ),
    Host("a controller without DCMI and with sensors of its supplies", "ipmi", programs={"ipmitool": _SENSORS}),
    Host("FreeIPMI's program alone", "ipmi", programs={"ipmi-dcmi": _FREEIPMI}),
    Host(
        "a controller without DCMI and with unknown sensors",
        None,
        programs={"ipmitool": _REFUSED},
        reasons=("ipmi: the controller has no DCMI power reading", "a CSV log", "--meter FILE"),
        never=("no management controller answers",),
    ),
    Host(
        "a controller for root only, a battery on mains",
        None,
        {**_battery("Full", power_now=0), **_mains(1)},
        {"ipmitool": _CLOSED},
        reasons=("Permission denied", "run as root", "battery: the mains feed this machine too (AC)"),
    ),
    Host(
        "a controller whose reading is off",
        None,
        programs={"ipmitool": _DCMI.format(0, "deactivated")},
        reasons=("power reading is deactivated", "ipmitool dcmi power activate"),
    ),
    Host("a controller that reads 0 W", None, programs={"ipmitool": _DCMI.format(0, "activated")}, reasons=("0 W",)),
    Host(
        "an ACPI meter that cannot be read, a controller",
        "ipmi",
        _chip(0, "power_meter", power1_average=_ROOT_ONLY),
        _BMC,
        reasons=("hwmon: server cannot be read",),
        never=("reads 0",),
    ),
    Host(
        "RAPL without its range, a controller",
        "ipmi",
        _zone(0, "package-0", limit=None),
        _BMC,
        (_ZONE,),
        reasons=("rapl: ", "wrap point"),
        never=("reads 0",),
    ),
    Host(
        "a container with a masked RAPL",
        None,
        {"class/powercap/intel-rapl": _MASKED, f"class/powercap/{_ZONE}": _MASKED},
        reasons=("rapl: ", "container", "run powerprof on the host"),
        never=("a virtual machine, or the driver",),
    ),
    Host("a container that sees the host's RAPL", "rapl", _zone(0, "package-0"), moving=(_ZONE,)),
    Host(
        "a laptop on mains, its battery at 0 W, RAPL for root only",
        None,
        {**_zone(0, "package-0", _ROOT_ONLY), **_battery("Not charging", power_now=0), **_mains(1)},
        reasons=("only root may", "run as root", "the mains feed"),
    ),
    Host(
        "a laptop on mains, its battery at 0 W, RAPL",
        "rapl",
        {**_zone(0, "package-0"), **_battery("Not charging", power_now=0), **_mains(1)},
        moving=(_ZONE,),
    ),
    Host(
        "a laptop on its battery, RAPL for root only",
        "battery",
        {**_zone(0, "package-0", _ROOT_ONLY), **_battery("Discharging", power_now=9_000_000), **_mains(0)},
        reasons=("only root may",),
    ),
    Host(
        "a battery that discharges and cannot be read, a controller",
        "ipmi",
        {**_battery("Discharging", power_now=_ROOT_ONLY), **_mains(0)},
        _BMC,
        reasons=("battery: BAT0",),
        never=("not discharging",),
    ),
    Host("turbostat without powercap", "turbostat", programs={"turbostat": _TURBOSTAT.format("40.0", 0), **_BMC}),
    Host(
        "turbostat without watts, an ACPI meter",
        "hwmon",
        _SERVER,
        {"turbostat": _TURBOSTAT.format("0.00", 0)},
        reasons=("shows no watts",),
    ),
    Host(
        "a card and a disk alone",
        None,
        {**_chip(0, "amdgpu", power1_average=30_000_000), **_chip(1, "nvme", power1_average=3_000_000)},
        reasons=("hwmon: no chip", "the kernel knows no management controller"),
    ),
]


class _Machine:
    """A machine whose CPU's work moves the counters of its zones."""

    def __init__(self, tree: Tree, host: Host) -> None:
        self._tree, self._host, self._microjoules = tree, host, 5_000_000
        for name, text in host.files.items():
            path = tree.root / name
            if text == _MASKED:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to("../../devices/virtual/powercap/masked")
            elif text == _ROOT_ONLY:
                path.mkdir(parents=True)
            else:
                tree.write(name, text)

    def work(self, numbers: object) -> None:
        self._microjoules += 100_000
        for zone in self._host.moving:
            self._tree.count(zone, self._microjoules)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder of programs, on a machine that stands for this one."""
    made = tmp_path_factory.mktemp("programs")
    monkeypatch.setattr(program_search, "list_folders", lambda: [made])
    monkeypatch.setattr(programs, "only_root_writes", lambda path: None)
    monkeypatch.setattr(paths, "is_this_host", lambda: True)
    yield made


def start_host(host: Host, tree: Tree, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files and programs of a host, and let its counters move."""
    # Long enough for a busy host, whose scheduler can take some milliseconds of it.
    monkeypatch.setattr(choice, "_PROBE_S", 0.1)
    if any("sleep 20" in text for text in host.programs.values()):
        monkeypatch.setattr(ipmi, "_TIMEOUT_S", 0.3)
    machine = _Machine(tree, host)
    monkeypatch.setattr(choice, "sum", machine.work, raising=False)
    for name, text in host.programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if "ipmitool" in host.programs:
        monkeypatch.setattr(ipmi, "DEVICES", (folder / "ipmitool",))


@pytest.mark.parametrize("host", HOSTS, ids=[host.name for host in HOSTS])
def test_the_choice_is_the_best_meter_and_each_reason_is_true(
    host: Host, tree: Tree, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_host(host, tree, folder, monkeypatch)
    with open_meters("auto") as meters:
        assert meters.names == (() if host.chosen is None else (host.chosen,)), meters.why
        assert all(reason in meters.why for reason in host.reasons), meters.why
        assert not any(reason in meters.why for reason in host.never), meters.why


@pytest.mark.parametrize("host", HOSTS, ids=[host.name for host in HOSTS])
def test_programs_and_counters_of_this_host_have_one_reason(
    host: Host, tree: Tree, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_host(host, tree, folder, monkeypatch)
    assert not find_contradictions(host.name)


def test_a_list_of_sensors_that_fails_is_read_once(tree: Tree, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow controller takes a minute for it."""
    lines = folder / "lines"
    refused = "#!/bin/sh\n[ $1 = sdr ] && echo x >>{} && exit 1\necho 'DCMI request failed' >&2\nexit 1\n"
    host = Host("", None, programs={"ipmitool": refused.format(lines)})
    start_host(host, tree, folder, monkeypatch)
    assert not find_contradictions(host.name)
    assert "its sensors cannot be listed" in probe_meter("ipmi").detail
    assert lines.read_text() == "x\n"
