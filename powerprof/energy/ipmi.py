# SPDX-License-Identifier: Apache-2.0
"""IPMI: the whole server's power as its management controller says, seconds old and rounded to watts.

Live by `ipmitool dcmi power reading`; recorded as series of that, or of `ipmitool sdr` listings, each after a line
`Timestamp | EPOCH`. Several power supplies are added up; a line for the whole server wins over them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from powerprof.energy.meter import DomainEnergy
from powerprof.measure.counters import PowerSample, drop_old_samples, power_energy
from powerprof.system import paths, programs
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.system.files import loader

_DCMI = "DCMI"
_INTERVAL_S = 5.0  # what the controllers' own sampling period is (DCMI 1.5, 6.6.1)
_TIMEOUT_S = 10.0
_MAX_WATTS = 1e6
_LONGEST = 1024
_STAMP = re.compile(r"Timestamp\s*\|\s*(\S+)\s*")
_SDR_POWER = re.compile(r"([^|]+?)\s*\|\s*([\d.]+)\s*Watts\s*\|\s*(\w+)\s*", re.I)
_DCMI_POWER = re.compile(r"\s*Instantaneous power reading:\s*(\d+)\s*Watts", re.I)
_DCMI_STAMP = re.compile(r"\s*IPMI timestamp:\s*(.+?)\s*$", re.I)
_DCMI_STATE = re.compile(r"\s*Power reading state is:\s*(\w+)", re.I)
# ipmitool 1.8.19 ends the line of the time stamp with the next field.
_AFTER_STAMP = re.compile(r"\s+Sampling period:.*", re.I)
# The sensors that stand for the whole server, as Supermicro, Dell, HPE, Lenovo, Fujitsu and Intel name them, the
# outermost first: Fujitsu's System Power is what its Total Power feeds. The whole name, for CPU_Total_Power and GPU
# Total Power are parts.
_WHOLE = [
    re.compile(pattern, re.I)
    for pattern in (
        r"(sys(tem)?[ _])?total[ _]?p(o?we)?r|p(w|wr|ower)[ _]consumption|power[ _]meter|power[ _]usage",
        r"system[ _]level|sys(tem)?[ _]?((ac[ _]|dc[ _])?input[ _])?power",
    )
]
# A threshold that was crossed is a reading too (ipmitool's lib/ipmi_sdr.c).
_READ = ("ok", "nc", "cr", "nr", "lnc", "lcr", "lnr", "unc", "ucr", "unr")
_SUPPLY = re.compile(
    r"(ps|psu|power supply)[ _]*\d+[ _]+(p(wr|ower)?[ _]*in(put)?|(ac[ _])?input([ _]*p(o?we)?r)?)", re.I
)


@dataclass(frozen=True)
class IpmiLog:
    """Watts of the whole server at the epoch times of the listings. `sensor` says what was read."""

    path: str
    samples: tuple[PowerSample, ...]
    sensor: str
    step_s: float
    notes: tuple[str, ...] = ()


def looks_like_ipmi(text: str) -> bool:
    """Whether the text is such a log."""
    head = text[:4096]
    return bool(re.search(r"^Timestamp\s*\|", head, re.M) or re.search(r"Instantaneous power reading:", head, re.I))


@loader
def parse_ipmi(text: str, path: Path | str) -> IpmiLog:
    """Parse a log. Raises DataError(path, reason, line) where a time is damaged or no power is in it."""
    samples: list[PowerSample] = []
    silent = 0
    names: set[str] = set()
    for when, line_number, lines in _listings(text, path):
        watts, name = find_server_watts(lines)
        if watts is None:
            silent += 1
            continue
        if watts > _MAX_WATTS:
            raise DataError(path, f"not a server's power: {watts:g} W", line_number)
        if samples and when <= samples[-1].time_s:
            raise DataError(path, "time does not advance", line_number)
        names.add(name)
        samples.append(PowerSample(when, watts))
    if not samples:
        raise DataError(path, "no power reading in it")
    if len(names) > 1:
        raise DataError(path, f"the power sensor changes within the log ({', '.join(sorted(names))})")
    notes = [f"{silent} listings without a power reading were left out"] if silent else []
    if names == {_DCMI} and not _STAMP.search(text):
        notes.append("its times are the controller's own clock, taken as UTC")
    steps = sorted(b.time_s - a.time_s for a, b in itertools.pairwise(samples)) or [0.0]
    return IpmiLog(str(path), tuple(samples), names.pop(), steps[len(steps) // 2], tuple(notes))


def find_server_watts(lines: list[str]) -> tuple[float | None, str]:
    """The server's watts in one listing and the sensor's name; None where it has none that is ok."""
    supplies: dict[str, float] = {}
    whole: dict[int, tuple[float, str]] = {}
    states = [state[1].lower() for line in lines if (state := _DCMI_STATE.match(line[:_LONGEST]))]
    for line in lines:
        dcmi = _DCMI_POWER.match(line[:_LONGEST])
        if dcmi and any(state != "activated" for state in states):
            return None, ""
        if dcmi:
            # A server that runs draws something: 0 stands for no reading.
            return (float(dcmi[1]), _DCMI) if float(dcmi[1]) else (None, "")
        match = _SDR_POWER.fullmatch(line[:_LONGEST])
        if match is None or match[3].lower() not in _READ:
            continue
        name, watts = match[1].strip(), float(match[2])
        rank = next((rank for rank, pattern in enumerate(_WHOLE) if pattern.fullmatch(name)), None)
        if rank is not None and watts:
            whole.setdefault(rank, (watts, name))
        if _SUPPLY.fullmatch(name):
            supplies[name] = watts
    if whole:
        return whole[min(whole)]
    if not any(supplies.values()):
        return None, ""
    return (sum(supplies.values()), " + ".join(sorted(supplies)))


def _listings(text: str, path: Path | str) -> Iterator[tuple[float, int, list[str]]]:
    """Each listing's time, the line where it begins, and its lines."""
    when: float | None = None
    controller: tuple[float, int] | None = None  # the controller's clock, which is a listing's without a Timestamp
    begin, lines = 1, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > _LONGEST:
            raise DataError(path, "line too long", number)
        stamp = _STAMP.fullmatch(line)
        dcmi = None if stamp else _DCMI_STAMP.match(line)
        if stamp:
            if when is not None:
                yield when, begin, lines
            when, begin, lines = _epoch(stamp[1], path, number), number, []
        elif dcmi and when is None:
            controller = _controller_time(_AFTER_STAMP.sub("", dcmi[1]), path, number), number
        else:
            if controller is not None and _DCMI_POWER.match(line):
                yield *controller, lines
                controller, lines = None, []
            lines.append(line)
    if when is not None:
        yield when, begin, lines
    elif controller is not None:
        yield *controller, lines


