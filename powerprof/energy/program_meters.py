# SPDX-License-Identifier: Apache-2.0
"""turbostat as a meter: recorded or live, its watts are means over its own intervals."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import IO

from powerprof.energy.meter import DomainEnergy, distinct_names, rapl_scope
from powerprof.measure.clock import WallOffset
from powerprof.measure.counters import PowerInterval, PowerSample, drop_old_samples, interval_energy, power_energy
from powerprof.measure.timed_program import OUTPUT, TimedProgram, open_unnamed_file, read_from_start
from powerprof.measure.turbostat import TurbostatInterval, TurbostatLog, TurbostatRow, parse_turbostat
from powerprof.system import paths, programs
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.system.files import printable

# column → domain of a package
_COLUMNS = {"PkgWatt": "package", "CorWatt": "core", "GFXWatt": "uncore", "RAMWatt": "dram"}
# With --Joules the same columns hold what was drawn since the table before (turbostat(8)).
_JOULES = {"PkgWatt": "Pkg_J", "CorWatt": "Cor_J", "GFXWatt": "GFX_J", "RAMWatt": "RAM_J", "SysWatt": "Sys_J"}
_SHOW = "Time_Of_Day_Seconds,Package,Die,Node,Core,CPU,PkgWatt,CorWatt,GFXWatt,RAMWatt,SysWatt"
_INTERVAL_S = 1.0
_HINT = "run as root with the msr module (modprobe msr); virtual machines hide the counters"


def read_domain_intervals(
    log: TurbostatLog, offset_s: float = 0.0
) -> dict[str, tuple[list[PowerInterval], str | None]]:
    """Mean watts by domain, and the domain that includes it. `offset_s` is taken from the log's epoch times.

    Raises DataError where the log has no power column, or neither times nor a stated interval.
    """
    intervals_of: dict[tuple[str, str | None], list[PowerInterval]] = defaultdict(list)
    clock = 0.0
    for interval in log.intervals:
        if interval.duration_s is None or interval.duration_s <= 0:
            continue  # the first table of a log that does not say how long it took
        end = interval.time_s - offset_s if interval.time_s is not None else clock + interval.duration_s
        clock = end
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
    """Watts by (domain, package). AMD's CorWatt stands on each core's row and is added up within the package."""
    watts: dict[tuple[str, str | None], float] = {}
    rows = interval.cpus or ((interval.system,) if interval.system else ())
    for row in rows:
        package = f"package-{row.package or 0}"
        for column, name in _COLUMNS.items():
            value = _watts(row, column, interval.duration_s)
            if value is not None:
                key = (package, None) if name == "package" else (name, package)
                watts[key] = watts.get(key, 0.0) + value
    of_system = None if interval.system is None else _watts(interval.system, "SysWatt", interval.duration_s)
    if of_system is not None:
        watts["psys", None] = of_system
    return watts


def _watts(row: TurbostatRow, column: str, duration_s: float | None) -> float | None:
    """A column's watts, or its joules over the interval."""
    joules = row.values.get(_JOULES[column])
    if column in row.values or joules is None:
        return row.values.get(column)
    return joules / duration_s if duration_s else None


def sum_log_energies(log: TurbostatLog, start_s: float, end_s: float, offset_s: float = 0.0) -> list[DomainEnergy]:
    """Energy of every domain of a log in a window of its time axis."""
    return [
        DomainEnergy(domain, rapl_scope(domain.rsplit("/", 1)[-1]), interval_energy(intervals, start_s, end_s), inside)
        for domain, (intervals, inside) in read_domain_intervals(log, offset_s).items()
    ]


class TurbostatMeter:
    """turbostat running beside us, one table a second into an unlinked file."""

    name = "turbostat"
    max_interval_s: float | None = None

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self._process = process
        self._output = output
        self._offset = WallOffset()

    def sample(self, now_s: float) -> None:
        self._offset.note(now_s)

    def is_counting(self) -> bool | None:
        return True  # tried in open_turbostat

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        self._output.seek(0)
        text = self._output.read().decode("utf-8", "replace")
        whole = text[: text.rfind("\n") + 1]
        return sum_log_energies(parse_turbostat(whole, "turbostat's output"), start_s, end_s, self._offset.near(end_s))

    def drop_samples(self, before_s: float) -> None:
        """The samples are the log's."""

    def notes(self) -> list[str]:
        return ["turbostat: it wakes every CPU once a second, which is part of what is measured"]

    def close(self) -> None:
        programs.stop(self._process, patience_s=3.0)
        self._output.close()


