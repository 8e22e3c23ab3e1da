"""Options that write a record as a file of another kind, and what they do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from powerprof.errors import UsageError

if TYPE_CHECKING:
    from powerprof.report.html import Extras


def _option(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", metavar="FILE", help=text)


Html = Annotated[str | None, _option("html", "One self-contained page: opens offline, prints; - is stdout.")]
Markdown = Annotated[str | None, _option("markdown", "A summary for a pull request.")]
Csv = Annotated[str | None, _option("csv", "The main table for a spreadsheet.")]
Flame = Annotated[str | None, _option("flame", "A flame graph as a page of its own.")]
Folded = Annotated[str | None, _option("folded", "Folded stacks, for flamegraph.pl and others.")]
Pprof = Annotated[str | None, _option("pprof", "A profile for go tool pprof.")]
Speedscope = Annotated[str | None, _option("speedscope", "A profile for speedscope.")]
Perfetto = Annotated[str | None, _option("perfetto", "A timeline per CPU for ui.perfetto.dev.")]

Targets = Mapping[str, str | None]


def check_targets(targets: Targets) -> None:
    """Refuse what could not be written, before anything is measured. Raises UsageError."""
    if list(targets.values()).count("-") > 1:
        raise UsageError("only one of the files can be stdout", "give the others names")
    for option, target in targets.items():
        if target is None or target == "-":
            continue
        if Path(target).is_dir():
            raise UsageError(f"--{option} {target} is a directory", "name a file, or - for stdout")
        if not Path(target).parent.is_dir():
            raise UsageError(f"--{option} {target}: no such directory {Path(target).parent}", "create it first")
    files = [os.path.realpath(target) for target in targets.values() if target not in (None, "-")]
    if len(set(files)) < len(files):
        raise UsageError("two options name the same file", "give each its own")


def write_exports(record: Any, targets: Targets, extras: Extras | None = None) -> bool:
    """Write every file that was asked for. True where stdout is taken by one of them.

    Raises UsageError where the record has no such form, PowerprofError where a file cannot be written.
    """
    asked = {kind: target for kind, target in targets.items() if target is not None}
    if asked:
        from powerprof.report.exports import export
        from powerprof.report.output import write_output

        # All are made before the first is written: a refusal leaves nothing half done.
        for target, data in [(target, export(record, kind, extras)) for kind, target in asked.items()]:
            write_output(target, data)
    return "-" in asked.values()


def exporter(targets: Targets) -> Callable[[Any], None]:
    """What `save_and_show` calls to write the files that were asked for; checks them now. Raises UsageError."""
    check_targets(targets)

    def write(record: Any) -> None:
        write_exports(record, {kind: target for kind, target in targets.items() if kind != "json"})

    return write
