# SPDX-License-Identifier: Apache-2.0
"""Programs as meters: turbostat, live or recorded, with mean watts of its intervals, and PowerTOP's estimate."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from powerprof.energy.domains import DomainEnergy, SampledMeter, UnusableMeterError, distinct_names, require_this_host
from powerprof.energy.layouts import ALL_PACKAGES, rapl_scope
from powerprof.measure.counters import EnergySeries, PowerInterval, PowerSample, interval_energy, power_energy
from powerprof.measure.program_output import (
    OUTPUT,
    TIMESTAMP,
    TimedProgram,
    median_step_s,
    numbered_lines,
    open_unnamed_file,
    parse_epoch,
    parse_number,
    read_from_start,
)
from powerprof.measure.turbostat import TurbostatInterval, TurbostatLog, TurbostatRow, parse_turbostat
from powerprof.measure.window import WallOffset
from powerprof.model.records import sum_known
from powerprof.model.text import join_words
from powerprof.system import programs
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.system.files import loader, printable
from powerprof.system.next_steps import command_line

# The domain of a package in each column.
_COLUMNS = {"PkgWatt": "package", "CorWatt": "core", "GFXWatt": "uncore", "RAMWatt": "dram"}
# With --Joules these columns hold the energy since the last table (turbostat(8)).
_JOULES = {"PkgWatt": "Pkg_J", "CorWatt": "Cor_J", "GFXWatt": "GFX_J", "RAMWatt": "RAM_J", "SysWatt": "Sys_J"}
_SHOW = "Time_Of_Day_Seconds,Package,Die,Node,Core,CPU,PkgWatt,CorWatt,GFXWatt,RAMWatt,SysWatt"
_INTERVAL_S = 1.0
_HINT = "run as root with the msr module (modprobe msr); virtual machines hide the counters"


_Domain = tuple[str, str | None]  # the domain, and the domain that includes it


class DomainIntervals(msgspec.Struct, frozen=True):
    """The mean watts of one domain in each table of a log. Without intervals it has no figure, for the reason `why`."""

    domain: str
    inside: str | None
    intervals: tuple[PowerInterval, ...]
    why: str | None = None


def has_length(log: TurbostatLog) -> bool:
    """Return whether the length of any table is known. Otherwise a log has mean watts and no joules."""
    return any(interval.duration_s for interval in log.intervals)


def read_domain_intervals(log: TurbostatLog, offset_s: float = 0.0) -> list[DomainIntervals]:
    """Return each domain of a log. `offset_s` is subtracted from epoch times.

    Tables without any length count 1 s each: their mean watts are right, and `has_length` is false. Raise DataError for
    a log without a power column, and for joules without a length.
    """
    if not {*_COLUMNS, *_JOULES, *_JOULES.values()} & set(log.columns):
        raise DataError(log.path, "no power column (PkgWatt, CorWatt, ...) in it")
    spans: list[tuple[float, float, TurbostatInterval]] = []
    clock_s, default_s = 0.0, None if has_length(log) else 1.0
    for interval in log.intervals:
        length_s = interval.duration_s or default_s
        if length_s is None or length_s <= 0:
            continue  # the duration of the first table may be unknown
        clock_s = interval.time_s - offset_s if interval.time_s is not None else clock_s + length_s
        spans.append((clock_s - length_s, clock_s, interval))
    tables = [_table_watts(interval) for _, _, interval in spans]
    if not any(tables):
        raise DataError(log.path, "joules, but its tables contain no durations")
    keys = list(dict.fromkeys(key for watts in tables for key in watts))
    made = []
    for label, key in zip(distinct_names(keys), keys, strict=True):
        values = [watts.get(key) for watts in tables]
        missing = sum(value is None for value in values)
        why = f"{label} has no figure in {missing} of {len(values)} tables" if missing else None
        intervals = [
            PowerInterval(start_s, end_s, value)
            for (start_s, end_s, _), value in zip(spans, values, strict=True)
            if value is not None and why is None
        ]
        made.append(DomainIntervals(label, key[1] if key[0] in ("core", "uncore") else None, tuple(intervals), why))
    return made


def _table_watts(interval: TurbostatInterval) -> dict[_Domain, float | None]:
    """Return watts by (domain, package) of one table.

    They are by package if the rows add up to the system row, otherwise they are the system row's: turbostat may repeat
    one counter in the rows of several dies, and `--cpu` hides rows. A package without a figure, unlike others, is None.
    """
    watts: dict[_Domain, float | None] = {}
    packages = dict.fromkeys(row.package for row in interval.cpus)
    for column, name in _COLUMNS.items():
        whole = None if interval.system is None else _watts(interval.system, column, interval.duration_s)
        by_package: dict[int | None, float] = {}
        for row in interval.cpus:
            value = _watts(row, column, interval.duration_s)
            if value is not None:
                # AMD lists CorWatt in each core's row.
                by_package[row.package] = by_package.get(row.package, 0.0) + value
        is_sum = whole is None or abs(sum(by_package.values()) - whole) <= 0.02 * whole + 0.01 * (
            len(interval.cpus) + 1
        )
        if by_package and is_sum:
            # `--hide Package` merges the packages.
            is_merged = sum(row.package is None and "PkgWatt" in row.values for row in interval.cpus) > 1
            for number in packages:
                package = ALL_PACKAGES if is_merged else f"package-{number or 0}"
                watts[(package, None) if name == "package" else (name, package)] = by_package.get(number)
        elif whole is not None:
            watts[(ALL_PACKAGES, None) if name == "package" else (name, ALL_PACKAGES)] = whole
    system_watts = None if interval.system is None else _watts(interval.system, "SysWatt", interval.duration_s)
    if system_watts is not None:
        watts["psys", None] = system_watts
    return watts


def _watts(row: TurbostatRow, column: str, duration_s: float | None) -> float | None:
    """Return a column's watts, or its joules divided by the interval."""
    joules = row.values.get(_JOULES[column])
    if column in row.values or joules is None:
        return row.values.get(column)
    return joules / duration_s if duration_s else None


