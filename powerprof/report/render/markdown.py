# SPDX-License-Identifier: Apache-2.0
"""Draw a document as Markdown for pull requests and tickets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from powerprof import __version__
from powerprof.model import text
from powerprof.report.document import Document, Drawing, Items, Part, Section, Sentence, Shown, shown_parts
from powerprof.report.table import Cell, Column, Figure, JudgedCell, Path, Table, TableRow, split_rows

_CODE_LIMIT = 600


def render_markdown(document: Document) -> str:
    """Return a document as Markdown: its early end, answer, warnings, context, parts, notes, and run."""
    lines = [f"> {escape(document.opening)}", ""] if document.opening else []
    lines += [f"**{escape(document.answer)}**"]
    lines += [line for warning in document.warnings for line in ("", f"> {escape(warning)}")]
    lines += ["", escape(document.context)] if document.context else []
    for part in [*shown_parts(document.lead, "markdown"), *shown_parts(document.parts(), "markdown")]:
        lines += _draw_part(part, 3)
    lines += note_lines(document.notes)
    source = f", run {code_span(name, 60)}" if (name := getattr(document.record, "id", None)) else ""
    return "\n".join([*lines, "", f"powerprof {__version__}{source}", ""])


def _draw_part(part: Part, level: int) -> Iterator[str]:
    """Yield the lines of a part, an empty line first."""
    match part:
        case Sentence():
            quote = "> " if part.look == "warning" else ""
            yield from ("", f"{quote}{escape(f'{part.label}: {part.text}' if part.label else part.text)}")
        case Items():
            yield ""
            for item in part.rows:
                shown = code_span(item.text, _CODE_LIMIT) if item.code else escape(item.text)
                yield f"- {item.label}: {shown}" if item.label else f"- {shown}"
                yield from (f"  - {escape(row)}" for row in item.rows)
        case Shown():
            # The columns of Markdown may include some of the terminal's.
            first, rest = split_rows(part.table.of("markdown", part.columns), MARKDOWN_ROWS)
            yield from draw_table(first, part.columns)
            if left := len(rest.rows) + part.table.left_count:
                yield from ("", f"{left} more {part.what} are in the JSON.")
            if part.table.caption:
                yield from ("", escape(part.table.caption))
        case Section():
            if part.heading and "markdown" in part.headed:
                yield from ("", f"{'#' * level} {escape(part.heading)}")
            for inside in part.parts:
                yield from _draw_part(inside, level + 1)
        case Drawing():
            raise TypeError("Markdown has no drawings")


_MAX_NAME = 120
_MAX_FRAMES = 8
MARKDOWN_ROWS = 25
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")


def code_span(name: object, limit: int = _MAX_NAME) -> str:
    """Return a code span that the name cannot end. GitHub interprets no link, mention or HTML in it.

    A `|` is escaped, because tables split at it even in a span.
    """
    clean = text.shorten(_CONTROL.sub(" ", str(name)), limit).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", clean)), default=0))
    pad = " " if clean.startswith("`") or clean.endswith("`") else ""
    # A backslash before the | would escape the escape.
    inner = clean.replace("\\|", "|").replace("|", "\\|")
    return f"{fence}{pad}{inner}{pad}{fence}"


def escape(sentence: str) -> str:
    """Return a sentence with Markdown characters escaped and with addresses and mentions broken."""
    one_line = text.shorten(_CONTROL.sub(" ", sentence), 1000)
    escaped = _SPECIAL.sub(r"\\\1", one_line)
    # GitHub has no escape for mentions and bare addresses, so a zero-width space breaks them.
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//").replace("www.", "www\u200b.")


def draw_table(shown: Table, keys: Sequence[str] = ()) -> list[str]:
    """Return the lines of a GitHub table with `keys` as columns, or all columns. An interval has a separate column."""
    own = shown.of("markdown", keys)
    heads, rule = [], []
    for column in own.columns:
        heading = escape(column.heading)
        heads.append(f"{heading} {code_span(column.name, 60)}".strip() if column.name else heading)
        rule.append("---" if column.left else "---:")
        if column.interval:
            heads.append(column.interval)
            rule.append("---:")
    rows = [[part for column in own.columns for part in _draw_cells(row, column)] for row in own.rows]
    return ["", *(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))]


def _draw_cells(row: TableRow, column: Column) -> Iterator[str]:
    cell = row.cells.get(column.key)
    # If the row names the unit, its cells omit it.
    shown = _draw_cell(cell, unit=bool(column.beside) or not row.unit)
    if column.key == "name":
        estimated = ", estimated" if row.kind == "estimated" else ""
        shown += (escape(f", {row.unit}") if row.unit else "") + estimated
    yield shown
    if column.interval:
        ends = cell.ends if isinstance(cell, Figure) else None
        yield f"{ends[0].text} to {ends[1].text}" if ends else ""


def _draw_cell(cell: Cell | None, *, unit: bool) -> str:
    if isinstance(cell, Figure):
        # The unit of a saved record comes from outside.
        return cell.words.removeprefix("every ") or (escape(cell.whole) if unit else cell.text)
    if isinstance(cell, JudgedCell):
        return f"**{cell.text}**" if cell.is_decided else cell.text
    if isinstance(cell, Path):
        more = " ← …" if len(cell.frames) > _MAX_FRAMES else ""
        return code_span(" ← ".join(cell.frames[:_MAX_FRAMES]) + more if cell.frames else "no user stack", 400)
    if cell is None or not cell.text:
        return ""
    if cell.ours and cell.strong:
        return f"**{escape(cell.text)}**"
    return (
        escape(cell.text) if cell.ours else code_span(f"{cell.text} {cell.more}".strip() if cell.strong else cell.text)
    )


def note_lines(notes: Iterable[str]) -> list[str]:
    """Return a list of notes, after an empty line; empty without notes."""
    written = [f"- {escape(note)}" for note in notes]
    return ["", *written] if written else []
