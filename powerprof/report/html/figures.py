"""Figures on the page: each names the place in the record that it shows, and carries its exact value."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from markupsafe import Markup, escape

from powerprof import text
from powerprof.report import labels

_CONTROL = dict.fromkeys([*range(32), *range(127, 160), *range(8234, 8239), *range(8294, 8298)], "�")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|ms\b|s\b|J\b|W\b|mJ\b|points\b))|(?<=[±×–]) (?=\d)")
NAME_LIMIT = 200


def clean(name: object, limit: int = NAME_LIMIT) -> str:
    """A name from outside in one line of at most `limit` characters, without control or direction characters."""
    return text.cut(str(name), limit).translate(_CONTROL)


def tidy(sentence: str) -> str:
    """A sentence in which no line ends between a figure and its unit."""
    return _BEFORE_UNIT.sub("\u00a0", sentence)


class Figures:
    """The record as plain values, and its figures as HTML by JSON pointer (RFC 6901)."""

    def __init__(self, record: msgspec.Struct) -> None:
        self.tree: Any = msgspec.to_builtins(record)

    def at(self, pointer: str) -> Any:
        """The value at a pointer; None where there is none."""
        value = self.tree
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(name)] if isinstance(value, list | tuple) else value[name]
            except (KeyError, IndexError, TypeError, ValueError):
                return None
        return value

    def fig(
        self, pointer: str, digits: int | None = None, unit: str = "", *, scale: float = 1.0, sign: bool = False
    ) -> Markup:
        """`<data value="exact" data-at="pointer">rounded</data>`; ? where it is unknown."""
        value = self.at(pointer)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return Markup('<span class="unknown" title="unknown">?</span>')
        shown = value * scale
        places = digits if digits is not None else (0 if isinstance(value, int) else labels.digits(shown))
        words = (text.signed if sign else text.number)(shown, places)
        tail = f" {unit}" if unit and unit[0] != "/" else unit
        return Markup('<data value="{}" data-at="{}" data-scale="{:g}">{}</data>{}').format(
            json.dumps(value), pointer, scale, words, tail
        )

    def interval(
        self, low: str, high: str, digits: int | None = None, *, scale: float = 1.0, sign: bool = False
    ) -> Markup:
        """`[low, high]`, nothing where there is no interval."""
        if self.at(low) is None or self.at(high) is None:
            return Markup()
        places = digits
        if places is None:
            places = labels.digits(max(abs(self.at(low)), abs(self.at(high))) * scale)
        ends = [self.fig(end, places, scale=scale, sign=sign) for end in (low, high)]
        return Markup('<span class="ci">[{}, {}]</span>').format(*ends)

    def facts(self, pointer: str) -> list[tuple[str, Markup]]:
        """A mapping of the record as (words, figure or text), nested ones one level deep; unknown ones left out."""
        found: list[tuple[str, Markup]] = []
        for name, value in (self.at(pointer) or {}).items():
            place = f"{pointer}/{escape_pointer(name)}"
            words, unit = labels.key(clean(name, 80))
            if isinstance(value, bool):
                found.append((words, escape("yes" if value else "no")))
            elif isinstance(value, int | float):
                if unit == "bytes":
                    found.append((words, self.fig(place, 0, "MiB", scale=2.0**-20)))
                else:
                    found.append((words, self.fig(place, None, unit)))
            elif isinstance(value, dict):
                inner = ", ".join(f"{clean(key, 60)}: {clean(one)}" for key, one in value.items())
                found += [(words, escape(inner))] if inner else []
            elif isinstance(value, list):
                found += [(words, escape(clean(", ".join(map(str, value)))))] if value else []
            elif value is not None:
                found.append((words, escape(clean(value))))
        return found


def escape_pointer(name: str) -> str:
    """One part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def embedded(record: msgspec.Struct) -> Markup:
    """The record's JSON for a script element: nothing in it can end the element or begin a comment."""
    data = msgspec.json.encode(record).decode()
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return Markup(data)  # noqa: S704 - what HTML would read has just been escaped