def _epoch(word: str, path: Path | str, line: int) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e11:
        raise DataError(path, f"not an epoch time: {word[:30]!r}", line)
    return value


def _controller_time(text: str, path: Path | str, line: int) -> float:
    plain = re.sub(r" (UTC|GMT)$", "", text)
    for form in ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S", "%m/%d/%y %H:%M:%S", "%Y-%m-%d %H:%M:%S"):
        try:
            return datetime.strptime(plain, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    raise DataError(path, f"not a time: {text[:30]!r}", line)


class IpmiMeter:
    """The management controller of this host. A sample runs ipmitool (some 50 ms), at most every five seconds."""

    name = "ipmi"
    max_interval_s: float | None = _INTERVAL_S

    def __init__(self, program: Path) -> None:
        self._program = program
        self._samples: list[PowerSample] = []

    def sample(self, now_s: float) -> None:
        try:
            done = programs.run([self._program, "dcmi", "power", "reading"], timeout_s=_TIMEOUT_S)
            watts, _ = find_server_watts(done.stdout.splitlines())
        except PowerprofError:
            watts = None
        self._samples.append(PowerSample(now_s, watts))

    def is_counting(self) -> bool | None:
        return any(s.watts for s in self._samples) if self._samples else None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy("server", "server", power_energy(self._samples, start_s, end_s, 3 * _INTERVAL_S))]

    def drop_samples(self, before_s: float) -> None:
        drop_old_samples(self._samples, before_s)

    def notes(self) -> list[str]:
        return ["ipmi: the controller's figures are seconds old and rounded: use windows of 30 s and more"]

    def close(self) -> None:
        self._samples = []


def open_ipmi() -> IpmiMeter:
    """IPMI DCMI by ipmitool. Raises CapabilityError where the program, the device or a reading is missing."""
    if not paths.is_this_host():
        raise CapabilityError(
            "ipmi: it reads the running machine, and POWERPROF_SYSFS or POWERPROF_PROCFS is set",
            "unset POWERPROF_SYSFS POWERPROF_PROCFS",
        )
    program = programs.need("ipmitool", "ipmitool")
    try:
        done = programs.run([program, "dcmi", "power", "reading"], timeout_s=_TIMEOUT_S)
    except PowerprofError as error:
        raise CapabilityError(
            f"ipmi: no management controller answers ({error.message})", "modprobe ipmi_devintf ipmi_si; run as root"
        ) from error
    state = next((m[1] for line in done.stdout.splitlines() if (m := _DCMI_STATE.match(line[:_LONGEST]))), "activated")
    if state.lower() != "activated":
        raise CapabilityError(
            f"ipmi: the controller's power reading is {state.lower()}", "ipmitool dcmi power activate, or another meter"
        )
    if not find_server_watts(done.stdout.splitlines())[0]:
        raise CapabilityError("ipmi: the controller reports no power (0 W)", "use another meter (--meter-log FILE)")
    return IpmiMeter(program)
