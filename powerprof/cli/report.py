# SPDX-License-Identifier: Apache-2.0
"""Show a saved run again, or convert it to HTML, Markdown, CSV, JSON or a profile.

The same run always gives the same output. Flame graphs, folded stacks and profiles need a run of `attribute`. The page
of a comparison contains the flame graphs of its traced windows and their difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec.structs import replace

from powerprof.cli import output, terminal
from powerprof.cli.options import CommandOptions, top
from powerprof.cli.outputs import (
    STACKS,
    TABLES,
    Outputs,
    check_kinds,
    check_targets,
    json_file,
    json_output,
    output_files,
)
from powerprof.cli.parameters import argument, finite_number, flag, group, no_effect, option, program_value
from powerprof.system.foreign_data import reading

if TYPE_CHECKING:
    from powerprof.report.document import View


class PriceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The price and the emissions of energy."""

    HEADING: ClassVar[str] = "Yearly cost"

    price: str | None = option("--price", "0.30EUR", "Price of one kWh.")
    grid: float | None = option("--grid", "G", "CO2 emissions of one kWh in grams.", convert=finite_number)


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `report`."""

    name: str = argument("RUN", "Run id, run folder or JSON file of a run.", is_required=True)
    prices: PriceOptions = group(PriceOptions)
    top: int | None = top(default=None)
    columns: str | None = option("--columns", "NAMES", "Columns of a run of queries, as in queries --columns.")
    everything: bool = flag("--all", "Print all rows, metrics and details.")
    by: str | None = option("--by", "WHAT", "Group rows of a run of queries by user, host, account or database.")
    runs_dir: Path | None = program_value("runs_dir")
    outputs: Outputs = output_files(*TABLES, *STACKS, "perfetto")
    json: str | None = json_file()


def command(options: Options) -> None:
    """Read a record and render it."""
    name, files = options.name, [*json_output(options.json), *options.outputs]
    check_targets(files)
    from powerprof.model.text import wrap
    from powerprof.report.kinds import load_saved, name_of, reported_kind
    from powerprof.report.yearly import PriceTerms, parse_terms, yearly_sentence

    asked = parse_terms(options.prices.price, options.prices.grid)
    record = load_saved(name, options.runs_dir)
    check_kinds(files, reported_kind(record).file_kinds(), name_of(record))
    view = _choose_view(record, options.everything, top=options.top, columns=options.columns, by=options.by)
    derived = yearly_sentence(record, asked) if asked != PriceTerms() else ""
    extras = None
    if any(file.kind in ("html", "perfetto") for file in files):
        from powerprof.report.exports import read_extras

        extras = replace(read_extras(name, options.runs_dir), derived=derived)
    # Parts of a record without a schema are checked only when they are drawn.
    with reading(name):
        output.write_files(record, files, extras)
        # The report is printed only if no file was requested.
        if not options.outputs and options.json != "-":
            last = wrap(derived, terminal.terminal_width()) if derived else []
            terminal.print_report([*terminal.report_lines(record, view), *last])


def _choose_view(record: Any, everything: bool, **asked: Any) -> View:
    """Return what the user asked to see of the record. Raises UsageError for an option without an effect."""
    from powerprof.report.document import View
    from powerprof.report.kinds import document_of

    document = document_of(record)
    wanted = {name: value for name, value in asked.items() if value is not None}
    for name, value in wanted.items():
        if name not in document.views:
            raise no_effect([f"--{name} {value}"], f"on a report of {record.command}")
    whole = document.whole_view if everything else View()
    if whole is None:
        raise no_effect(["--all"], f"on a report of {record.command}")
    return replace(whole, **wanted)
