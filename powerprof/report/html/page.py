# SPDX-License-Identifier: Apache-2.0
"""Pages as one self-contained file: templates, style, script, and a policy that blocks everything else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from markupsafe import Markup, escape

from powerprof import __version__
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.document import Tile
from powerprof.report.labels import split_terms
from powerprof.report.table import (
    Cell,
    Column,
    DrawnColumn,
    Figure,
    JudgedCell,
    Path,
    Places,
    Table,
    TableRow,
    escape_pointer,
)
from powerprof.system.files import printable
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from jinja2 import Environment


# Figures on the page have their exact value and their place in the record.

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|ms\b|s\b|J\b|W\b|mJ\b|points\b))|(?<=[±×–]) (?=\d)")
# Only after a blank, so that the parameters of functions stay. Process ids and counts stay too.
_QUALIFIED = re.compile(r"\s\((?!95.%\))((?:[\d−+±<]|estimated|or )[^()]*(?:%|possible)[^()]*)\)")
_UNKNOWN = Markup('<span class="unknown" title="unknown">?</span>')
_FIGURE = Markup('<data value="{}" data-at="{}" {}>{}</data>{}')
NAME_LIMIT = 200


def clean_name(name: object, limit: int = NAME_LIMIT) -> str:
    """Return a name from outside as one line of at most `limit` characters, without control or direction characters."""
    return printable(text.shorten(str(name), limit), "\N{REPLACEMENT CHARACTER}")


def tidy(sentence: str) -> str:
    """Return a sentence in which no line ends between a figure and its unit."""
    return _BEFORE_UNIT.sub("\u00a0", sentence)


def brief(sentence: Markup) -> Markup:
    """Return an escaped answer for the headline, without the parentheses that hold intervals and shares."""
    return Markup(_QUALIFIED.sub("", sentence))  # noqa: S704  a part of what is escaped


def qualified(sentence: Markup) -> Markup:
    """Return the parentheses that `brief` leaves out, for the line below the headline."""
    return Markup(" · ").join(Markup(found) for found in _QUALIFIED.findall(sentence))  # noqa: S704  as `brief`


def explain_terms(words: str) -> Markup:
    """Return text of powerprof in which terms have their explanations."""
    term = Markup('<abbr title="{}">{}</abbr>')
    return Markup().join(
        term.format(meaning, piece) if meaning else Markup("{}").format(piece) for piece, meaning in split_terms(words)
    )


def figure_html(shown: Figure, *, unit: bool = True) -> Markup:
    """Return `<data value="exact" data-at="pointer">rounded</data>` with its unit; `?` for an unknown value."""
    if shown.value is None:
        return _UNKNOWN
    how = Markup('data-scale="{:g}"').format(shown.scale)
    if shown.words:
        how = Markup('data-words="{}"').format(shown.words)
    tail = shown.whole.removeprefix(shown.text) if unit else ""
    words = shown.words.removeprefix("every ") or shown.text
    return _FIGURE.format(json.dumps(shown.value), shown.at, how, words, tail)


def interval_html(shown: Figure) -> Markup:
    """Return `[low, high]`, or an empty text without an interval."""
    if shown.ends is None:
        return Markup()
    return Markup('<span class="ci">[{}, {}]</span>').format(*(figure_html(end, unit=False) for end in shown.ends))


def list_facts(places: Places, pointer: str) -> list[tuple[str, Markup]]:
    """Return a mapping of the record as names and figures or texts.

    Nested mappings become one line; unknown values are left out.
    """
    rows: list[tuple[str, Markup]] = []
    for name, value in (places.at(pointer) or {}).items():
        place = f"{pointer}/{escape_pointer(name)}"
        words, unit = labels.key_label(clean_name(name, 80))
        if isinstance(value, bool):
            rows.append((words, escape("yes" if value else "no")))
        elif isinstance(value, int | float):
            mebibytes = unit == "bytes"
            shown = places.figure(place, 0, "MiB", scale=2.0**-20) if mebibytes else places.figure(place, None, unit)
            rows.append((words, figure_html(shown)))
        elif isinstance(value, dict):
            inner = ", ".join(f"{clean_name(key, 60)}: {clean_name(item)}" for key, item in value.items())
            rows += [(words, escape(inner))] if inner else []
        elif isinstance(value, list):
            rows += [(words, escape(clean_name(", ".join(map(str, value)))))] if value else []
        elif value is not None:
            rows.append((words, escape(clean_name(value))))
    return rows


def embed_json(record: msgspec.Struct | dict[str, object]) -> Markup:
    """Return the JSON of a record for a script element: no text in it can end the element or begin a comment."""
    data = msgspec.json.encode(record).decode()
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return Markup(data)  # noqa: S704 - what HTML would read has just been escaped


# Tables as HTML: each figure carries its exact value and its place in the record.

_SCROLL = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">\n{}\n</div>')
_LABEL_LIMIT = 120
_OPEN_FRAMES = 9
_STACK_LIMIT = 2000


def cell_html(shown: Cell | None, *, unit: bool = False) -> Markup:
    """Return the content of a cell; an empty text for a missing cell."""
    if isinstance(shown, Figure):
        return figure_html(shown, unit=unit) + interval_html(shown) if shown.at else Markup("–")
    if isinstance(shown, Path):
        return _path(shown)
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


def _path(shown: Path) -> Markup:
    """Return frames, innermost first: the open ones, and those behind "more"."""
    names = [clean_name(frame, 160) for frame in shown.frames] or ["no user stack"]
    if shown.frames and not shown.complete:
        names.append("…")
    first = _OPEN_FRAMES if len(names) > _OPEN_FRAMES + 2 else len(names)
    at_once, behind = " ← ".join(names[:first]), clean_name(" ← ".join(names[first:]), _STACK_LIMIT)
    if not behind:
        return Markup('<span class="stack">{}</span>').format(at_once)
    return Markup('<details class="stack"><summary>{} ← …</summary>{}</details>').format(at_once, behind)


def _name(row: TableRow, shown: Cell | None) -> Markup:
    parts = [Markup('<span class="swatch {}"></span>').format(row.look)] if row.look else []
    parts.append(cell_html(shown))
    if row.unit:
        parts.append(Markup(' <span class="muted">{}</span>').format(clean_name(row.unit, 20)))
    if row.kind == "estimated":
        parts.append(Markup(' <span class="kind">estimated</span>'))
    return Markup().join(parts)


def _head(column: Column, beside: Column | None) -> Markup:
    kind = Markup() if column.left else Markup(' class="n"')
    key = Markup('<span class="key {}"></span>').format(column.key) if column.key in ("a", "b") else Markup()
    heading = f"{column.heading} {clean_name(column.name, 60)}".strip()
    if beside is not None and beside.heading:
        heading += f" · {beside.heading}"
    return Markup('<th scope="col"{}>{}{}</th>').format(kind, key, heading)


def _beside(inside: Markup, other: Cell | None) -> Markup:
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
            inside = _beside(cell_html(here, unit=not row.unit), row.cells.get(other.key) if other else None)
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


MAX_PAGE_BYTES = 6 << 20
MAX_EMBEDDED_BYTES = 3 << 20
"""Above it the record stays out of the page, which has to fit in a mail; the page says so."""
# The place of the list of sections, which is known after rendering. Headings come from the templates, escaped.
_MARK = "<!--contents-->"
_SECTION = re.compile(r'<section id="([a-z]+)">\s*(?:<details><summary>)?<h2>(.*?)</h2>')
_FEW_SECTIONS = 4


@cache
def _asset(name: str) -> str:
    return (files("powerprof.report.html") / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Names of functions, processes and hosts, and SQL come from outside: everything except Markup is escaped.
    environment = Environment(
        loader=PackageLoader("powerprof.report.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = clean_name
    environment.filters["tidy"] = tidy
    environment.filters["brief"] = brief
    environment.filters["qualified"] = qualified
    environment.globals["command_line"] = command_line
    environment.globals["table"] = table_html
    environment.globals["explained"] = explain_terms
    return environment


def render_page(
    template: str,
    record: msgspec.Struct | None,
    places: Places | None,
    *,
    derived: str = "",
    tiles: Sequence[Tile] = (),
    **values: Any,
) -> str:
    """Return the page of a template and a record; the JSON of the record is embedded for the download.

    `tiles`: the figures at its top.
    """
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = embed_json(record) if record is not None else Markup()
    fits = len(data.encode()) <= MAX_EMBEDDED_BYTES
    functions = {} if places is None else _functions(places)

    def rendered(with_data: bool) -> str:
        page: str = (
            _environment()
            .get_template(template)
            .render(
                style=Markup(_asset("report.css")),  # noqa: S704  our own file
                script=Markup(script),  # noqa: S704  our own file
                digest=digest,
                contents_mark=Markup(_MARK),  # noqa: S704  our own
                data=data if with_data else Markup(),
                data_bytes=len(data),
                data_fits=with_data,
                version=__version__,
                tiles=tiles,
                derived=derived,
                record=record,
                **functions,
                **values,
            )
        )
        return page

    filled = rendered(fits)
    if fits and len(filled.encode("utf-8", "replace")) > MAX_PAGE_BYTES:
        filled = rendered(False)
    return filled.replace(_MARK, _contents(filled.partition(_MARK)[2]), 1)


def draw_macro(name: str, *values: object) -> Markup:
    """Return what a macro of the common parts draws."""
    macro = getattr(_environment().get_template("parts.html.j2").module, name)
    return Markup(macro(*values))  # noqa: S704  our template escapes


def _contents(main: str) -> str:
    """Return the list of sections as links; an empty text for a page with few sections."""
    sections = _SECTION.findall(main)
    if len(sections) < _FEW_SECTIONS:
        return ""
    items = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading in sections)
    return f'<nav class="contents" aria-label="On this page"><ul>{items}</ul></nav>'


def _functions(places: Places) -> dict[str, Any]:
    """Return the functions with which templates show a record by its places."""

    def fig(pointer: str, digits: int | None = None, unit: str = "") -> Markup:
        return figure_html(places.figure(pointer, digits, unit))

    return {"fig": fig, "facts": partial(list_facts, places), "at": places.at}
