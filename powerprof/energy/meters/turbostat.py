# SPDX-License-Identifier: Apache-2.0
"""turbostat as a meter, live or recorded: the mean watts of its intervals."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from powerprof.energy.layouts import ALL_PACKAGES, rapl_scope
from powerprof.energy.meters.meter import DomainEnergy, distinct_names, require_this_host
from powerprof.measure.clock import WallOffset
from powerprof.measure.energy_series import EnergySeries, PowerInterval, interval_energy
from powerprof.measure.turbostat import TurbostatInterval, TurbostatLog, TurbostatRow, parse_turbostat
from powerprof.system import program_search, programs
from powerprof.system.errors import CapabilityError, DataError, PowerprofError

# The domain of a package in each column.
_COLUMNS = {"PkgWatt": "package", "CorWatt": "core", "GFXWatt": "uncore", "RAMWatt": "dram"}
# With --Joules these columns hold the energy since the last table (turbostat(8)).
_JOULES = {"PkgWatt": "Pkg_J", "CorWatt": "Cor_J", "GFXWatt": "GFX_J", "RAMWatt": "RAM_J", "SysWatt": "Sys_J"}
_SHOW = "Time_Of_Day_Seconds,Package,Die,Node,Core,CPU,PkgWatt,CorWatt,GFXWatt,RAMWatt,SysWatt"
_INTERVAL_S = 1.0
_HINT = "run as root with the msr module (modprobe msr); virtual machines hide the counters"
_Domain = tuple[str, str | None]  # the domain, and the domain that includes it


class DomainIntervals(msgspec.Struct, frozen=True):
    """The mean watts of one domain in each table of a log. Without intervals it has no figure, for the reason `why`.

    `flaw` is the reason why its scope has no total.
    """

    domain: str
    inside: str | None
    intervals: tuple[PowerInterval, ...]
    why: str | None = None
    flaw: str | None = None


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
    tables = [_read_table_watts(interval) for _, _, interval in spans]
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
    return [replace(domain, flaw=_find_repeated(domain, made)) for domain in made]


# Two sockets do not draw the same hundredth of a watt in so many tables.
_LEAST_TABLES = 3


def _find_repeated(domain: DomainIntervals, domains: Sequence[DomainIntervals]) -> str | None:
    """Return the reason if another package has the same watts in each table: a guest shows one counter per socket."""
    watts = [interval.watts for interval in domain.intervals]
    if not domain.domain.startswith("package-") or "/" in domain.domain or len(watts) < _LEAST_TABLES:
        return None
    for other in domains:
        is_peer = other is not domain and other.domain.startswith("package-") and "/" not in other.domain
        if is_peer and len(set(watts)) > 1 and watts == [interval.watts for interval in other.intervals]:
            return f"{domain.domain} and {other.domain} show the same watts in {len(watts)} tables: one counter or two"
    return None


def _read_table_watts(interval: TurbostatInterval) -> dict[_Domain, float | None]:
    """Return watts by (domain, package) of one table.

    They are by package if the rows add up to the system row, otherwise they are the system row's: turbostat may repeat
    one counter in the rows of several dies, and `--cpu` hides rows. A package without a figure, unlike others, is None.
    """
    watts: dict[_Domain, float | None] = {}
    packages = dict.fromkeys(row.package for row in interval.cpus)
    for column, name in _COLUMNS.items():
        whole = None if interval.system is None else _read_watts(interval.system, column, interval.duration_s)
        by_package: dict[int | None, float] = {}
        for row in interval.cpus:
            value = _read_watts(row, column, interval.duration_s)
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
    system_watts = None if interval.system is None else _read_watts(interval.system, "SysWatt", interval.duration_s)
    if system_watts is not None:
        watts["psys", None] = system_watts
    return watts


def _read_watts(row: TurbostatRow, column: str, duration_s: float | None) -> float | None:
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
        energies.append(DomainEnergy(domain.domain, scope, series, domain.inside, domain.flaw))
    return energies


class TurbostatMeter:
    """A running turbostat that prints one table per second into an unnamed file."""

    name = "turbostat"
    max_interval_s: float | None = None
    notes = ("turbostat: it wakes every CPU once a second, which adds to the measured power",)

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

    def close(self) -> None:
        programs.stop(self._process, patience_s=3.0)
        self._output.close()


def open_turbostat() -> TurbostatMeter:
    """Start turbostat. Raise CapabilityError if it is not installed, may not run, or shows no watts."""
    require_this_host("turbostat: it reads the running machine")
    program = program_search.need("turbostat", "linux-cpupower")
    base: list[str | Path] = [program, "--quiet", "--show", _SHOW]
    try:
        trial = programs.run([*base, "--interval", "0.3", "--num_iterations", "1"], timeout_s=10)
        log = parse_turbostat(trial.stdout, "turbostat's output")
    except (PowerprofError, DataError) as error:
        raise CapabilityError(f"turbostat: it cannot run here ({error.message})", _HINT) from error
    if not any(any(_read_table_watts(interval).values()) for interval in log.intervals):
        raise CapabilityError("turbostat: it runs and shows no watts (PkgWatt is absent or 0)", _HINT)
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the meter
    process = programs.start([*base, "--interval", str(_INTERVAL_S)], stdout=output)
    return TurbostatMeter(process, output)
