# SPDX-License-Identifier: Apache-2.0
"""Draw a document as a page: one self-contained file (powerprof.report.html.page)."""

from __future__ import annotations

from markupsafe import Markup
from msgspec.structs import replace

from powerprof.report.document import Document, Shown, shown_parts
from powerprof.report.html.page import render_page
from powerprof.report.html.tables import table_html
from powerprof.report.html.text import clean_name
from powerprof.report.table import Places, split_rows, without_empty

_MORE = Markup('\n<details class="more"><summary>{} more {}</summary>\n{}\n</details>')
_LEFT = Markup('\n<p class="muted">{} more {} are in the JSON.</p>')


def render_html(document: Document) -> str:
    """Return the page of a document."""
    return render_page(
        "document.html.j2",
        document.record,
        Places(document.record),
        derived=document.derived,
        tiles=document.tiles(),
        title=clean_name(document.title or document.answer),
        document=document,
        lead=shown_parts(document.lead, "html"),
        parts=shown_parts(document.parts(), "html"),
        drawn=draw_table,
        kind_of=kind_of,
    )


def kind_of(part: object) -> str:
    """Return the name of the macro that draws a part."""
    return type(part).__name__.lower()


def draw_table(shown: Shown) -> Markup:
    """Return a table, the rows behind a click, and the number of rows that are only in the JSON."""
    column = shown.drawn() if shown.drawn is not None else None
    table = without_empty(shown.table) if shown.drawn is not None and column is None else shown.table
    count = shown.open_rows or len(table.rows)
    first, rest = split_rows(table, count)
    at_once = behind = column
    if column is not None:
        at_once = replace(column, cells=column.cells[:count])
        behind = replace(column, cells=column.cells[count:], primary=False)
    written = table_html(first, shown.look, at_once, names=shown.names)
    if rest.rows:
        written += _MORE.format(len(rest.rows), shown.what, table_html(rest, shown.look, behind, names=shown.names))
    if shown.table.left_count:
        written += _LEFT.format(shown.table.left_count, shown.what)
    return written
