# SPDX-License-Identifier: Apache-2.0
"""Pages as one self-contained file: templates, style, script, and a policy that blocks everything else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from markupsafe import Markup, escape

from powerprof import __version__
from powerprof.report import labels
from powerprof.report.document import Tile
from powerprof.report.html.tables import table_html
from powerprof.report.html.text import brief, clean_name, explain_terms, figure_html, qualified, tidy
from powerprof.report.table import Places, escape_pointer
from powerprof.system.next_steps import command_line

if TYPE_CHECKING:
    from jinja2 import Environment


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