def sum_log_energies(log: TurbostatLog, start_s: float, end_s: float, offset_s: float = 0.0) -> list[DomainEnergy]:
    """Return the energy of every domain of a log in a window of its time axis."""
    energies = []
    for domain in read_domain_intervals(log, offset_s):
        scope = rapl_scope(domain.domain.rsplit("/", 1)[-1])
        series = interval_energy(domain.intervals, start_s, end_s)
        if domain.why is not None:
            series = EnergySeries(None, start_s, end_s, notes=(domain.why,))
        energies.append(DomainEnergy(domain.domain, scope, series, domain.inside))
    return energies


class TurbostatMeter:
    """A running turbostat that prints one table per second into an unnamed file."""

    name = "turbostat"
    max_interval_s: float | None = None

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self._process = process
        self._output = output
        self._offset = WallOffset()

    def sample(self, now_s: float) -> None:
        self._offset.note(now_s)

    def is_counting(self) -> bool | None:
        return True  # open_turbostat has tested it

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        self._output.seek(0)
        text = self._output.read().decode("utf-8", "replace")
        whole = text[: text.rfind("\n") + 1]
        return sum_log_energies(parse_turbostat(whole, "turbostat's output"), start_s, end_s, self._offset.near(end_s))

    def drop_samples(self, before_s: float) -> None:
        """Keep everything: the samples are in the log."""

    def notes(self) -> list[str]:
        return ["turbostat: it wakes every CPU once a second, which adds to the measured power"]

    def close(self) -> None:
        programs.stop(self._process, patience_s=3.0)
        self._output.close()


