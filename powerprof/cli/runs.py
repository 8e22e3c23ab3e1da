# SPDX-License-Identifier: Apache-2.0
"""List the saved runs with what they said, label one, or remove old ones.

powerprof runs RUN says where it is, --label NAME labels it, --trend shows all runs of its condition in the order of
time and where they changed. powerprof runs prune removes what --keep and --older-than leave over, labelled runs never.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from powerprof.cli.options import Html, Json, Labels, RunsDir, refuse_without_effect
from powerprof.cli.output import check_targets, report, say, show, terminal_width, write_exports, write_json
from powerprof.system.errors import UsageError

Name = Annotated[
    str | None, typer.Argument(metavar="[RUN|prune]", help="A run: its file is printed.", show_default=False)
]
Trend = Annotated[bool, typer.Option("--trend", help="All runs of this run's condition, and where they changed.")]
Keep = Annotated[
    int | None,
    typer.Option("--keep", metavar="N", min=0, max=1_000_000, help="Of prune: keep the newest N of each command."),
]
OlderThan = Annotated[
    float | None,
    typer.Option("--older-than", metavar="DAYS", min=0, max=36_525, help="Of prune: keep what is younger."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Of prune: remove, instead of saying what would be.")]

_PRUNE = "prune"
_OF_ALL = ("runs_dir", "json")
_OF_PRUNE = ("keep", "older_than", "yes", "runs_dir")


def command(
    name: Name = None,
    *,
    context: typer.Context,
    label: Labels = None,
    trend: Trend = False,
    keep: Keep = None,
    older_than: OlderThan = None,
    yes: Yes = False,
    html: Html = None,
    runs_dir: RunsDir = None,
    json: Json = None,
) -> None:
    """List, oldest first."""
    check_targets(json, {"html": html})
    if name == _PRUNE:
        refuse_without_effect(context, "with prune", but=_OF_PRUNE)
        _prune(runs_dir, keep, older_than, yes)
        return
    if name == "export":
        raise UsageError("runs has no export", "powerprof report RUN --csv FILE")
    refuse_without_effect(context, "without prune", ("keep", "older_than", "yes"))
    if name is None:
        refuse_without_effect(context, "without a RUN", but=_OF_ALL)
        _list(runs_dir, json)
    elif trend:
        refuse_without_effect(context, "with --trend", ("label",))
        _trend(name, runs_dir, html, json)
    else:
        refuse_without_effect(context, "without --trend", ("html",))
        if json is not None:
            raise UsageError("--json lists the runs, and one was named", f"powerprof report {name} --json FILE")
        _one(name, runs_dir, label or [])


def _list(runs_dir: Path | None, json: str | None) -> None:
    from powerprof.model.runs import RunStore
    from powerprof.report import history

    store = RunStore(runs_dir)
    runs = store.list()
    write_json({"schema": "powerprof.runs/1", "runs": runs}, json)
    if json is None:
        say("\n".join(history.lines(runs, store.directory, terminal_width() if runs else 200)))


def _one(name: str, runs_dir: Path | None, labels: list[str]) -> None:
    from powerprof.model.runs import About, RunStore, check_label, read_schema

    about = About(labels=[check_label(label) for label in labels])
    store = RunStore(runs_dir)
    path = store.find(name)
    read_schema(path)
    if labels:
        store.describe(name, about)
    say(str(path))


def _prune(runs_dir: Path | None, keep: int | None, older_than: float | None, yes: bool) -> None:
    from powerprof.model.runs import RunStore
    from powerprof.report import history

    store = RunStore(runs_dir)
    old = history.removable_runs(store.list(), keep, older_than)
    if not old:
        say("Nothing to remove.")
        return
    for run in old if yes else []:
        store.remove(run.id)
    for line in history.lines(old, store.directory, terminal_width()):
        say(line)
    count = f"{len(old)} run{'s' if len(old) > 1 else ''}"
    say(f"{count} removed." if yes else f"{count} would be removed: add --yes.")


def _trend(name: str, runs_dir: Path | None, html: str | None, json: str | None) -> None:
    from powerprof.experiment.sweep_comparison import trend_of
    from powerprof.report.kinds import word_record

    record = word_record(trend_of(name, runs_dir))
    write_json(record, json)
    write_exports(record, {"html": html})
    if "-" not in (json, html):
        show(report(record))
