# SPDX-License-Identifier: Apache-2.0
"""TOML from outside: what would keep the parser busy is refused before, and every refusal has its line.

Python's tomllib takes time with the square of the parts of a dotted key (40 KB of `a.a.a…` take 10 s), and passes on
what `int` says of long numbers.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from powerprof.errors import DataError
from powerprof.untrusted import reading

_MOST_PARTS = 64
_MOST_KEYS = 20_000
_TOKEN = re.compile(r"\"\"\"|'''|[\"'#.=,\[\]{}\n]")
_ENDS = {
    '"""': re.compile(r'\\.|"""', re.DOTALL),
    "'''": re.compile("'''"),
    '"': re.compile(r'\\.|["\n]'),
    "'": re.compile("['\n]"),
    "#": re.compile("(?=\n)"),
}


def parse(text: str, path: object) -> dict[str, Any]:
    """The tables of a document. Raises DataError with the line and the reason in tomllib's words."""
    _check(text, path)
    with reading(path):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            reason = re.sub(r" \(at .*\)$", "", str(error))
            line = re.search(r"\(at line (\d+)", str(error))
            # What is missing at the end has no line in tomllib's words: it is the last one.
            number = int(line[1]) if line else max(text.count("\n") + (not text.endswith("\n")), 1)
            raise DataError(path, f"not TOML: {reason[:1].lower()}{reason[1:]}", number) from None


def _check(text: str, path: object) -> None:
    parts = keys = position = 0
    while (token := _TOKEN.search(text, position)) is not None:
        position = token.end()
        if token[0] in _ENDS:
            position = _end_of(text, position, token[0])
        elif token[0] == ".":
            parts += 1
        else:
            parts = 0
            keys += token[0] in "=["
        if parts > _MOST_PARTS or keys > _MOST_KEYS:
            what = (
                f"a key of more than {_MOST_PARTS} parts"
                if parts > _MOST_PARTS
                else f"TOML with more than {_MOST_KEYS:,} keys"
            )
            raise DataError(path, what, text.count("\n", 0, position) + 1)


def _end_of(text: str, position: int, opening: str) -> int:
    while (mark := _ENDS[opening].search(text, position)) is not None:
        if not mark[0].startswith("\\"):
            return mark.end()
        position = mark.end()
    return len(text)