def open_turbostat() -> TurbostatMeter:
    """Start turbostat. Raise CapabilityError if it is not installed, may not run, or shows no watts."""
    require_this_host("turbostat: it reads the running machine")
    program = programs.need("turbostat", "linux-cpupower")
    base: list[str | Path] = [program, "--quiet", "--show", _SHOW]
    try:
        trial = programs.run([*base, "--interval", "0.3", "--num_iterations", "1"], timeout_s=10)
        log = parse_turbostat(trial.stdout, "turbostat's output")
    except (PowerprofError, DataError) as error:
        raise CapabilityError(f"turbostat: it cannot run here ({error.message})", _HINT) from error
    if not any(any(_table_watts(interval).values()) for interval in log.intervals):
        raise CapabilityError("turbostat: it runs and shows no watts (PkgWatt is absent or 0)", _HINT)
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the meter
    process = programs.start([*base, "--interval", str(_INTERVAL_S)], stdout=output)
    return TurbostatMeter(process, output)


# PowerTOP's own figure for the machine, if it has one: the battery's discharge, or its baseline estimate.
#
# Both are estimates here: PowerTOP fits them over past runs (src/parameters/learn.cpp of PowerTOP 2.14), and a report
# does not name the battery sample.

_SECONDS = 5
_DISCHARGE = re.compile(r"battery reports a discharge rate of:?[\s;,]*([\d.]+)\s*([mu]?)\s*W", re.I)
_BASELINE = re.compile(r"system baseline power is estimated at:?[\s;,]*([\d.]+)\s*([mu]?)\s*W", re.I)
_PREFIX = {"": 1.0, "m": 1e-3, "u": 1e-6}


def find_report_watts(text: str) -> tuple[float, str] | None:
    """Return the watts of a PowerTOP report and the name of the figure. None for a missing or zero figure."""
    for pattern, name in ((_DISCHARGE, "battery discharge"), (_BASELINE, "system baseline")):
        match = pattern.search(text)
        if match:
            watts = float(match[1]) * _PREFIX[match[2].lower()]
            if watts > 0:
                return watts, name
    return None


class PowertopMeter(SampledMeter[PowerSample]):
    """PowerTOP in a loop, five seconds per report."""

    name = "powertop"
    max_interval_s: float | None = float(_SECONDS)

    def __init__(self, program: Path) -> None:
        super().__init__(1, ["powertop: its watts are an estimate, and running it adds to the measured power"])
        self._program = program
        self._report = open_unnamed_file()
        self._process: subprocess.Popen[bytes] | None = None
        self._last_watts: float | None = None

    def sample(self, now_s: float) -> None:
        if self._process is None or self._process.poll() is not None:
            self._collect()
            self._process = programs.start(
                [self._program, f"--csv={OUTPUT}", f"--time={_SECONDS}"], stdin=self._report, own_mounts=True
            )
        # Between two reports the last one is valid. Before the first one there is no figure.
        self._samples[0].append(PowerSample(now_s, self._last_watts))

    def _collect(self) -> None:
        text = read_from_start(self._report)
        if text:
            report = find_report_watts(text)
            self._last_watts = report[0] if report else None
            self._report.truncate(0)

    def is_counting(self) -> bool | None:
        return None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy("machine", "model", power_energy(self._samples[0], start_s, end_s, 3.0 * _SECONDS))]

    def close(self) -> None:
        if self._process is not None:
            programs.stop(self._process, patience_s=3.0)
            self._process = None
        self._report.close()


def open_powertop() -> PowertopMeter:
    """Open PowerTOP. Raise CapabilityError if it is absent or reports no watts."""
    require_this_host("powertop: it reads the running machine")
    program = programs.need("powertop", "powertop")
    with closing(TimedProgram("powertop", "powertop")) as trial:
        try:
            trial.launch([f"--csv={OUTPUT}", "--time=1"], 1.0)
            outcome = trial.outcome()
        except PowerprofError as error:
            raise CapabilityError(f"powertop: it cannot run here ({error})", "run as root") from error
        if outcome is None or outcome.returncode != 0:
            reason = printable(outcome.messages[-1])[:200] if outcome and outcome.messages else "it failed"
            raise CapabilityError(f"powertop: it cannot run here ({reason})", "run as root")
        text = trial.report()
    if find_report_watts(text) is None:
        raise CapabilityError(
            "powertop: its report gives no watts (it needs a battery that discharges)",
            "unplug the power supply and run: powertop --calibrate; or use the estimate (--meter model)",
        )
    return PowertopMeter(program)


