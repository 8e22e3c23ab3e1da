# SPDX-License-Identifier: Apache-2.0
"""What is saved beside a record and belongs on its page: the capture of an attribution, the stacks of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.errors import UsageError
from powerprof.report.html.extras import Extras, extras_of_two
from powerprof.runs import RunStore, schema_of

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture
    from powerprof.attribution.records import Attribution

_ATTRIBUTION = "powerprof.attribution/1"
_COMPARISON = "powerprof.comparison/1"
_SAME = {"mysqld": "mariadbd"}  # two names of one program


def extras_of(name: str, runs_dir: Path | None, flames: tuple[str | None, str | None] = (None, None)) -> Extras:
    """The timeline of a saved attribution; for a comparison the stacks of two attributions, per second of each.

    Raises UsageError and DataError.
    """
    from powerprof.attribution import capture
    from powerprof.report.stacks.timeline import timeline_of

    path = RunStore(runs_dir).find(name)
    raw = path.parent / capture.FILE
    schema = schema_of(path)
    if any(flames) and schema != _COMPARISON:
        raise UsageError("--flame-a and --flame-b belong to a comparison", f"{name} is none")
    if schema == _ATTRIBUTION:
        # A record that was copied elsewhere may lie beside the capture of another one: only a run's folder counts.
        return Extras(timeline=timeline_of(capture.load(raw)) if path.name == "run.json" and raw.is_file() else ())
    a, b = (_attribution(flame, runs_dir) if flame else None for flame in flames)
    if a is not None and b is not None:
        programs = [_SAME.get(name, name) for name in (_program(a), _program(b))]
        if programs[0] != programs[1]:
            raise UsageError(
                f"{flames[0]} is of {a.target.label}, {flames[1]} of {b.target.label}: a difference would mean nothing",
                "name two attributions of one program",
            )
    return extras_of_two(a, b)


def _program(record: Attribution) -> str:
    return (record.target.executable or record.target.label).rpartition("/")[2]


def extras_of_capture(taken: Capture | None) -> Extras:
    """What a capture at hand adds to the page of its attribution."""
    from powerprof.report.stacks.timeline import timeline_of

    return Extras(timeline=timeline_of(taken) if taken is not None else ())


def _attribution(name: str, runs_dir: Path | None) -> Attribution:
    from powerprof.attribution.records import Attribution
    from powerprof.runs import decode

    path = RunStore(runs_dir).find(name)
    if schema_of(path) != _ATTRIBUTION:
        raise UsageError(f"{name} is not an attribution", "powerprof attribute makes one")
    return decode(path, Attribution)
