# SPDX-License-Identifier: Apache-2.0
"""Show a saved run again, or write it as a file of another kind.

That is HTML, Markdown, CSV, JSON, or a profile for another viewer; the same run always gives the same output. A flame
graph, folded stacks and profiles need an attribution. The page of a comparison has the flame graphs of its own traced
windows, or with --flame-a and --flame-b those of two attributions and their difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer

from powerprof.cli import output
from powerprof.cli.options import Json, ProfileOptions, RunsDir, Tables, files_of
from powerprof.system.errors import UsageError
from powerprof.system.files import reading

Name = Annotated[str, typer.Argument(metavar="RUN", help="Run id, run folder or JSON file.")]
FlameA = Annotated[str | None, typer.Option("--flame-a", metavar="RUN", help="Attribution of a comparison's A.")]
ReportTop = Annotated[
    int | None, typer.Option("--top", metavar="N", min=1, max=100_000, help="Rows to print.", show_default=False)
]
ReportColumns = Annotated[
    str | None, typer.Option("--columns", metavar="NAMES", help="Columns of `queries`, as its --columns.")
]
ReportBy = Annotated[
    str | None, typer.Option("--by", metavar="WHAT", help="Rows of `queries`: user, host, account or database.")
]
FlameB = Annotated[str | None, typer.Option("--flame-b", metavar="RUN", help="Attribution of a comparison's B.")]


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a year of it costs, derived from what you state."""

    price: Annotated[str | None, typer.Option("--price", metavar="0.30EUR", help="Price of a kWh.")] = None
    grid: Annotated[float | None, typer.Option("--grid", metavar="G", help="Grams of CO2 of a kWh there.")] = None


def command(
    name: Name,
    *,
    tables: Tables,
    profiles: ProfileOptions,
    flame_a: FlameA = None,
    flame_b: FlameB = None,
    prices: Prices,
    top: ReportTop = None,
    columns: ReportColumns = None,
    by: ReportBy = None,
    runs_dir: RunsDir = None,
    json: Json = None,
) -> None:
    """Read and render."""
    files = files_of(tables, profiles)
    output.check_targets(json, files)
    if (flame_a or flame_b) and tables.html is None:
        raise UsageError("--flame-a and --flame-b are for a page", "add --html FILE")
    from powerprof.report import energy
    from powerprof.report.kinds import load_saved

    asked = energy.parse_terms(prices.price, prices.grid)
    record = load_saved(name, runs_dir)
    lines = _lines(record, top=top, columns=columns, by=by)
    derived = energy.yearly_sentence(record, asked) if asked != energy.PriceTerms() else ""
    extras = None
    if tables.html is not None or profiles.perfetto is not None:
        from powerprof.report.exports import read_extras

        extras = read_extras(name, runs_dir, (flame_a, flame_b))
        extras = replace(extras, derived=derived)
    # Parts of a record that are free in form are looked at only when they are drawn.
    with reading(name):
        output.write_exports(record, files, extras)
        output.write_json(record, json)
        # Who asked for files wants files: the report is shown where none was asked for.
        if not any(files.values()) and json != "-":
            output.show([*output.report(record, lines), *([derived] if derived else [])])


def _lines(record: Any, **asked: Any) -> Callable[[Any, int], list[str]] | None:
    """What prints the record with `top` rows, or these `columns`; None for the usual. Raises UsageError where its
    report has none."""
    wanted = {name: value for name, value in asked.items() if value is not None}
    if not wanted:
        return None
    from powerprof.report.kinds import kind_of, missing_form

    kind = kind_of(record)
    if kind is None:
        raise missing_form(record, "report")
    for name, value in wanted.items():
        if name not in kind.options:
            raise UsageError(f"--{name} {value} has no effect on a report of {record.command}", "leave it out")
    return partial(kind.lines, **wanted)