# IPMI: the whole server's power by its management controller, seconds old and rounded to watts.
#
# Live readings come from `ipmitool dcmi power reading`. Recordings are series of its output, or of the listings of
# `ipmitool sdr`, `sdr elist` and `sensor`, each after a line `Timestamp | EPOCH`. A sensor of the whole server is
# preferred to the sum of its power supplies. One sensor, or one set of supplies, counts in all listings of a log.

_DCMI = "DCMI"
_IPMI_INTERVAL_S = 5.0  # the controllers' sampling period (DCMI 1.5, 6.6.1)
_TIMEOUT_S = 10.0
_MAX_WATTS = 1e6
_LONGEST = 1024
_WATTS = re.compile(r"([\d.]+)\s*Watts\b.*", re.I)
_DCMI_POWER = re.compile(r"\s*Instantaneous power reading:\s*(\d+)\s*Watts", re.I)
_DCMI_STAMP = re.compile(r"\s*IPMI timestamp:\s*(.+?)\s*$", re.I)
_NO_DCMI = re.compile(r"DCMI request failed", re.I)
_DCMI_STATE = re.compile(r"\s*Power reading state is:\s*(\w+)", re.I)
# ipmitool 1.8.19 prints the next field on the line of the time stamp.
_AFTER_STAMP = re.compile(r"\s+Sampling period:.*", re.I)
# The zone of the machine that ran ipmitool, after the time or before the year.
_ZONE = re.compile(r" (?!AM\b|PM\b)([A-Z]{2,5})(?= \d{4}$|$)")
_STAMP_FORMS = (
    "%a %b %d %H:%M:%S %Y",
    *(f"{date} {clock}" for date in ("%m/%d/%Y", "%m/%d/%y", "%Y-%m-%d") for clock in ("%H:%M:%S", "%I:%M:%S %p")),
)
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
_NO_READING = ("ns", "no reading", "disabled")
_SUPPLY = re.compile(
    r"(ps|psu|power supply)[ _]*\d+[ _]+(p(wr|ower)?[ _]*in(put)?|(ac[ _])?input([ _]*p(o?we)?r)?)", re.I
)


class IpmiLog(msgspec.Struct, frozen=True):
    """Watts of the whole server at the epoch times of the listings, and the name of the sensor."""

    path: str
    samples: tuple[PowerSample, ...]
    sensor: str
    step_s: float
    notes: tuple[str, ...] = ()
    has_epoch: bool = True


def looks_like_ipmi(text: str) -> bool:
    """Return whether the text begins like an IPMI log."""
    head = text[:4096]
    return bool(re.search(r"^Timestamp\s*\|", head, re.M) or re.search(r"Instantaneous power reading:", head, re.I))


class _Listing(msgspec.Struct, frozen=True):
    """Watts by sensor at one time. None: no reading."""

    time_s: float
    line: int
    watts: Mapping[str, float | None]


