"""The one table of record types: what a schema is read as, and what its record can become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from powerprof.errors import UsageError

R = TypeVar("R", bound=msgspec.Struct)
_ONE_LINE = 100_000


@dataclass(frozen=True)
class Kind(Generic[R]):
    """A type of record and its lines for a terminal of a given width."""

    record: type[R]
    lines: Callable[[R, int], list[str]]


def _residency() -> Kind[Any]:
    from powerprof.records import Run
    from powerprof.report import residency

    return Kind(Run, residency.lines)


def _idle() -> Kind[Any]:
    from powerprof.records import IdleRun
    from powerprof.report import idle

    return Kind(IdleRun, idle.lines)


def _load() -> Kind[Any]:
    from powerprof.experiment.records import LoadRun
    from powerprof.report import load

    return Kind(LoadRun, load.lines)


def _comparison() -> Kind[Any]:
    from powerprof.experiment.records import Comparison
    from powerprof.report import compare

    return Kind(Comparison, compare.lines)


def _sweep() -> Kind[Any]:
    from powerprof.experiment.sweep import Sweep
    from powerprof.report import sweep

    return Kind(Sweep, sweep.lines)


def _attribution() -> Kind[Any]:
    from powerprof.attribution.records import Attribution
    from powerprof.report import attribution

    return Kind(Attribution, attribution.lines)


def _on_cpu() -> Kind[Any]:
    from powerprof.attribution.oncpu import OnCpuProfile
    from powerprof.report import oncpu

    return Kind(OnCpuProfile, oncpu.lines)


def _functions() -> Kind[Any]:
    from powerprof.attribution.functions import FunctionProfile
    from powerprof.report import functions

    return Kind(FunctionProfile, functions.lines)


def _diagnosis() -> Kind[Any]:
    from powerprof.diagnosis.findings import Diagnosis
    from powerprof.report import diagnosis

    return Kind(Diagnosis, partial(diagnosis.lines, all_notes=True))


def _energy() -> Kind[Any]:
    from powerprof.energy.result import EnergyResult
    from powerprof.report import energy

    return Kind(EnergyResult, energy.lines)


# Functions, since reading one kind of record must not load the code of all.
_KINDS: dict[str, Callable[[], Kind[Any]]] = {
    "powerprof.run/1 residency": _residency,
    "powerprof.run/1 idle": _idle,
    "powerprof.run/1 run": _load,
    "powerprof.comparison/1": _comparison,
    "powerprof.sweep/1": _sweep,
    "powerprof.attribution/1": _attribution,
    "powerprof.oncpu/1": _on_cpu,
    "powerprof.functions/1": _functions,
    "powerprof.diagnosis/1": _diagnosis,
    "powerprof.energy/1": _energy,
}


def kind_of(schema: str, command: str | None) -> Kind[Any] | None:
    """What a schema stands for; None for one that has no report. Runs are told apart by their command."""
    found = _KINDS.get(schema) or _KINDS.get(f"{schema} {command}")
    return found() if found else None


def lines_of(record: Any, width: int) -> list[str]:
    """The report of any record in `_KINDS`, for a terminal of `width` columns."""
    kind = kind_of(record.schema, getattr(record, "command", None))
    if kind is None:
        raise UsageError(f"there is no report for a {type(record).__name__.lower()}", "use --json FILE")
    return kind.lines(record, width)


def said(record: Any) -> tuple[str, str]:
    """The first two lines of its report, unwrapped: the answer, and what it is about."""
    found = [*lines_of(record, _ONE_LINE), "", ""]
    return found[0], found[1]
