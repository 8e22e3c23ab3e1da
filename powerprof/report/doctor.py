# SPDX-License-Identifier: Apache-2.0
"""Lists of `powerprof doctor`: the capabilities of the host, and with --pid the symbol files of a process."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerprof.attribution.symbols import SymbolFile, Symbols
from powerprof.model import text

if TYPE_CHECKING:
    from powerprof.host.capabilities import Capability


_LEAST_DETAIL = 40  # a narrower column of details is below the names


def capability_text(capabilities: Sequence[Capability], width: int = text.DEFAULT_WIDTH) -> str:
    """Return three aligned columns. A command that fits is on one line, so that it can be copied."""
    names = max(len(capability.name) for capability in capabilities)
    indent = names + 2 + len("missing") + 2
    is_below = width - indent < _LEAST_DETAIL
    indent = 4 if is_below else indent
    lines: list[str] = []
    for capability in capabilities:
        detail = text.wrap(capability.detail, width - indent)
        if capability.remedy:
            remedy = f"→ {capability.remedy}"
            if len(detail[-1]) + 1 + len(remedy) <= width - indent:
                detail[-1] += f" {remedy}"
            else:
                detail += textwrap.wrap(remedy, width - indent, break_on_hyphens=False, break_long_words=False)
        start = f"{capability.name:<{names}}  {capability.status:<7}"
        lines += [start] if is_below else [f"{start}  {detail[0]}"]
        lines += [" " * indent + line for line in detail[0 if is_below else 1 :]]
    return "\n".join(lines)


_SOURCES = {
    "symtab": "its symbol table",
    "gopclntab": "the table of Go's runtime",
    "gnu_debugdata": ".gnu_debugdata",
    "dynsym": "exported symbols only",
    None: "no symbols",
    "build_id": "debug file, by build id",
    "debuglink": "debug file, by its link",
    "debuginfod": "debug file, by debuginfod",
}


def symbols_answer(record: Symbols) -> str:
    """Return the share of wake-ups with a name if it is known, else the number of files with all names."""
    complete = sum(file.is_complete for file in record.files)
    completeness = f"complete in {complete} of {text.plural(len(record.files), 'file')}"
    if record.wakeups_named_percent is None or record.wakeups_count is None:
        return f"Symbols of {record.label} are {completeness}."
    share = text.number(record.wakeups_named_percent, 1)
    ends = f"{share} % of {record.wakeups_count:,} wake-ups of {record.label} have a function name"
    return f"{ends}; symbols are {completeness}."


def symbols_lines(record: Symbols, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """Return the report of symbol files."""
    printed = [*text.wrap(symbols_answer(record), width), ""]
    traced = record.wakeups_count is not None
    rows = [["functions named", "wake-ups unnamed" if traced else "", "file"]]
    for file in record.files[:top]:
        share = text.number(file.unnamed_wakeups_percent, 1, " %") if traced else ""
        rows.append([_named_text(file), share, f"{file.module}: {_source_text(file)}"])
    entries, indent = text.name_rows(rows, width)
    printed += entries[0]
    for file, entry in zip(record.files[:top], entries[1:], strict=True):
        printed += entry
        if file.package is not None and not file.fetched:
            printed += text.wrap(f"its debug package: {file.package}", width, " " * indent)
    if left := len(record.files) - top:
        printed += [f"{left} more (--top N, or --json)"] if left > 0 else []
    fetched = [file for file in record.files if file.fetched]
    refused = [file for file in record.files if file.fetched is False]
    if fetched or refused:
        fetched_count = f"{text.plural(len(fetched), 'debug file')} fetched"
        printed += ["", *text.wrap(f"{fetched_count}, {len(refused)} failed.", width)]
        printed += [line for note in record.notes for line in text.wrap(f"Note: {note}.", width)]
    if record.command is not None:
        # One line of any length, so that it can be copied.
        printed += ["", "To get the missing names:", f"  {record.command}"]
    elif not all(file.is_complete for file in record.files):
        printed += ["", *text.wrap("No known package or debuginfod server has the missing names.", width)]
    if record.server:
        printed += ["", "The release of this server:", *capability_text(record.server, width).splitlines()]
    return printed


def _named_text(file: SymbolFile) -> str:
    if file.functions_count is None or file.named_count is None:
        return "unknown"
    return f"{file.named_count:,} of {file.functions_count:,}"


def _source_text(file: SymbolFile) -> str:
    if file.note is not None and file.functions_count is None:
        return file.note
    return _SOURCES.get(file.debug_from or file.names_from, "unknown")
