"""Which report belongs to which kind of saved record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from powerprof.errors import DataError
from powerprof.records import Run
from powerprof.runs import RunStore, decode, schema_of

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Saved:
    """A record and the function that makes its lines for a terminal of a given width."""

    record: msgspec.Struct
    lines: Callable[[int], list[str]]


def _read(path: Path, kind: type[T], lines: Callable[[T, int], list[str]]) -> Saved:
    found = decode(path, kind)
    return Saved(found, lambda width: lines(found, width))


def _run(path: Path) -> Saved:
    run = decode(path, Run)
    if not run.phases:
        raise DataError(path, "a run without phases")
    if run.command == "residency":
        if not run.phases[0].windows:
            raise DataError(path, "a residency run without windows")
        from powerprof.report.residency import render

        driver = run.host.get("idle_driver")
        text = render(run.phases[0].windows[0], f"driver {driver}" if driver else None)
        return Saved(run, lambda width: text.splitlines())
    if run.command == "run":
        from powerprof.report import run as loaded

        return Saved(run, lambda width: loaded.lines(run, width))
    from powerprof.report import idle

    return Saved(run, lambda width: idle.lines(run, width))


def _comparison(path: Path) -> Saved:
    from powerprof.experiment.records import Comparison
    from powerprof.report import compare

    return _read(path, Comparison, compare.lines)


def _attribution(path: Path) -> Saved:
    from powerprof.attribution.records import Attribution
    from powerprof.report import attribution

    return _read(path, Attribution, attribution.lines)


def _sweep(path: Path) -> Saved:
    from powerprof.experiment.sweep import Sweep
    from powerprof.report import sweep

    return _read(path, Sweep, sweep.lines)


def _on_cpu(path: Path) -> Saved:
    from powerprof.attribution.oncpu import OnCpuProfile
    from powerprof.report import oncpu

    return _read(path, OnCpuProfile, oncpu.lines)


def _functions(path: Path) -> Saved:
    from powerprof.attribution.functions import FunctionProfile
    from powerprof.report import functions

    return _read(path, FunctionProfile, functions.lines)


def _diagnosis(path: Path) -> Saved:
    from powerprof.diagnosis.findings import Diagnosis
    from powerprof.report import diagnosis as text

    found = decode(path, Diagnosis)
    return Saved(found, lambda width: text.lines(found, width, all_notes=True))


_READERS: dict[str, Callable[[Path], Saved]] = {
    "powerprof.run/1": _run,
    "powerprof.comparison/1": _comparison,
    "powerprof.sweep/1": _sweep,
    "powerprof.attribution/1": _attribution,
    "powerprof.oncpu/1": _on_cpu,
    "powerprof.functions/1": _functions,
    "powerprof.diagnosis/1": _diagnosis,
}


def load_saved(name: str, runs_dir: Path | None = None) -> Saved:
    """Read a saved run by id, folder or file. Raises UsageError and DataError."""
    path = RunStore(runs_dir).find(name)
    schema = schema_of(path)
    reader: Any = _READERS.get(schema)
    if reader is None:
        raise DataError(path, f"there is no report for {schema[:40]!r}")
    saved: Saved = reader(path)
    return saved
