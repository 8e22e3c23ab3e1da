# SPDX-License-Identifier: Apache-2.0
"""IPMI: the whole server's power by its management controller, seconds old and rounded to watts.

Live readings come from `ipmitool dcmi power reading`. Recordings are series of its output, or of `ipmitool sdr`
listings, each after a line `Timestamp | EPOCH`. A sensor of the whole server is preferred to the sum of its power
supplies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from powerprof.energy.meter import DomainEnergy, SampledMeter, require_this_host
from powerprof.measure.counters import PowerSample, power_energy
from powerprof.measure.program_output import TIMESTAMP, median_step_s, numbered_lines, parse_epoch
from powerprof.system import programs
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.system.files import loader

_DCMI = "DCMI"
_INTERVAL_S = 5.0  # the controllers' sampling period (DCMI 1.5, 6.6.1)
_TIMEOUT_S = 10.0
_MAX_WATTS = 1e6
_LONGEST = 1024
_SDR_POWER = re.compile(r"([^|]+?)\s*\|\s*([\d.]+)\s*Watts\s*\|\s*(\w+)\s*", re.I)
_DCMI_POWER = re.compile(r"\s*Instantaneous power reading:\s*(\d+)\s*Watts", re.I)
_DCMI_STAMP = re.compile(r"\s*IPMI timestamp:\s*(.+?)\s*$", re.I)
_DCMI_STATE = re.compile(r"\s*Power reading state is:\s*(\w+)", re.I)
# ipmitool 1.8.19 prints the next field on the line of the time stamp.
_AFTER_STAMP = re.compile(r"\s+Sampling period:.*", re.I)
# Sensors of the whole server, as Supermicro, Dell, HPE, Lenovo, Fujitsu and Intel name them, the outermost first:
# Fujitsu's Total Power feeds its System Power. The whole name must match, since CPU_Total_Power and GPU Total Power are
# parts.
_WHOLE = [
    re.compile(pattern, re.I)
    for pattern in (
        r"(sys(tem)?[ _])?total[ _]?p(o?we)?r|p(w|wr|ower)[ _]consumption|power[ _]meter|power[ _]usage",
        r"system[ _]level|sys(tem)?[ _]?((ac[ _]|dc[ _])?input[ _])?power",
    )
]
# A sensor beyond a threshold still gives a reading (ipmitool's lib/ipmi_sdr.c).
_READ = ("ok", "nc", "cr", "nr", "lnc", "lcr", "lnr", "unc", "ucr", "unr")
_SUPPLY = re.compile(
    r"(ps|psu|power supply)[ _]*\d+[ _]+(p(wr|ower)?[ _]*in(put)?|(ac[ _])?input([ _]*p(o?we)?r)?)", re.I
)


@dataclass(frozen=True)
class IpmiLog:
    """Watts of the whole server at the epoch times of the listings, and the name of the sensor."""

    path: str
    samples: tuple[PowerSample, ...]
    sensor: str
    step_s: float
    notes: tuple[str, ...] = ()


def looks_like_ipmi(text: str) -> bool:
    """Return whether the text begins like an IPMI log."""
    head = text[:4096]
    return bool(re.search(r"^Timestamp\s*\|", head, re.M) or re.search(r"Instantaneous power reading:", head, re.I))


@loader
def parse_ipmi(text: str, path: Path | str) -> IpmiLog:
    """Return the log of a text. Raise DataError(path, reason, line) for a damaged time or a log without power."""
    samples: list[PowerSample] = []
    without_power = 0
    names: set[str] = set()
    for time_s, line_number, lines in _read_listings(text, path):
        watts, name = find_server_watts(lines)
        if watts is None:
            without_power += 1
            continue
        if watts > _MAX_WATTS:
            raise DataError(path, f"not a server's power: {watts:g} W", line_number)
        if samples and time_s <= samples[-1].time_s:
            raise DataError(path, "time does not advance", line_number)
        names.add(name)
        samples.append(PowerSample(time_s, watts))
    if not samples:
        raise DataError(path, "no power reading in it")
    if len(names) > 1:
        raise DataError(path, f"the power sensor changes within the log ({', '.join(sorted(names))})")
    notes = [f"{without_power} listings without a power reading were left out"] if without_power else []
    if names == {_DCMI} and not TIMESTAMP.search(text):
        notes.append("its times are the controller's own clock, taken as UTC")
    return IpmiLog(
        str(path), tuple(samples), names.pop(), median_step_s([sample.time_s for sample in samples]), tuple(notes)
    )


def find_server_watts(lines: list[str]) -> tuple[float | None, str]:
    """Return the server's watts in one listing and the name of the sensor; None without a valid reading."""
    supplies: dict[str, float] = {}
    sensors: dict[int, tuple[float, str]] = {}
    states = [state[1].lower() for line in lines if (state := _DCMI_STATE.match(line[:_LONGEST]))]
    for line in lines:
        dcmi = _DCMI_POWER.match(line[:_LONGEST])
        if dcmi:
            # A running server draws some power: 0 stands for no reading.
            is_valid = float(dcmi[1]) > 0 and all(state == "activated" for state in states)
            return (float(dcmi[1]), _DCMI) if is_valid else (None, "")
        match = _SDR_POWER.fullmatch(line[:_LONGEST])
        if match is None or match[3].lower() not in _READ:
            continue
        name, watts = match[1].strip(), float(match[2])
        rank = next((rank for rank, pattern in enumerate(_WHOLE) if pattern.fullmatch(name)), None)
        if rank is not None and watts:
            sensors.setdefault(rank, (watts, name))
        if _SUPPLY.fullmatch(name):
            supplies[name] = watts
    if sensors:
        return sensors[min(sensors)]
    if not any(supplies.values()):
        return None, ""
    return (sum(supplies.values()), " + ".join(sorted(supplies)))


