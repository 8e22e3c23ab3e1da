# SPDX-License-Identifier: Apache-2.0
"""Tables as HTML: each figure carries its exact value and its place in the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from powerprof.report.html.figures import clean, explained, figure, interval
from powerprof.report.tables.table import Cell, Column, Figure, JudgedCell, Path, Table, TableRow, Words

_SCROLL = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">\n{}\n</div>')
_LABEL_LIMIT = 120
_OPEN_FRAMES = 9
_STACK_LIMIT = 2000


def opened(whole: Table, count: int) -> tuple[Table, Table]:
    """The first rows, and those that are shown when they are asked for."""
    return replace(whole, rows=whole.rows[:count], left_count=0), replace(whole, rows=whole.rows[count:], caption="")


def without_empty(whole: Table) -> Table:
    """Without the columns in which no row knows anything."""
    kept = [column for column in whole.columns if any(_is_known(row.cells.get(column.key)) for row in whole.rows)]
    return replace(whole, columns=kept)


def _is_known(shown: Cell | None) -> bool:
    if isinstance(shown, Figure):
        return shown.value is not None
    return not isinstance(shown, Words) or bool(shown.text) if shown is not None else False


@dataclass(frozen=True)
class Drawn:
    """A column of drawings, a row each, and what stands over them; it comes before the column `before`. `primary`: the
    first row is the headline's."""

    before: str
    heading: Markup
    cells: Sequence[Markup]
    primary: bool = True


def cell(shown: Cell | None, *, unit: bool = False) -> Markup:
    """What stands in a cell; nothing for none."""
    if isinstance(shown, Figure):
        return figure(shown, unit=unit) + interval(shown) if shown.at else Markup("–")
    if isinstance(shown, Path):
        return _path(shown)
    if isinstance(shown, JudgedCell):
        verdict = Markup('<span class="verdict {0}">{0}</span>').format(shown.text)
        could = Markup('<span class="ci">smallest detectable {}</span>').format(figure(shown.detectable))
        return verdict + could if shown.text == "inconclusive" and shown.detectable.value is not None else verdict
    if shown is None:
        return Markup()
    name = explained(shown.text) if shown.ours else Markup("{}").format(clean(shown.text, _LABEL_LIMIT))
    if shown.code:
        name = Markup("<code>{}</code>").format(name)
    more = clean(shown.more, _LABEL_LIMIT)
    if shown.strong:
        return Markup("<b>{}</b> {}").format(name, more) if more else Markup("<b>{}</b>").format(name)
    return Markup('{} <span class="muted">{}</span>').format(name, more) if more else Markup("{}").format(name)


def _path(shown: Path) -> Markup:
    """Frames, innermost first: what is shown at once, and what is behind it."""
    names = [clean(frame, 160) for frame in shown.frames] or ["no user stack"]
    if shown.frames and not shown.complete:
        names.append("…")
    first = _OPEN_FRAMES if len(names) > _OPEN_FRAMES + 2 else len(names)
    at_once, behind = " ← ".join(names[:first]), clean(" ← ".join(names[first:]), _STACK_LIMIT)
    if not behind:
        return Markup('<span class="stack">{}</span>').format(at_once)
    return Markup('<details class="stack"><summary>{} ← …</summary>{}</details>').format(at_once, behind)


def _name(row: TableRow, shown: Cell | None) -> Markup:
    parts = [Markup('<span class="swatch {}"></span>').format(row.look)] if row.look else []
    parts.append(cell(shown))
    if row.unit:
        parts.append(Markup(' <span class="muted">{}</span>').format(clean(row.unit, 20)))
    if row.kind == "estimated":
        parts.append(Markup(' <span class="kind">estimated</span>'))
    return Markup().join(parts)


def _head(column: Column, beside: Column | None) -> Markup:
    kind = Markup() if column.left else Markup(' class="n"')
    key = Markup('<span class="key {}"></span>').format(column.key) if column.key in ("a", "b") else Markup()
    heading = f"{column.heading} {clean(column.name, 60)}".strip()
    if beside is not None and beside.heading:
        heading += f" · {beside.heading}"
    return Markup('<th scope="col"{}>{}{}</th>').format(kind, key, heading)


def _beside(inside: Markup, other: Cell | None) -> Markup:
    """A percentage before what it is of, a stack behind its thread."""
    if isinstance(other, Figure) and other.value is not None:
        return Markup('<span class="muted percent">{}</span> ').format(figure(other)) + inside
    return inside + cell(other) if isinstance(other, Path) else inside


def table(shown: Table, kind: str = "plain", drawn: Drawn | None = None, *, names: bool = True) -> Markup:
    """The table in a frame of its own that scrolls. `names`: the first column names the rows."""
    own = shown.of("html")
    columns = [column for column in own.columns if not column.beside]
    beside = {column.beside: column for column in own.columns if column.beside}
    heads, body = [_head(column, beside.get(column.key)) for column in columns], []
    place = next((i for i, column in enumerate(columns) if drawn and column.key == drawn.before), None)
    if drawn and place is not None:
        heads.insert(place, Markup('<th scope="col" class="draw">{}</th>').format(drawn.heading))
    for number, row in enumerate(own.rows):
        cells = []
        for index, column in enumerate(columns):
            here = row.cells.get(column.key)
            if names and index == 0:
                cells.append(Markup('<th scope="row">{}</th>').format(_name(row, here)))
                continue
            other = beside.get(column.key)
            inside = _beside(cell(here, unit=not row.unit), row.cells.get(other.key) if other else None)
            look = Markup() if column.left else Markup(' class="n"')
            head = column.heading or clean(column.name, 60)
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
    return _SCROLL.format(clean(shown.label, 80), whole) if shown.label else whole
