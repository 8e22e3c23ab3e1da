# SPDX-License-Identifier: Apache-2.0
"""The saved runs as a history: the target and the answer of each, its age, and the runs that may be removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from powerprof.model import text
from powerprof.model.runs import About, RunInfo
from powerprof.report.document import View, word_end
from powerprof.report.kinds import kind_of
from powerprof.system.errors import UsageError
from powerprof.system.foreign_text import printable

_CELL_LIMIT = 200
_ANSWER_LIMIT = 100_000
_DAY_S = 86_400.0
_AGES = ((365 * _DAY_S, "y"), (_DAY_S, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def about(record: Any, labels: Sequence[str] = ()) -> About:
    """Return the labels, the target and the answer that are saved next to a record for lists of runs."""
    answer = None
    if (kind := kind_of(record)) is not None:
        answer = printable(kind.document(record, View()).answer)[:_ANSWER_LIMIT] or None
    return About(labels=list(labels), target=_target_of(record), answer=answer)


def _target_of(record: Any) -> str | None:
    """Return the name of the conditions, the study, the process or the server of a record."""
    a, b, condition = (getattr(record, name, None) for name in ("a", "b", "condition"))
    if a is not None and b is not None:
        return f"{a.name} / {b.name}"
    if (study := getattr(record, "study", None)) is not None:
        return str(study)
    if condition is not None:
        name = str(condition.name)
        return name if condition.workload == "command" else f"{condition.workload}:{name}"
    label = getattr(getattr(record, "target", record), "label", None)
    if label:
        return str(label)
    server = getattr(record, "server", None)
    shown = getattr(server, "label", None) or getattr(server, "version", None)
    return str(shown) if shown else None


def age(started_at: str | None, now: datetime) -> str:
    """Return an age such as `3 h` or `12 d`; `?` if the start time is invalid."""
    seconds = _seconds_since(started_at, now)
    if seconds is None:
        return text.UNKNOWN
    return next((f"{int(seconds / unit)} {name}" for unit, name in _AGES if seconds >= unit), "now")


def _seconds_since(started_at: str | None, now: datetime) -> float | None:
    try:
        start = datetime.fromisoformat((started_at or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return (now - (start if start.tzinfo else start.replace(tzinfo=UTC))).total_seconds()


def lines(runs: Sequence[RunInfo], directory: Path, width: int, now: datetime | None = None) -> list[str]:
    """Return the list of saved runs: two lines per run, with id, age, target and labels, then the answer."""
    if not runs:
        return [f"No runs in {directory}."]
    moment = now or datetime.now(UTC)
    rows, answers = [], []
    for run in runs:
        answer = run.problem or " ".join(filter(None, [word_end(run.ended), run.answer or run.schema or ""]))
        labels = " ".join(f"[{label}]" for label in run.labels)
        cells = (run.id, age(run.started_at, moment), run.target or "", labels)
        # Cells are cleaned before they are padded: a line end in a record must not begin a line of the list.
        rows.append([printable(cell)[:_CELL_LIMIT] for cell in cells])
        answers.append(printable(answer)[:_CELL_LIMIT])
    heads = text.columns(rows, left=len(rows[0]))
    if max(map(len, heads)) > width:
        heads = ["  ".join(filter(None, row)) for row in rows]
    pairs = zip(heads, answers, strict=True)
    return [
        line
        for head, answer in pairs
        for line in (*text.fit_lines([head], width), text.shorten(f"    {answer}", width))
    ]


def removable_runs(
    runs: Sequence[RunInfo], keep: int | None, older_than_days: float | None, now: datetime | None = None
) -> list[RunInfo]:
    """Return the runs that `prune` removes: without a label, not among the newest `keep` of a command, and old.

    Raises UsageError if neither limit is given.
    """
    if keep is None and older_than_days is None:
        raise UsageError("prune needs --keep N or --older-than DAYS", "labelled runs are always kept")
    moment = now or datetime.now(UTC)
    by_command: dict[str, list[RunInfo]] = defaultdict(list)
    for run in runs:
        by_command[run.command].append(run)
    newest = {run.id for same in by_command.values() for run in (same[-keep:] if keep else [])}
    removable = []
    for run in runs:
        seconds = _seconds_since(run.started_at, moment)
        is_old = older_than_days is None or (seconds is not None and seconds > older_than_days * _DAY_S)
        if not run.labels and is_old and (keep is None or run.id not in newest):
            removable.append(run)
    return removable
