# SPDX-License-Identifier: Apache-2.0
"""IPMI as a meter: the whole server's power by its management controller, seconds old and rounded to watts.

One sample runs `ipmitool dcmi power reading` or `ipmi-dcmi`. A controller without DCMI may have sensors of the
server or of its power supplies: then one sample runs `ipmitool sensor reading`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from powerprof.energy.layouts import IPMI_SENSORS
from powerprof.energy.meters.meter import DomainEnergy, SampledMeter, UnusableMeterError, require_this_host
from powerprof.measure.energy_series import PowerSample, power_energy
from powerprof.model.records import Scope
from powerprof.system import program_search, programs
from powerprof.system.errors import CapabilityError, PowerprofError

_IPMI_INTERVAL_S = 5.0  # the controllers' sampling period (DCMI 1.5, 6.6.1)
_TIMEOUT_S = 10.0
# A slow controller needs half a minute for its list of sensors, which is read once.
_LIST_TIMEOUT_S = 60.0
# ipmitool's line, and FreeIPMI's and ipmiutil's.
_DCMI_POWER = re.compile(r"^\s*(?:Instantaneous power reading|Current Power)\s*:\s*(\d+)\s*Watts", re.I | re.M)
_DCMI_STATE = re.compile(r"^\s*(?:Power reading state is|Power Measurement)\s*:\s*(\w+)", re.I | re.M)
_NO_DCMI = re.compile(r"DCMI request failed", re.I)
# A line of `ipmitool sdr elist full`: NAME | NUMBER | STATE | ENTITY | READING.
_SENSOR = re.compile(r"^([^|\n]+?)\s*\|[^|\n]*\|[^|\n]*\|[^|\n]*\|([^|\n]*)$", re.M)
_ON = ("activated", "active")
# The kernel's names of the first controller.
DEVICES = (Path("/dev/ipmi0"), Path("/dev/ipmi/0"), Path("/dev/ipmidev/0"))


def find_server_watts(text: str) -> float | None:
    """Return the server's watts in a DCMI power reading. None without a valid reading."""
    power = _DCMI_POWER.search(text)
    # A running server draws some power: 0 stands for no reading.
    return float(power[1]) or None if power and _find_state(text) in _ON else None


def _find_state(text: str) -> str:
    state = _DCMI_STATE.search(text)
    return "activated" if state is None else state[1].lower()


def choose_sensors(text: str) -> tuple[Scope, list[str], str | None]:
    """Return the scope and the names of the power sensors in a list of sensors, and a reason for no total.

    A sensor of the whole server is preferred to those of its power supplies. No names: no known sensor.
    """
    readings = {match[1]: match[2].strip() for match in _SENSOR.finditer(text)}
    for scope, pattern in IPMI_SENSORS:
        names = [name for name in readings if re.fullmatch(pattern, name, re.I)]
        with_watts = [name for name in names if readings[name].endswith("Watts")]
        if not with_watts:
            continue
        if scope == "server" and len(with_watts) > 1:
            return scope, with_watts, f"{len(with_watts)} sensors each measure the server ({', '.join(with_watts)})"
        silent = [name for name in names if name not in with_watts]
        return scope, with_watts, f"{silent[0]} has no reading" if silent and scope == "supply" else None
    return "server", [], None


def parse_sensors(text: str) -> dict[str, float]:
    """Return the figures of `ipmitool sensor reading`: lines of NAME | FIGURE."""
    return {
        name.strip(): float(figure)
        for name, _, figure in (line.partition("|") for line in text.splitlines())
        if re.fullmatch(r"\s*\d{1,6}(\.\d+)?\s*", figure)
    }


