# SPDX-License-Identifier: Apache-2.0
"""Programs as meters: turbostat, live or recorded, with mean watts of its intervals, and PowerTOP's estimate."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import IO

from powerprof.energy.meter import DomainEnergy, SampledMeter, distinct_names, rapl_scope, require_this_host
from powerprof.measure.clock import WallOffset
from powerprof.measure.counters import PowerInterval, PowerSample, interval_energy, power_energy
from powerprof.measure.program_output import OUTPUT, TimedProgram, open_unnamed_file, read_from_start
from powerprof.measure.turbostat import TurbostatInterval, TurbostatLog, TurbostatRow, parse_turbostat
from powerprof.system import programs
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.system.files import printable

# The domain of a package in each column.
_COLUMNS = {"PkgWatt": "package", "CorWatt": "core", "GFXWatt": "uncore", "RAMWatt": "dram"}
# With --Joules these columns hold the energy since the last table (turbostat(8)).
_JOULES = {"PkgWatt": "Pkg_J", "CorWatt": "Cor_J", "GFXWatt": "GFX_J", "RAMWatt": "RAM_J", "SysWatt": "Sys_J"}
_SHOW = "Time_Of_Day_Seconds,Package,Die,Node,Core,CPU,PkgWatt,CorWatt,GFXWatt,RAMWatt,SysWatt"
_INTERVAL_S = 1.0
_HINT = "run as root with the msr module (modprobe msr); virtual machines hide the counters"


def read_domain_intervals(
    log: TurbostatLog, offset_s: float = 0.0
) -> dict[str, tuple[list[PowerInterval], str | None]]:
    """Return the mean watts of each domain, and the domain that includes it. `offset_s` is subtracted from epoch times.

    Raise DataError for a log without a power column, or with neither times nor a stated interval.
    """
    intervals_of: dict[tuple[str, str | None], list[PowerInterval]] = defaultdict(list)
    clock_s = 0.0
    for interval in log.intervals:
        if interval.duration_s is None or interval.duration_s <= 0:
            continue  # the duration of the first table may be unknown
        end = interval.time_s - offset_s if interval.time_s is not None else clock_s + interval.duration_s
        clock_s = end
        for key, watts in _interval_watts(interval).items():
            intervals_of[key].append(PowerInterval(end - interval.duration_s, end, watts))
    if not intervals_of:
        reason = (
            "no power column (PkgWatt, CorWatt, ...) in it"
            if not {*_COLUMNS, *_JOULES.values()} & set(log.columns)
            else ("its tables do not say how long they took")
        )
        raise DataError(log.path, reason)
    labels = distinct_names(list(intervals_of))
    return {
        label: (intervals_of[key], key[1] if key[0] in ("core", "uncore") else None)
        for label, key in zip(labels, intervals_of, strict=True)
    }


def _interval_watts(interval: TurbostatInterval) -> dict[tuple[str, str | None], float]:
    """Return watts by (domain, package). AMD lists CorWatt in each core's row: sum it over the package."""
    watts: dict[tuple[str, str | None], float] = {}
    rows = interval.cpus or ((interval.system,) if interval.system else ())
    for row in rows:
        package = f"package-{row.package or 0}"
        for column, name in _COLUMNS.items():
            value = _watts(row, column, interval.duration_s)
            if value is not None:
                key = (package, None) if name == "package" else (name, package)
                watts[key] = watts.get(key, 0.0) + value
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
    return [
        DomainEnergy(domain, rapl_scope(domain.rsplit("/", 1)[-1]), interval_energy(intervals, start_s, end_s), inside)
        for domain, (intervals, inside) in read_domain_intervals(log, offset_s).items()
    ]


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
        return ["turbostat: it wakes every CPU once a second, which is part of what is measured"]

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
    if not any(any(_interval_watts(interval).values()) for interval in log.intervals):
        raise CapabilityError("turbostat: it runs and shows no watts (PkgWatt is absent or 0)", _HINT)
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the meter
    process = programs.start([*base, "--interval", str(_INTERVAL_S)], stdout=output)
    return TurbostatMeter(process, output)


# PowerTOP's own figure for the machine, if it has one: the battery's discharge, or its baseline estimate.
#
# Both are estimates here: PowerTOP fits them over past runs (src/parameters/learn.cpp of PowerTOP 2.14), and a report
# does not name the battery sample.

_SECONDS = 5
_DISCHARGE = re.compile(r"battery reports a discharge rate of:?[\s;]*([\d.]+)\s*([mu]?)\s*W", re.I)
_BASELINE = re.compile(r"system baseline power is estimated at:?[\s;]*([\d.]+)\s*([mu]?)\s*W", re.I)
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
        super().__init__(1, ["powertop: its watts are an estimate, and running it is part of what is measured"])
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
            "unplug the power supply and run: powertop --calibrate; or use the estimate (--energy-source model)",
        )
    return PowertopMeter(program)
