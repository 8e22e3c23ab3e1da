# SPDX-License-Identifier: Apache-2.0
"""A statement's text without its values, as people and the server's own digests know it: the only user of sqlglot.

Its tokenizers know strings, comments, hexadecimal and quoted names of each family of servers; its parser is not used,
for a text may be cut off. A text costs 0.2 ms, and only one of each kind comes here (`identity`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from powerprof.statements.identity import Family
from powerprof.statements.quoting import without_strings
from powerprof.untrusted import printable

MANY = "…"
UNREADABLE = "(not kept: its values cannot be told from its text)"
_LITERALS = frozenset(
    (
        "NUMBER",
        "STRING",
        "NATIONAL_STRING",
        "HEX_STRING",
        "BIT_STRING",
        "BYTE_STRING",
        "RAW_STRING",
        "PLACEHOLDER",
        "HEREDOC_STRING",
        "UNICODE_STRING",
    )
)
_MOST_BYTES = 4096
# What a cut text leaves open.
_CLOSERS = ("", "'", '"', "`", "*/")
_NO_SPACE_BEFORE = frozenset((",", ")", ".", ";", "::", "[", "]"))
_NO_SPACE_AFTER = frozenset(("(", ".", "@", "@@", "::", "["))
# What a message of PostgreSQL's gives values to.
_PARAMETER = re.compile(r"(?<![\w$])\$\d+")
_AROUND = re.compile(r"\s*([^\w\s]+)\s*")
_UNQUOTED = re.compile(r'[^"]+(?=(?:[^"]*"[^"]*")*[^"]*$)')
_OPERAND = re.compile(r"[\w$)`?]")


@lru_cache
def _dialect(family: Family) -> Any:
    from sqlglot.dialects.mysql import MySQL
    from sqlglot.dialects.postgres import Postgres

    return MySQL() if family == "mysql" else Postgres()


def normal(text: str, family: Family = "mysql") -> str:
    """The statement with each value as `?` and lists of values as `?, …`; comments are left out.

    What a server or a client says is made printable. A text that no tokenizer takes is not kept: nobody could say what
    in it is a value.
    """
    text = without_strings(text[:_MOST_BYTES], family)
    if family == "postgresql":
        text = _PARAMETER.sub("?", text)
    for closer in _CLOSERS:
        with suppress(Exception):  # sqlglot's own kinds, and whatever a hostile text makes it raise
            return printable(_joined(_folded(list(_words(text + closer, family)))))
    return UNREADABLE


def key(text: str, family: Family = "mysql") -> str:
    """What is equal for texts of one statement: of a client, or a digest's text of the server (`IN (...)`)."""
    plain = normal(text.replace("...", "?, ?"), family).rstrip("; ")
    plain = plain.replace("`", "").lower() if family == "mysql" else _UNQUOTED.sub(lambda part: part[0].lower(), plain)
    return _AROUND.sub(r"\1", plain)


def _words(text: str, family: Family) -> Iterator[tuple[str, bool]]:
    """(word, whether a blank or comment stands before it); `?` for literals."""
    end = -1
    for token in _dialect(family).tokenize(text):
        kind, raw, apart = token.token_type.name, text[token.start : token.end + 1], token.start > end + 1
        if kind == "STRING" and raw[:1] not in "'\"":
            # sqlglot takes what follows CALL, SHOW and others whole.
            rest = text[end + 1 :]
            for number, (word, spaced) in enumerate(_words(rest, family)):
                yield word, spaced or (number == 0 and rest[:1].isspace())
            return
        end = token.end
        if raw == "?::":  # sqlglot takes another dialect's operator for it
            yield "?", apart
            yield "::", False
            continue
        yield ("?" if kind in _LITERALS else raw), apart


def _folded(words: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Signs of numbers and lists of literals put together."""
    folded: list[tuple[str, bool]] = []
    for word, apart in words:
        if word == "?" and folded and folded[-1][0] in ("-", "+") and not _is_operand(folded[-2:-1]):
            folded.pop()
        folded.append((word, apart))
        tail = [token for token, _ in folded[-3:]]
        if tail in (["?", ",", "?"], [MANY, ",", "?"]):
            del folded[-2:]
            if folded[-1][0] == "?":
                folded += [(",", False), (MANY, True)]
        group = [token for token, _ in folded]
        for shape in (["(", "?", ",", MANY, ")"], ["(", "?", ")"]):
            size = len(shape)
            # Rows of VALUES: one is as good as many.
            if group[-2 * size - 1 :] == [*shape, ",", *shape]:
                del folded[-size - 1 :]
    return folded


def _is_operand(before: list[tuple[str, bool]]) -> bool:
    """Whether a sign after this word is an operator: `a - 1`, but `= -1`, `(-1`, `SELECT -1`."""
    if not before:
        return False
    word = before[0][0]
    return bool(_OPERAND.fullmatch(word[-1])) and word.upper() not in ("SELECT", "THEN", "ELSE", "LIMIT", "BY", "AND")


def _joined(words: list[tuple[str, bool]]) -> str:
    parts: list[str] = []
    before = ""
    for word, apart in words:
        glued = (
            not before
            or word in _NO_SPACE_BEFORE
            or before in _NO_SPACE_AFTER
            or (word == "(" and not apart and before not in ("=", ",", "+", "-", "*", "/"))
            or (word in (":", "@") and not apart)
        )
        parts.append(word if glued else f" {word}")
        before = word
    return "".join(parts)