@loader
def parse_ipmi(text: str, path: Path | str) -> IpmiLog:
    """Return the log of a text. Raise DataError(path, reason, line) for a damaged time or a log without power."""
    listings: list[_Listing] = []
    for time_s, line_number, lines in _read_listings(text, path):
        if listings and time_s <= listings[-1].time_s:
            raise DataError(path, "time does not advance", line_number)
        try:
            listings.append(_Listing(time_s, line_number, _read_sensors(lines)))
        except ValueError as error:
            raise DataError(path, str(error), line_number, "record one server at a time") from None
    sensors = _choose_sensors(listings, path)
    samples: list[PowerSample] = []
    for listing in listings:
        watts = sum_known(listing.watts.get(name) for name in sensors)
        if watts is not None and watts > _MAX_WATTS:
            raise DataError(path, f"not a server's power: {watts:g} W", listing.line)
        # A missing reading of one sensor is a gap. One of several supplies may be unplugged: that leaves no total.
        if watts is not None or len(sensors) > 1:
            samples.append(PowerSample(listing.time_s, watts))
    missing = len(listings) - len(samples)
    notes = [f"{missing} listings without a power reading were left out"] if missing else []
    stamps = [] if TIMESTAMP.search(text) else [m[1] for line in text.splitlines() if (m := _DCMI_STAMP.match(line))]
    zones = {_find_zone(stamp) for stamp in stamps} - {"UTC", "GMT"}
    if len(zones) > 1:
        raise DataError(path, f"its times are of several zones ({', '.join(sorted(map(str, zones)))})")
    if zones == {None}:
        notes.append("its times are the controller's own clock, taken as UTC")
    elif zones:
        notes.append(f"its times are in the zone {zones.copy().pop()} and are not compared with other recordings")
    has_epoch = zones <= {None}
    step_s = median_step_s([sample.time_s for sample in samples])
    return IpmiLog(str(path), tuple(samples), " + ".join(sensors), step_s, tuple(notes), has_epoch)


def _choose_sensors(listings: Sequence[_Listing], path: Path | str) -> list[str]:
    """Return the sensor of the whole server, or else its power supplies. Raise DataError without a complete set."""
    last: dict[str, float | None] = {}
    for listing in listings:
        last.update({name: watts for name, watts in listing.watts.items() if watts or name not in last})
    for pattern in (re.compile(_DCMI), *_WHOLE):
        name = next((name for name, watts in last.items() if pattern.fullmatch(name) and watts), None)
        if name is not None:
            return [name]
    # A supply has sensors of several kinds. Those of one kind count: that with readings in watts.
    kinds = {re.sub(r"\d+", "", name) for name, watts in last.items() if watts and _SUPPLY.fullmatch(name)}
    supplies = sorted(name for name in last if _SUPPLY.fullmatch(name) and re.sub(r"\d+", "", name) in kinds)
    dead = [name for name in supplies if last[name] is None]
    if dead:
        raise DataError(
            path,
            f"{join_words(dead)} {'has' if len(dead) == 1 else 'have'} no reading, so the total is unknown",
            hint="if the slot is empty, remove its lines from the file; otherwise record: ipmitool dcmi power reading",
        )
    if not supplies:
        others = ", ".join(f"{name} {watts:g} W" for name, watts in list(last.items())[:4] if watts)
        reason = f"no sensor of the whole server in it ({others})" if others else "no power reading in it"
        raise DataError(path, reason, hint="record: ipmitool dcmi power reading")
    return supplies


def find_server_watts(lines: list[str]) -> float | None:
    """Return the server's watts in the output of `ipmitool dcmi power reading`. None without a valid reading."""
    return _read_sensors(lines).get(_DCMI)


def _read_sensors(lines: list[str]) -> dict[str, float | None]:
    """Return watts by sensor in one listing. Raise ValueError for two sensors of one name with different readings."""
    states = [state[1].lower() for line in lines if (state := _DCMI_STATE.match(line[:_LONGEST]))]
    sensors: dict[str, float | None] = {}
    for line in lines:
        dcmi = _DCMI_POWER.match(line[:_LONGEST])
        if dcmi:
            # A running server draws some power: 0 stands for no reading.
            is_valid = float(dcmi[1]) > 0 and all(state == "activated" for state in states)
            sensors[_DCMI] = float(dcmi[1]) if is_valid else None
            continue
        cells = [cell.strip() for cell in line[:_LONGEST].split("|" if "|" in line else ",")]
        name = cells[0]
        is_silent = cells[1:2] == ["na"] or any(cell.lower() in _NO_READING for cell in cells)
        if len(cells) < 3 or not (is_silent or any("watts" in cell.lower() for cell in cells)):
            continue
        watts = _watts_of(cells)
        if name in sensors and sensors[name] != watts:
            raise ValueError(f"two sensors are called {name}: two servers, or two parts of one")
        sensors[name] = watts
    return sensors


