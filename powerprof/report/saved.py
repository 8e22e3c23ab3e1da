"""Which report belongs to which kind of saved record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from powerprof.errors import DataError
from powerprof.records import Run
from powerprof.runs import RunStore, decode, schema_of


@dataclass(frozen=True)
class Saved:
    """A record and the function that makes its lines for a terminal of a given width."""

    record: msgspec.Struct
    lines: Callable[[int], list[str]]


def _run(path: Path) -> Saved:
    run = decode(path, Run)
    if not run.phases:
        raise DataError(path, "a run without phases")
    if run.command == "residency":
        from powerprof.report.residency import render

        driver = run.host.get("idle_driver")
        text = render(run.phases[0].windows[0], f"driver {driver}" if driver else None)
        return Saved(run, lambda width: text.splitlines())
    from powerprof.report import idle

    return Saved(run, lambda width: idle.lines(run, width))


_READERS: dict[str, Callable[[Path], Saved]] = {"powerprof.run/1": _run}


def load_saved(name: str, runs_dir: Path | None = None) -> Saved:
    """Read a saved run by id, folder or file. Raises UsageError and DataError."""
    path = RunStore(runs_dir).find(name)
    schema = schema_of(path)
    reader: Any = _READERS.get(schema)
    if reader is None:
        raise DataError(path, f"there is no report for {schema!r}")
    saved: Saved = reader(path)
    return saved
