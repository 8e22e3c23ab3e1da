# SPDX-License-Identifier: Apache-2.0
"""List saved runs and their results, label one, or remove old ones.

powerprof runs RUN prints the path of a run. powerprof runs prune removes old runs; labelled runs are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from powerprof.cli.options import CommandOptions
from powerprof.cli.output import write_files, write_json
from powerprof.cli.outputs import TABLES, Outputs, check_targets, json_file, json_output, labels, output_files
from powerprof.cli.parameters import Mode, argument, flag, program_value, time_span, whole_number
from powerprof.cli.terminal import print_report, print_text, report_lines, terminal_width
from powerprof.system.errors import UsageError
from powerprof.system.next_steps import command_line


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `runs`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("prune",), allows=("--keep", "--older-than", "--yes")),
        Mode(words=("[RUN|prune]",), circumstance="without a RUN", is_without=True, allows=("--json",)),
    )

    name: str | None = argument("[RUN|prune]", "Run to show or label; or the word prune.")
    label: list[str] | None = labels(excludes=("--trend",))
    trend: bool = flag("--trend", "Show all runs of this condition over time, and the points of change.")
    keep: int | None = whole_number(
        "--keep", "N", "With prune: keep the newest N runs of each command.", low=0, high=1_000_000, needs=("prune",)
    )
    older_than: float | None = time_span(
        "--older-than", "With prune: keep runs younger than this.", low=0, high=36_525, unit="d", needs=("prune",)
    )
    yes: bool = flag("--yes", "With prune: delete the runs (default: only list them).", needs=("prune",))
    runs_dir: Path | None = program_value("runs_dir")
    outputs: Outputs = output_files(*TABLES, needs=("--trend",))
    json: str | None = json_file()


def command(options: Options) -> None:
    """List the runs, oldest first; or show, label, compare or remove some."""
    name, json, runs_dir = options.name, options.json, options.runs_dir
    files = [*json_output(json), *options.outputs]
    check_targets(files)
    if name == "prune":
        _prune(runs_dir, options.keep, options.older_than, options.yes)
        return
    if name == "export":
        raise UsageError("no such action: export", command_line("report RUN -o FILE.csv"))
    if name is None:
        _list(runs_dir, json)
    elif options.trend:
        _trend(name, runs_dir, files)
    else:
        if json is not None:
            raise UsageError("--json has no effect with a RUN", command_line("report {} --json FILE", name))
        _one(name, runs_dir, options.label or [])


def _list(runs_dir: Path | None, json: str | None) -> None:
    from powerprof.model.runs import RunStore
    from powerprof.report import history

    store = RunStore(runs_dir)
    runs = store.list()
    write_json({"schema": "powerprof.runs/1", "runs": runs}, json)
    if json is None:
        print_text("\n".join(history.lines(runs, store.directory, terminal_width() if runs else 200)))


def _one(name: str, runs_dir: Path | None, words: list[str]) -> None:
    from powerprof.model.runs import About, RunStore, check_label, read_schema

    about = About(labels=[check_label(word) for word in words])
    store = RunStore(runs_dir)
    path = store.find(name)
    read_schema(path)
    if words:
        store.describe(name, about)
    print_text(str(path))


def _prune(runs_dir: Path | None, keep: int | None, older_than: float | None, yes: bool) -> None:
    from powerprof.model.runs import RunStore
    from powerprof.report import history

    store = RunStore(runs_dir)
    old = history.removable_runs(store.list(), keep, older_than)
    if not old:
        print_text("Nothing to remove.")
        return
    for run in old if yes else []:
        store.remove(run.id)
    for line in history.lines(old, store.directory, terminal_width()):
        print_text(line)
    count = f"{len(old)} run{'s' if len(old) > 1 else ''}"
    print_text(f"{count} removed." if yes else f"{count} would be removed: add --yes.")


def _trend(name: str, runs_dir: Path | None, files: Outputs) -> None:
    from powerprof.experiment.trend import build_trend
    from powerprof.report.wording import word_record

    record = word_record(build_trend(name, runs_dir))
    write_files(record, files)
    if not any(file.target == "-" for file in files):
        print_report(report_lines(record))
