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
from powerprof.report.kinds import kind_of
from powerprof.report.labels import answer_and_context
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.files import printable

_CELL = 200
_MAX_ANSWER = 100_000
_DAY_S = 86_400.0
_AGES = ((365 * _DAY_S, "y"), (_DAY_S, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def about(record: Any, labels: Sequence[str] = ()) -> About:
    """What is kept beside a record: what it measured and its answer, as its report begins."""
    answer = None
    if (kind := kind_of(record)) is not None:
        answer = printable(answer_and_context(kind.lines, record)[0])[:_MAX_ANSWER] or None
    return About(labels=list(labels), target=_target(record), answer=answer)


def _target(record: Any) -> str | None:
    """The condition, the conditions, the process or the server."""
    a, b, condition = (getattr(record, name, None) for name in ("a", "b", "condition"))
    if a is not None and b is not None:
        return f"{a.name} / {b.name}"
    if (study := getattr(record, "study", None)) is not None:
        return str(study)
    if condition is not None:
        name = str(condition.name)
        return name if condition.workload == "command" else f"{condition.workload}:{name}"
    executable = getattr(getattr(record, "target", None), "executable", None)
    if executable:
        return Path(executable).name
    server = getattr(record, "server", None)
    version = server.get("version") if isinstance(server, dict) else getattr(server, "version", None)
    return str(version) if version else None


def age(started_at: str | None, now: datetime) -> str:
    """`3 h`, `12 d`; ? where the time cannot be read."""
    seconds = _seconds_ago(started_at, now)
    if seconds is None:
        return text.UNKNOWN
    return next((f"{int(seconds / unit)} {name}" for unit, name in _AGES if seconds >= unit), "now")


def _seconds_ago(started_at: str | None, now: datetime) -> float | None:
    try:
        then = datetime.fromisoformat((started_at or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()


def lines(runs: Sequence[RunInfo], directory: Path, width: int, now: datetime | None = None) -> list[str]:
    """Two lines a run, or that there is none: id, age, what was measured and labels; then the answer."""
    if not runs:
        return [f"No runs in {directory}."]
    moment = now or datetime.now(UTC)
    rows, states = [], []
    for run in runs:
        state = run.problem or (("interrupted: " if run.interrupted else "") + (run.answer or run.schema or ""))
        labelled = " ".join(f"[{label}]" for label in run.labels)
        cells = (run.id, age(run.started_at, moment), run.target or "", labelled)
        # Cleaned before it is padded: a line end in a record must not begin a line of the list.
        rows.append([printable(cell)[:_CELL] for cell in cells])
        states.append(printable(state)[:_CELL])
    heads = text.columns(rows, left=len(rows[0]))
    pairs = zip(heads, states, strict=True)
    return [text.shorten(line, width) for head, state in pairs for line in (head, f"    {state}")]


def superfluous(
    runs: Sequence[RunInfo], keep: int | None, older_than_days: float | None, now: datetime | None = None
) -> list[RunInfo]:
    """The runs that may go: beyond the newest `keep` of each command, or older than that. Labelled ones never do.

    Raises UsageError where neither is given.
    """
    if keep is None and older_than_days is None:
        raise UsageError("prune needs --keep N or --older-than DAYS", "labelled runs are kept in any case")
    moment = now or datetime.now(UTC)
    by_command: dict[str, list[RunInfo]] = defaultdict(list)
    for run in runs:
        by_command[run.id.rpartition("-")[0]].append(run)
    newest = {run.id for same in by_command.values() for run in (same[-keep:] if keep else [])}
    unneeded = []
    for run in runs:
        seconds = _seconds_ago(run.started_at, moment)
        old = older_than_days is None or (seconds is not None and seconds > older_than_days * _DAY_S)
        if not run.labels and old and (keep is None or run.id not in newest):
            unneeded.append(run)
    return unneeded


def same_before(runs: Sequence[RunInfo], this: RunInfo, label: str) -> RunInfo:
    """The newest run before `this` of the same command and target: with that label, or (`last`) any.

    Raises PowerprofError where there is none.
    """
    kind = this.id.rpartition("-")[0]
    before = [run for run in runs if run.id.rpartition("-")[0] == kind and run.id != this.id and run.problem is None]
    if label == "last":
        at = (this.started_at or "", this.id)
        before = [run for run in before if (run.started_at or "", run.id) < at]
    else:
        before = [run for run in before if label in run.labels]
    same = [run for run in before if run.target == this.target]
    if not same:
        what = "earlier run" if label == "last" else f"run with the label {label}"
        raise PowerprofError(
            f"there is no {what} of the same command and target as {this.id}", "powerprof runs lists them"
        )
    return same[-1]