class IpmiMeter(SampledMeter[PowerSample]):
    """The management controller of this host. One sample runs a program (about 50 ms)."""

    name = "ipmi"
    max_interval_s: float | None = _IPMI_INTERVAL_S

    def __init__(
        self,
        read: Callable[[], Mapping[str, float | None]],
        scope: Scope = "server",
        domains: Sequence[str] = ("server",),
        flaw: str | None = None,
    ) -> None:
        super().__init__(
            len(domains), ["ipmi: the controller's figures are seconds old and rounded: use windows of 30 s and more"]
        )
        self._read = read
        self._scope: Scope = scope
        self._domains = list(domains)
        self._flaw = flaw

    def sample(self, now_s: float) -> None:
        try:
            watts = self._read()
        except PowerprofError:
            watts = {}
        for domain, samples in zip(self._domains, self._samples, strict=True):
            samples.append(PowerSample(now_s, watts.get(domain)))

    def is_counting(self) -> bool | None:
        return any(s.watts for samples in self._samples for s in samples) if self._samples[0] else None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [
            DomainEnergy(
                domain, self._scope, power_energy(samples, start_s, end_s, 3 * _IPMI_INTERVAL_S), None, self._flaw
            )
            for domain, samples in zip(self._domains, self._samples, strict=True)
        ]


def _find_dcmi_command() -> list[str | Path]:
    """Return the command of a DCMI power reading. Raise CapabilityError without a program or a controller for it."""
    device = next((path for path in DEVICES if path.exists()), None)
    has_ipmitool = program_search.which("ipmitool") is not None
    # FreeIPMI has its own drivers.
    if program_search.which("ipmi-dcmi") is not None and not (has_ipmitool and device):
        return [program_search.need("ipmi-dcmi", "freeipmi-tools"), "--get-system-power-statistics"]
    if device is None:
        raise CapabilityError("ipmi: the kernel knows no management controller", "modprobe ipmi_devintf ipmi_si")
    if not has_ipmitool:
        raise UnusableMeterError(f"ipmi: {device} is there, and ipmitool is not installed", "apt install ipmitool")
    return [program_search.need("ipmitool", "ipmitool"), "dcmi", "power", "reading"]


def open_ipmi() -> IpmiMeter:
    """Open the management controller. Raise CapabilityError without a program, the device or a reading."""
    require_this_host("ipmi: it reads the running machine")
    command = _find_dcmi_command()

    def read() -> str:
        return programs.run(command, timeout_s=_TIMEOUT_S).stdout

    try:
        text = read()
    except PowerprofError as error:
        if _NO_DCMI.search(error.message):
            return _open_sensors(Path(command[0]), error.message)
        raise UnusableMeterError(
            f"ipmi: no management controller answers ({error.message})", "modprobe ipmi_devintf ipmi_si; run as root"
        ) from error
    if (state := _find_state(text)) not in _ON:
        raise UnusableMeterError(
            f"ipmi: the controller's power reading is {state}", "ipmitool dcmi power activate, or another meter"
        )
    if find_server_watts(text) is None:
        raise CapabilityError("ipmi: the controller reports no power (0 W)", "use another meter (--meter FILE)")
    return IpmiMeter(lambda: {"server": find_server_watts(read())})


@cache
def _list_sensors(program: Path) -> str | PowerprofError:
    """Return the list of sensors, or the error. A slow controller is asked once."""
    try:
        return programs.run([program, "sdr", "elist", "full"], timeout_s=_LIST_TIMEOUT_S).stdout
    except PowerprofError as error:
        return error


def _open_sensors(program: Path, refusal: str) -> IpmiMeter:
    """Open the power sensors of a controller without DCMI. Raise UnusableMeterError without a known sensor."""
    sensors = _list_sensors(program)
    if isinstance(sensors, PowerprofError):
        raise UnusableMeterError(
            f"ipmi: the controller has no DCMI power reading, and its sensors cannot be listed ({sensors.message})",
            "ipmitool sdr elist full",
        )
    scope, names, flaw = choose_sensors(sensors)
    if not names:
        raise UnusableMeterError(
            f"ipmi: the controller has no DCMI power reading ({refusal}), and no power sensor of a known name",
            "write its power to a CSV log with the columns time,watts and add --meter FILE",
        )
    command: list[str | Path] = [program, "sensor", "reading", *names]
    domains = {name: "server" if scope == "server" and len(names) == 1 else f"supply {name}" for name in names}

    def read() -> dict[str, float | None]:
        figures = parse_sensors(programs.run(command, timeout_s=_TIMEOUT_S).stdout)
        return {domain: figures.get(name) for name, domain in domains.items()}

    return IpmiMeter(read, scope, list(domains.values()), flaw)
