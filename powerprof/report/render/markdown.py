# SPDX-License-Identifier: Apache-2.0
"""Draw a document as Markdown for pull requests and tickets."""

from __future__ import annotations

from collections.abc import Iterator

from powerprof import __version__
from powerprof.report.document import Document, Drawing, Items, Part, Section, Sentence, Shown, shown_parts
from powerprof.report.table import MARKDOWN_ROWS, code_span, draw_table, escape, note_lines, split_rows

_CODE_LIMIT = 600


def render_markdown(document: Document) -> str:
    """Return a document as Markdown: answer, warnings, context, parts, notes, and the run that it reports."""
    lines = [f"**{escape(document.answer)}**"]
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
            first, rest = split_rows(part.table.of("markdown"), MARKDOWN_ROWS)
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
