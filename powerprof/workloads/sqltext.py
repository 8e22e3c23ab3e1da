"""Splitting a file of SQL into statements, as the mariadb client does."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`"""
    r"""| --(?=[ \t\r\n]|\Z)[^\n]* | \#[^\n]* | /\*(?!!).*?\*/ | ;""",
    re.VERBOSE | re.DOTALL,
)
_DELIMITER = re.compile(r"^\s*delimiter\s+(\S+)\s*$", re.IGNORECASE | re.MULTILINE)


def split_statements(text: str) -> list[str]:
    """The statements of `text` without their semicolons; comments go, except executable ones (/*! … */).

    A `DELIMITER` line changes what ends a statement until the next one.
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
    for token in _TOKEN.finditer(text):
        current.append(text[position : token.start()])
        position = token.end()
        if token[0] == ";":
            statements.append("".join(current).strip())
            current = []
        elif token[0][0] in "'\"`":
            current.append(token[0])
        else:
            current.append(" ")
    current.append(text[position:])
    statements.append("".join(current).strip())
    return [statement for statement in statements if statement]