def _watts_of(cells: Sequence[str]) -> float | None:
    """Return the watts of a row: `98 Watts` of `sdr`, or `98.000` and `Watts` of `sensor`. None without a reading."""
    if not any(cell.lower() in _READ for cell in cells[1:]):
        return None
    joined = next((match[1] for cell in cells[1:] if (match := _WATTS.fullmatch(cell))), None)
    pairs = itertools.pairwise(cells[1:])
    word = joined or next((value for value, unit in pairs if unit.lower() == "watts"), "")
    return parse_number(word, 0.0)


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
            controller = _parse_controller_time(dcmi[1], path, number), number
        else:
            if controller is not None and _DCMI_POWER.match(line):
                yield *controller, lines
                controller, lines = None, []
            lines.append(line)
    if time_s is not None:
        yield time_s, begin, lines
    elif controller is not None:
        yield *controller, lines


def _find_zone(stamp: str) -> str | None:
    """Return the zone's name in a time of the controller: UTC for one with an offset, None without a zone."""
    plain = _AFTER_STAMP.sub("", stamp)
    match = _ZONE.search(plain)
    return match[1] if match else "UTC" if re.search(r" [+-]\d{4}$", plain) else None


def _parse_controller_time(text: str, path: Path | str, line: int) -> float:
    """Return epoch seconds of a time that is taken as UTC, whatever its zone. Raise DataError."""
    plain = _ZONE.sub("", _AFTER_STAMP.sub("", text))
    for form in (*_STAMP_FORMS, *(f"{form} %z" for form in _STAMP_FORMS)):
        try:
            moment = datetime.strptime(plain, form)
            return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).timestamp()
        except ValueError:
            continue
    raise DataError(path, f"not a time: {text[:30]!r}", line)


class IpmiMeter(SampledMeter[PowerSample]):
    """The management controller of this host. One sample runs ipmitool (about 50 ms)."""

    name = "ipmi"
    max_interval_s: float | None = _IPMI_INTERVAL_S

    def __init__(self, program: Path) -> None:
        super().__init__(
            1, ["ipmi: the controller's figures are seconds old and rounded: use windows of 30 s and more"]
        )
        self._program = program

    def sample(self, now_s: float) -> None:
        try:
            watts = find_server_watts(_read_power(self._program))
        except PowerprofError:
            watts = None
        self._samples[0].append(PowerSample(now_s, watts))

    def is_counting(self) -> bool | None:
        return any(s.watts for s in self._samples[0]) if self._samples[0] else None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy("server", "server", power_energy(self._samples[0], start_s, end_s, 3 * _IPMI_INTERVAL_S))]


def _read_power(program: Path) -> list[str]:
    return programs.run([program, "dcmi", "power", "reading"], timeout_s=_TIMEOUT_S).stdout.splitlines()


def open_ipmi() -> IpmiMeter:
    """Open the management controller. Raise CapabilityError without ipmitool, the device or a reading."""
    require_this_host("ipmi: it reads the running machine")
    program = programs.need("ipmitool", "ipmitool")
    try:
        lines = _read_power(program)
    except PowerprofError as error:
        if _NO_DCMI.search(error.message):
            raise UnusableMeterError(
                f"ipmi: the controller has no DCMI power reading ({error.message})",
                f"its sensors may have one: ipmitool sdr elist > FILE, then {command_line('energy --from FILE')}",
            ) from error
        raise UnusableMeterError(
            f"ipmi: no management controller answers ({error.message})", "modprobe ipmi_devintf ipmi_si; run as root"
        ) from error
    state = next((m[1] for line in lines if (m := _DCMI_STATE.match(line[:_LONGEST]))), "activated")
    if state.lower() != "activated":
        raise UnusableMeterError(
            f"ipmi: the controller's power reading is {state.lower()}", "ipmitool dcmi power activate, or another meter"
        )
    if not find_server_watts(lines):
        raise CapabilityError("ipmi: the controller reports no power (0 W)", "use another meter (--meter FILE)")
    return IpmiMeter(program)