def _read_listings(text: str, path: Path | str) -> Iterator[tuple[float, int, list[str]]]:
    """Yield the epoch time, the first line number and the lines of each listing."""
    time_s: float | None = None
    # The controller's clock dates a listing without a Timestamp line.
    controller: tuple[float, int] | None = None
    begin, lines = 1, list[str]()
    for number, line in numbered_lines(text, path, _LONGEST):
        stamp = TIMESTAMP.fullmatch(line)
        dcmi = None if stamp else _DCMI_STAMP.match(line)
        if stamp:
            if time_s is not None:
                yield time_s, begin, lines
            time_s, begin, lines = parse_epoch(stamp[1], path, number), number, []
        elif dcmi and time_s is None:
            controller = _parse_controller_time(_AFTER_STAMP.sub("", dcmi[1]), path, number), number
        else:
            if controller is not None and _DCMI_POWER.match(line):
                yield *controller, lines
                controller, lines = None, []
            lines.append(line)
    if time_s is not None:
        yield time_s, begin, lines
    elif controller is not None:
        yield *controller, lines


def _parse_controller_time(text: str, path: Path | str, line: int) -> float:
    plain = re.sub(r" (UTC|GMT)$", "", text)
    for form in ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S", "%m/%d/%y %H:%M:%S", "%Y-%m-%d %H:%M:%S"):
        try:
            return datetime.strptime(plain, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    raise DataError(path, f"not a time: {text[:30]!r}", line)


class IpmiMeter(SampledMeter[PowerSample]):
    """The management controller of this host. One sample runs ipmitool (about 50 ms)."""

    name = "ipmi"
    max_interval_s: float | None = _INTERVAL_S

    def __init__(self, program: Path) -> None:
        super().__init__(
            1, ["ipmi: the controller's figures are seconds old and rounded: use windows of 30 s and more"]
        )
        self._program = program

    def sample(self, now_s: float) -> None:
        try:
            watts, _ = find_server_watts(_read_power(self._program))
        except PowerprofError:
            watts = None
        self._samples[0].append(PowerSample(now_s, watts))

    def is_counting(self) -> bool | None:
        return any(s.watts for s in self._samples[0]) if self._samples[0] else None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy("server", "server", power_energy(self._samples[0], start_s, end_s, 3 * _INTERVAL_S))]


def _read_power(program: Path) -> list[str]:
    return programs.run([program, "dcmi", "power", "reading"], timeout_s=_TIMEOUT_S).stdout.splitlines()


def open_ipmi() -> IpmiMeter:
    """Open the management controller. Raise CapabilityError without ipmitool, the device or a reading."""
    require_this_host("ipmi: it reads the running machine")
    program = programs.need("ipmitool", "ipmitool")
    try:
        lines = _read_power(program)
    except PowerprofError as error:
        raise CapabilityError(
            f"ipmi: no management controller answers ({error.message})", "modprobe ipmi_devintf ipmi_si; run as root"
        ) from error
    state = next((m[1] for line in lines if (m := _DCMI_STATE.match(line[:_LONGEST]))), "activated")
    if state.lower() != "activated":
        raise CapabilityError(
            f"ipmi: the controller's power reading is {state.lower()}", "ipmitool dcmi power activate, or another meter"
        )
    if not find_server_watts(lines)[0]:
        raise CapabilityError("ipmi: the controller reports no power (0 W)", "use another meter (--meter-log FILE)")
    return IpmiMeter(program)
