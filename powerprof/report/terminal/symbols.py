# SPDX-License-Identifier: Apache-2.0
"""`powerprof symbols` for a terminal: which files have names, from where, and the command for the rest."""

from __future__ import annotations

from powerprof import text
from powerprof.attribution.symbols import SymbolFile, Symbols

_FROM = {
    "symtab": "its symbol table",
    "gopclntab": "the table of Go's runtime",
    "gnu_debugdata": ".gnu_debugdata",
    "dynsym": "exported symbols only",
    None: "no symbols",
    "build_id": "debug file, by build id",
    "debuglink": "debug file, by its link",
    "debuginfod": "debug file, by debuginfod",
}


def headline(record: Symbols) -> str:
    """The share of wake-ups with a name where it is known, else how many files have all of theirs."""
    complete = sum(file.is_complete for file in record.files)
    completeness = f"complete in {complete} of {text.some(len(record.files), 'file')}"
    if record.wakeups_named_percent is None or record.wakeups_count is None:
        return f"Names of {record.label} are {completeness}."
    share = text.number(record.wakeups_named_percent, 1)
    ends = f"{share} % of {record.wakeups_count:,} wake-ups of {record.label} are for a function with a name"
    return f"{ends}; names are {completeness}."


def lines(record: Symbols, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """The whole report."""
    printed = [*text.wrap(headline(record), width), ""]
    traced = record.wakeups_count is not None
    printed.append(
        f"{'functions named':>19}  {'wake-ups unnamed' if traced else '':>{16 if traced else 0}}  file".rstrip()
    )
    for file in record.files[:top]:
        share = f"{text.number(file.unnamed_wakeups_percent, 1, ' %'):>16}" if traced else ""
        printed.append(text.cut(f"{_named(file):>19}  {share}  {file.module}: {_source(file)}", width))
        if file.package is not None and not file.fetched:
            printed.append(f"{'':>19}  {'':>{16 if traced else 0}}  its debug package: {file.package}")
    if left := len(record.files) - top:
        printed += [f"{left} more (--top N, or --json)"] if left > 0 else []
    came = [file for file in record.files if file.fetched]
    refused = [file for file in record.files if file.fetched is False]
    if came or refused:
        got = f"{text.some(len(came), 'debug file')} fetched"
        printed += ["", *text.wrap(f"{got}, {len(refused)} not.", width)]
        printed += [line for note in record.notes for line in text.wrap(f"Note: {note}.", width)]
    if record.command is not None:
        # One line however long, so that it can be copied.
        printed += ["", "To get the missing names:", f"  {record.command}"]
    elif not all(file.is_complete for file in record.files):
        printed += ["", *text.wrap("No package and no server is known to have the missing names.", width)]
    return printed


def _named(file: SymbolFile) -> str:
    if file.functions_count is None or file.named_count is None:
        return "unknown"
    return f"{file.named_count:,} of {file.functions_count:,}"


def _source(file: SymbolFile) -> str:
    if file.note is not None and file.functions_count is None:
        return file.note
    return _FROM.get(file.debug_from or file.names_from, "unknown")
