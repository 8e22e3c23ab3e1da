# SPDX-License-Identifier: Apache-2.0
"""Split SQL into statements like the mariadb client, in linear time."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"['\"`;#]|--(?=[ \t\r\n]|\Z)|/\*")
_ENDS = {quote: re.compile(f"[{quote}\\\\]") for quote in "'\""} | {"`": re.compile("`")}
_DELIMITER = re.compile(r"^[ \t]*delimiter[ \t]+(\S+)[ \t\r]*$", re.IGNORECASE | re.MULTILINE)


def split_statements(text: str) -> list[str]:
    """Return the statements of `text` without semicolons and comments, except executable ones (/*! … */).

    A `DELIMITER` line changes the end of statements until the next one. An open literal extends to the end.
    """
    statements: list[str] = []
    position, delimiter = 0, ";"
    for change in [*_DELIMITER.finditer(text), None]:
        piece = text[position : change.start() if change else len(text)]
        statements += _split(piece, delimiter)
        if change:
            position, delimiter = change.end(), change[1]
    return statements


def _split(text: str, delimiter: str) -> list[str]:
    if delimiter != ";":
        return [part.strip() for part in text.split(delimiter) if part.strip()]
    statements: list[str] = []
    current: list[str] = []
    position = 0
    while (token := _TOKEN.search(text, position)) is not None:
        begin, end = token.span()
        if token[0] in _ENDS:
            end = _closed(text, end, token[0])
            current.append(text[position:end])
        elif token[0] == "/*" and text.startswith("!", end):
            current.append(text[position:end])
        else:
            current.append(text[position:begin])
            if token[0] == ";":
                statements.append("".join(current).strip())
                current = []
            else:
                current.append(" ")
                closing = "*/" if token[0] == "/*" else "\n"
                closed_at = text.find(closing, end)
                end = len(text) if closed_at < 0 else closed_at + (2 if closing == "*/" else 0)
        position = end
    current.append(text[position:])
    statements.append("".join(current).strip())
    return [statement for statement in statements if statement]


def _closed(text: str, position: int, quote: str) -> int:
    r"""Return the end of the literal whose quote precedes `position`; it can contain doubled quotes and \\."""
    while (mark := _ENDS[quote].search(text, position)) is not None:
        position = mark.end()
        if mark[0] == quote and not text.startswith(quote, position):
            return position
        position += 1
    return len(text)
