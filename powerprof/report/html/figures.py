# SPDX-License-Identifier: Apache-2.0
"""Figures on the page: each names the place in the record that it shows, and carries its exact value."""

from __future__ import annotations

import json
import re

import msgspec
from markupsafe import Markup, escape

from powerprof import text
from powerprof.report.documents.glossary import terms_in
from powerprof.report.tables import labels
from powerprof.report.tables.table import Figure, Places, escape_pointer
from powerprof.untrusted import printable

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|ms\b|s\b|J\b|W\b|mJ\b|points\b))|(?<=[±×–]) (?=\d)")
# Behind a blank: a function's parameters are none. A process id or a count stays where it is.
_QUALIFIED = re.compile(r"\s\(((?:[\d−+±<]|estimated|or )[^()]*(?:%|possible)[^()]*)\)")
_UNKNOWN = Markup('<span class="unknown" title="unknown">?</span>')
_FIGURE = Markup('<data value="{}" data-at="{}" {}>{}</data>{}')
NAME_LIMIT = 200


def clean(name: object, limit: int = NAME_LIMIT) -> str:
    """A name from outside in one line of at most `limit` characters, without control or direction characters."""
    return printable(text.cut(str(name), limit), "\N{REPLACEMENT CHARACTER}")


def tidy(sentence: str) -> str:
    """A sentence in which no line ends between a figure and its unit."""
    return _BEFORE_UNIT.sub("\u00a0", sentence)


def brief(sentence: Markup) -> Markup:
    """An answer for the headline, without the parentheses that hold intervals and shares; escaped already."""
    return Markup(_QUALIFIED.sub("", sentence))  # noqa: S704  a part of what is escaped


def qualified(sentence: Markup) -> Markup:
    """What `brief` leaves out, for the line below the headline."""
    return Markup(" · ").join(Markup(found) for found in _QUALIFIED.findall(sentence))  # noqa: S704  as `brief`


def explained(words: str) -> Markup:
    """Words of ours, the terms in them with their explanations."""
    term = Markup('<abbr title="{}">{}</abbr>')
    return Markup().join(
        term.format(meaning, piece) if meaning else Markup("{}").format(piece) for piece, meaning in terms_in(words)
    )


def figure(shown: Figure, *, unit: bool = True) -> Markup:
    """`<data value="exact" data-at="pointer">rounded</data>` with its unit; ? where it is unknown."""
    if shown.value is None:
        return _UNKNOWN
    how = Markup('data-scale="{:g}"').format(shown.scale)
    if shown.words:
        how = Markup('data-words="{}"').format(shown.words)
    tail = shown.whole.removeprefix(shown.text) if unit else ""
    words = shown.words.removeprefix("every ") or shown.text
    return _FIGURE.format(json.dumps(shown.value), shown.at, how, words, tail)


def interval(shown: Figure) -> Markup:
    """`[low, high]`, nothing where there is no interval."""
    if shown.ends is None:
        return Markup()
    return Markup('<span class="ci">[{}, {}]</span>').format(*(figure(end, unit=False) for end in shown.ends))


def facts(places: Places, pointer: str) -> list[tuple[str, Markup]]:
    """A mapping of the record as (words, figure or text), nested ones one level deep; unknown ones left out."""
    rows: list[tuple[str, Markup]] = []
    for name, value in (places.at(pointer) or {}).items():
        place = f"{pointer}/{escape_pointer(name)}"
        words, unit = labels.key(clean(name, 80))
        if isinstance(value, bool):
            rows.append((words, escape("yes" if value else "no")))
        elif isinstance(value, int | float):
            mebibytes = unit == "bytes"
            shown = places.figure(place, 0, "MiB", scale=2.0**-20) if mebibytes else places.figure(place, None, unit)
            rows.append((words, figure(shown)))
        elif isinstance(value, dict):
            inner = ", ".join(f"{clean(key, 60)}: {clean(item)}" for key, item in value.items())
            rows += [(words, escape(inner))] if inner else []
        elif isinstance(value, list):
            rows += [(words, escape(clean(", ".join(map(str, value)))))] if value else []
        elif value is not None:
            rows.append((words, escape(clean(value))))
    return rows


def embedded(record: msgspec.Struct | dict[str, object]) -> Markup:
    """A record's JSON for a script element: nothing in it can end the element or begin a comment."""
    data = msgspec.json.encode(record).decode()
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return Markup(data)  # noqa: S704 - what HTML would read has just been escaped
