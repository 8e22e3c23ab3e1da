# SPDX-License-Identifier: Apache-2.0
"""Tables as HTML: each figure has its exact value and its place in the record."""

from __future__ import annotations

from markupsafe import Markup

from powerprof.report.html.text import clean_name, explain_terms, figure_html, interval_html
from powerprof.report.table import Cell, Column, DrawnColumn, Figure, JudgedCell, Path, Table, TableRow

_SCROLL = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">\n{}\n</div>')
_LABEL_LIMIT = 120
_OPEN_FRAMES = 9
_STACK_LIMIT = 2000


def cell_html(shown: Cell | None, *, unit: bool = False) -> Markup:
    """Return the content of a cell; an empty text for a missing cell."""
    if isinstance(shown, Figure):
        return figure_html(shown, unit=unit) + interval_html(shown) if shown.at else Markup("–")
    if isinstance(shown, Path):
        return _draw_path(shown)
    if isinstance(shown, JudgedCell):
        look = shown.word if shown.is_decided else "inconclusive"
        verdict = Markup('<span class="verdict {}">{}</span>').format(look, shown.text)
        if shown.detectable is None:
            return verdict
        return verdict + Markup('<span class="ci">smallest detectable {}</span>').format(figure_html(shown.detectable))
    if shown is None:
        return Markup()
    name = explain_terms(shown.text) if shown.ours else Markup("{}").format(clean_name(shown.text, _LABEL_LIMIT))
    if shown.code:
        name = Markup("<code>{}</code>").format(name)
    more = clean_name(shown.more, _LABEL_LIMIT)
    if shown.strong:
        return Markup("<b>{}</b> {}").format(name, more) if more else Markup("<b>{}</b>").format(name)
    return Markup('{} <span class="muted">{}</span>').format(name, more) if more else Markup("{}").format(name)


def _draw_path(shown: Path) -> Markup:
    """Return frames, innermost first: the open ones, and those behind "more"."""
    names = [clean_name(frame, 160) for frame in shown.frames] or ["no user stack"]
    if shown.frames and not shown.complete:
        names.append("…")
    first = _OPEN_FRAMES if len(names) > _OPEN_FRAMES + 2 else len(names)
    at_once, behind = " ← ".join(names[:first]), clean_name(" ← ".join(names[first:]), _STACK_LIMIT)
    if not behind:
        return Markup('<span class="stack">{}</span>').format(at_once)
    return Markup('<details class="stack"><summary>{} ← …</summary>{}</details>').format(at_once, behind)


def _draw_name(row: TableRow, shown: Cell | None) -> Markup:
    parts = [Markup('<span class="swatch {}"></span>').format(row.look)] if row.look else []
    parts.append(cell_html(shown))
    if row.unit:
        parts.append(Markup(' <span class="muted">{}</span>').format(clean_name(row.unit, 20)))
    if row.kind == "estimated":
        parts.append(Markup(' <span class="kind">estimated</span>'))
    return Markup().join(parts)


def _draw_head(column: Column, beside: Column | None) -> Markup:
    kind = Markup() if column.left else Markup(' class="n"')
    key = Markup('<span class="key {}"></span>').format(column.key) if column.key in ("a", "b") else Markup()
    heading = f"{column.heading} {clean_name(column.name, 60)}".strip()
    if beside is not None and beside.heading:
        heading += f" · {beside.heading}"
    return Markup('<th scope="col"{}>{}{}</th>').format(kind, key, heading)


def _add_companion(inside: Markup, other: Cell | None) -> Markup:
    """Return a cell with its companion: a percentage before a figure, a stack after a thread."""
    if isinstance(other, Figure) and other.value is not None:
        return Markup('<span class="muted percent">{}</span> ').format(figure_html(other)) + inside
    return inside + cell_html(other) if isinstance(other, Path) else inside


def table_html(shown: Table, kind: str = "plain", drawn: DrawnColumn | None = None, *, names: bool = True) -> Markup:
    """Return a table in a frame that scrolls.

    `names`: whether the first column names the rows.
    """
    own = shown.of("html")
    columns = [column for column in own.columns if not column.beside]
    beside = {column.beside: column for column in own.columns if column.beside}
    heads, body = [_draw_head(column, beside.get(column.key)) for column in columns], []
    place = next((i for i, column in enumerate(columns) if drawn and column.key == drawn.before), None)
    if drawn and place is not None:
        heads.insert(place, Markup('<th scope="col" class="draw">{}</th>').format(drawn.heading))
    for number, row in enumerate(own.rows):
        cells = []
        for index, column in enumerate(columns):
            here = row.cells.get(column.key)
            if index == 0 and names:
                cells.append(Markup('<th scope="row">{}</th>').format(_draw_name(row, here)))
                continue
            other = beside.get(column.key)
            inside = _add_companion(cell_html(here, unit=not row.unit), row.cells.get(other.key) if other else None)
            look = Markup() if column.left else Markup(' class="n"')
            head = column.heading or clean_name(column.name, 60)
            label = Markup(' data-label="{}"').format(head) if head else Markup()
            cells.append(Markup("<td{}{}>{}</td>").format(look, label, inside))
        if drawn and place is not None:
            cells.insert(place, Markup('<td class="draw">{}</td>').format(drawn.cells[number]))
        headline = drawn is not None and drawn.primary and not number
        look = Markup(' class="inner"') if row.inner else Markup(' class="primary"') if headline else Markup()
        body.append(Markup("<tr{}>{}</tr>").format(look, Markup().join(cells)))
    caption = Markup('<caption class="muted">{}</caption>\n').format(shown.caption) if shown.caption else Markup()
    whole = Markup('<table class="{}">\n{}<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>\n</table>').format(
        kind, caption, Markup().join(heads), Markup("\n").join(body)
    )
    return _SCROLL.format(clean_name(shown.label, 80), whole) if shown.label else whole