def open_turbostat() -> TurbostatMeter:
    """Start turbostat. Raises CapabilityError where it is not installed, may not run, or shows no watts."""
    if not paths.is_this_host():
        raise CapabilityError(
            "turbostat: it reads the running machine, and POWERPROF_SYSFS or POWERPROF_PROCFS is set",
            "unset POWERPROF_SYSFS POWERPROF_PROCFS",
        )
    program = programs.need("turbostat", "linux-cpupower")
    base: list[str | Path] = [program, "--quiet", "--show", _SHOW]
    try:
        tried = programs.run([*base, "--interval", "0.3", "--num_iterations", "1"], timeout_s=10)
        log = parse_turbostat(tried.stdout, "turbostat's output")
    except (PowerprofError, DataError) as error:
        raise CapabilityError(f"turbostat: it cannot run here ({error.message})", _HINT) from error
    if not any(any(_interval_watts(interval).values()) for interval in log.intervals):
        raise CapabilityError("turbostat: it runs and shows no watts (PkgWatt is absent or 0)", _HINT)
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the meter
    process = programs.start([*base, "--interval", str(_INTERVAL_S)], stdout=output)
    return TurbostatMeter(process, output)


# PowerTOP's own figure for the machine, where it has one: the battery's discharge, or its baseline estimate.
#
# Both are estimates to us: PowerTOP fits them over past runs (src/parameters/learn.cpp of PowerTOP 2.14) and a report
# does not say which battery sample they rest on.

_SECONDS = 5
_DISCHARGE = re.compile(r"battery reports a discharge rate of:?[\s;]*([\d.]+)\s*([mu]?)\s*W", re.I)
_BASELINE = re.compile(r"system baseline power is estimated at:?[\s;]*([\d.]+)\s*([mu]?)\s*W", re.I)
_PREFIX = {"": 1.0, "m": 1e-3, "u": 1e-6}


def find_report_watts(text: str) -> tuple[float, str] | None:
    """Watts in a PowerTOP report and which of its figures it is; None where it gives none or 0."""
    for pattern, name in ((_DISCHARGE, "battery discharge"), (_BASELINE, "system baseline")):
        match = pattern.search(text)
        if match:
            watts = float(match[1]) * _PREFIX[match[2].lower()]
            if watts > 0:
                return watts, name
    return None


class PowertopMeter:
    """PowerTOP run again and again beside us, five seconds a report."""

    name = "powertop"
    max_interval_s: float | None = float(_SECONDS)

    def __init__(self, program: Path) -> None:
        self._program = program
        self._report = open_unnamed_file()
        self._samples: list[PowerSample] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._last: float | None = None

    def sample(self, now_s: float) -> None:
        if self._process is None or self._process.poll() is not None:
            self._collect()
            self._process = programs.start(
                [self._program, f"--csv={OUTPUT}", f"--time={_SECONDS}"], stdin=self._report, own_mounts=True
            )
        # Between two reports the last one stands; before the first one there is nothing to say.
        self._samples.append(PowerSample(now_s, self._last))

    def _collect(self) -> None:
        text = read_from_start(self._report)
        if text:
            reported = find_report_watts(text)
            self._last = reported[0] if reported else None
            self._report.truncate(0)

    def is_counting(self) -> bool | None:
        return None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy("machine", "model", power_energy(self._samples, start_s, end_s, 3.0 * _SECONDS))]

    def drop_samples(self, before_s: float) -> None:
        drop_old_samples(self._samples, before_s)

    def notes(self) -> list[str]:
        return ["powertop: its watts are an estimate, and running it is part of what is measured"]

    def close(self) -> None:
        if self._process is not None:
            programs.stop(self._process, patience_s=3.0)
            self._process = None
        self._report.close()


def open_powertop() -> PowertopMeter:
    """PowerTOP where it gives watts. Raises CapabilityError where it is absent or knows none."""
    if not paths.is_this_host():
        raise CapabilityError(
            "powertop: it reads the running machine, and POWERPROF_SYSFS or POWERPROF_PROCFS is set",
            "unset POWERPROF_SYSFS POWERPROF_PROCFS",
        )
    program = programs.need("powertop", "powertop")
    with closing(TimedProgram("powertop", "powertop")) as tried:
        try:
            tried.launch([f"--csv={OUTPUT}", "--time=1"], 1.0)
            outcome = tried.outcome()
        except PowerprofError as error:
            raise CapabilityError(f"powertop: it cannot run here ({error})", "run as root") from error
        if outcome is None or outcome.returncode != 0:
            why = printable(outcome.messages[-1])[:200] if outcome and outcome.messages else "it failed"
            raise CapabilityError(f"powertop: it cannot run here ({why})", "run as root")
        text = tried.report()
    if find_report_watts(text) is None:
        raise CapabilityError(
            "powertop: its report gives no watts (it needs a battery that discharges)",
            "unplug the power supply and run: powertop --calibrate; or use the estimate (--energy-source model)",
        )
    return PowertopMeter(program)
