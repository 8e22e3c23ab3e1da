# SPDX-License-Identifier: Apache-2.0
"""One self-contained page: templates, style and script in one file, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from markupsafe import Markup

from powerprof import __version__
from powerprof.report.html.figures import brief, clean, embedded, explained, facts, figure, qualified, tidy
from powerprof.report.html.tables import table
from powerprof.report.html.tiles import tiles_of
from powerprof.report.tables.table import Places

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_PAGE_BYTES = 6 << 20
MAX_EMBEDDED_BYTES = 3 << 20
"""Above it the record stays out of the page, which has to fit in a mail; the page says so."""
# Where the list of sections goes, known when all of them are written. Headings come from our templates, escaped.
_MARK = "<!--contents-->"
_SECTION = re.compile(r'<section id="([a-z]+)">\s*(?:<details><summary>)?<h2>(.*?)</h2>')
_FEW_SECTIONS = 4


@cache
def _asset(name: str) -> str:
    return (files("powerprof.report.html") / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Function names, process names, host names and SQL come from outside: everything is escaped unless it is Markup.
    environment = Environment(
        loader=PackageLoader("powerprof.report.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = clean
    environment.filters["tidy"] = tidy
    environment.filters["brief"] = brief
    environment.filters["qualified"] = qualified
    environment.globals["table"] = table
    environment.globals["explained"] = explained
    return environment


def page(
    template: str, record: msgspec.Struct | None, places: Places | None, *, derived: str = "", **values: Any
) -> str:
    """Render a template around `record`, whose JSON is embedded for the download."""
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = embedded(record) if record is not None else Markup()
    fits = len(data.encode()) <= MAX_EMBEDDED_BYTES
    functions = {} if places is None else _functions(places)

    def rendered(with_data: bool) -> str:
        text: str = (
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
                tiles=tiles_of(record, places) if places is not None else [],
                derived=derived,
                record=record,
                **functions,
                **values,
            )
        )
        return text

    text = rendered(fits)
    if fits and len(text.encode("utf-8", "replace")) > MAX_PAGE_BYTES:
        text = rendered(False)
    return text.replace(_MARK, _contents(text.partition(_MARK)[2]), 1)


def _contents(main: str) -> str:
    """A list of the sections, as links; nothing for a page of two or three."""
    sections = _SECTION.findall(main)
    if len(sections) < _FEW_SECTIONS:
        return ""
    items = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading in sections)
    return f'<nav class="contents" aria-label="On this page"><ul>{items}</ul></nav>'


def _functions(places: Places) -> dict[str, Any]:
    """What templates call to show the record by its places."""

    def fig(pointer: str, digits: int | None = None, unit: str = "") -> Markup:
        return figure(places.figure(pointer, digits, unit))

    return {"fig": fig, "facts": partial(facts, places), "at": places.at}
