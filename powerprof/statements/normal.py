# SPDX-License-Identifier: Apache-2.0
"""A statement's text without its values, as people and the server's own digests know it: the only user of sqlglot.

This module owns one rule: no text of a client enters a record, page or log with its values. Records therefore hold
`NormalText`, and only the functions here make one. A raw `str` in such a field is an error of types.

Its tokenizers know strings, comments, hexadecimal and quoted names of each family of servers; its parser is not used,
for a text may be cut off. Only one text of each kind comes here (`identity`), and each takes time with its length. A
client may send ever other statements: within `bounded` all of a window together have so many words, each is read once,
and what is past that is left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NewType

from powerprof.statements.identity import Family
from powerprof.statements.quoting import without_strings
from powerprof.untrusted import printable

NormalText = NewType("NormalText", str)
"""A text of a client, or of a server about it, without values."""
MANY = "…"
NO_TEXT = NormalText("")
UNREADABLE = NormalText("(not kept: the values in it cannot be recognised)")
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
_MOST_BYTES = 136 << 10  # as many as programs in the kernel keep of a text
# What a cut text leaves open.
_CLOSERS = ("", "'", '"', "`", "*/")
_NO_SPACE_BEFORE = frozenset((",", ")", ".", ";", "::", "[", "]"))
_NO_SPACE_AFTER = frozenset(("(", ".", "@", "@@", "::", "["))
# What a message of PostgreSQL's gives values to.
_PARAMETER = re.compile(r"(?<![\w$])\$\d+")
_BLANKS = re.compile(r"\s+")
_AROUND = re.compile(r" ?([^\w\s]+) ?")
_WORD = re.compile(r"\w+|[^\w\s]")
_OPERAND = re.compile(r"[\w$)`?]")
_GTID = re.compile(r"GTID \d+-\d+-\d+")
# Replication errors (MariaDB: sql/slave.cc, sql/log_event_server.cc). A quote after a letter is an apostrophe.
_QUOTED_PART = re.compile(r"(?<![A-Za-z])['\"`]|;")
_QUERY = "Query: '"
_ERRORS = (
    "Error",
    "Could not execute",
    "Table definition on master and slave does not match",
    "Coordinator stopped",
    "Worker",
    "Query caused different errors",
    "Query partially completed",
    "Relay log read failure",
    "Fatal error",
    "Slave SQL thread",
)
_COLUMN = re.compile(r"Column \d+ of table '[^']*' cannot be converted from type '[\w(), ]*' to type '[\w(), ]*'")
_AFTER_QUERY = re.compile(r"', (?:Gtid [\d-]+, )?(?:Internal MariaDB error code: \d+|Error_code: [A-Z]*-?\d+)\s*\Z")
_AFTER_ROWS = re.compile(
    r"(Error_code: [A-Z]*-?\d+; (?:handler error HA_\w+; )?the event's (?:master|source) log [\w.-]+, end_log_pos \d+)"
    r"(?:, Gtid [\d-]+)?(?:, (?:Internal MariaDB error code: \d+|Error_code: [A-Z]*-?\d+))?\s*\Z"
)

# What a text is shown as that was not read.
LEFT_OUT = NormalText("(text left out)")
# A server of 3,000 kinds of statements, of 60 words each, has 180,000; the tokenizers take some 10 µs a word.
MOST_WORDS = 400_000
_BLOCK_BYTES = 16


class TextBudget:
    """What the texts of one window may still cost. `left_out_count` were not read."""

    def __init__(self, words: int = MOST_WORDS) -> None:
        self._left = words
        self._known: dict[tuple[str, Family, bool], NormalText] = {}
        self._left_out: set[int] = set()

    @property
    def left_out_count(self) -> int:
        """Texts, each once."""
        return len(self._left_out)

    def notes(self) -> list[str]:
        """What a reader has to know of it."""
        if not self._left_out:
            return []
        return [
            f"{self.left_out_count:,} texts were left out, as all together have more than {MOST_WORDS:,} words: "
            f"their statements are in the row {LEFT_OUT}"
        ]

    def normal(self, text: str, family: Family, is_whole: bool) -> NormalText:
        """As `normal`, or LEFT_OUT."""
        known = self._known.get((text, family, is_whole))
        if known is None:
            # A word or 16 bytes, whichever are more: a single one may be as long as the text.
            cost = max(len(_WORD.findall(text)), len(text) // _BLOCK_BYTES) + 1
            if cost > self._left:
                self._left_out.add(hash((text, family)))
                return LEFT_OUT
            self._left -= cost
            known = self._known[text, family, is_whole] = _normal(text, family, is_whole)
        return known


_BUDGET: ContextVar[TextBudget | None] = ContextVar("texts of a window", default=None)


@contextmanager
def bounded(words: int = MOST_WORDS) -> Iterator[TextBudget]:
    """In this block all texts together have so many words; what they are is remembered until its end."""
    budget = TextBudget(words)
    token = _BUDGET.set(budget)
    try:
        yield budget
    finally:
        _BUDGET.reset(token)


@lru_cache
def _dialect(family: Family) -> Any:
    from sqlglot.dialects.mysql import MySQL
    from sqlglot.dialects.postgres import Postgres

    # Else what follows CALL, SHOW and others is taken whole, as a string.
    if family == "mysql":
        return type("Words", (MySQL.Tokenizer,), {"COMMANDS": set()})(dialect=MySQL())
    return type("Words", (Postgres.Tokenizer,), {"COMMANDS": set()})(dialect=Postgres())


def normal(text: str, family: Family = "mysql", *, is_whole: bool = True) -> NormalText:
    """Return the statement with each value as `?` and lists of values as `?, …`; comments are left out.

    What a server or a client says is made printable. A text that no tokenizer takes is not kept: nobody could say what
    in it is a value. One that is past the budget of a window (`bounded`) is LEFT_OUT. Pass `is_whole=False` if the text
    may be cut off or may have failed: a quote that never ends rules out no way of reading it then.
    """
    is_whole = is_whole and len(text) <= _MOST_BYTES
    text, budget = text[:_MOST_BYTES], _BUDGET.get()
    if budget is None or text == LEFT_OUT:
        return _normal(text, family, is_whole)
    return budget.normal(text, family, is_whole)


def _normal(text: str, family: Family, is_whole: bool) -> NormalText:
    text = without_strings(text, family, is_whole=is_whole)
    if family == "postgresql":
        text = _PARAMETER.sub("?", text)
    for closer in _CLOSERS:
        with suppress(Exception):  # sqlglot's own kinds, and whatever a hostile text makes it raise
            return NormalText(printable(_joined(_folded(list(_words(text + closer, family))))))
    return UNREADABLE


def labelled(label: str, text: NormalText = NO_TEXT, after: str = "") -> NormalText:
    """Return the text between words of powerprof's own, such as `(prepare) ` and `… (9,000 bytes)`."""
    return NormalText(f"{label}{text}{after}")


def normal_logged(kind: str, info: str) -> NormalText:
    """Return what SHOW BINLOG EVENTS shows of an event: the GTID that it begins, or its statement; else NO_TEXT.

    Events of other kinds hold values (`User var`, `Annotate_rows`) or nothing that a rule reads.
    """
    if kind.startswith("Gtid"):
        gtid = _GTID.search(info)
        return NormalText(gtid[0]) if gtid else NO_TEXT
    return normal(info, is_whole=False) if kind in ("Query", "Query_compressed") else NO_TEXT


def normal_replication_error(message: str) -> NormalText:
    """Return an error of a replica's SQL thread without values: the server's words before the first quoted part, the
    failed statement as `normal` returns it, and the position in the source's log.

    Quotes in these messages are not escaped, so a quoted part has no certain end. Words of a trigger (SIGNAL) are not
    quoted at all. Nothing from between the first quote or semicolon and the next certain place is kept.
    """
    if column := _COLUMN.match(message):
        return NormalText(printable(column[0]))
    head = printable(_QUOTED_PART.split(message, maxsplit=1)[0]).strip(" :,(")
    if not head.startswith(_ERRORS):
        return NormalText("(an error in other words than the known ones: not kept)")
    queries = message.split(_QUERY)
    if len(queries) == 2:
        query = normal(_AFTER_QUERY.sub("", queries[1]).removesuffix("'"), is_whole=False)
        return NormalText(f"{head} on query: {query}")
    tail = _AFTER_ROWS.search(message)
    return NormalText(f"{head}; {tail[1]}" if tail else head)


def key(text: str, family: Family = "mysql") -> str:
    """What is equal for texts of one statement: of a client, or a digest's text of the server (`IN (...)`)."""
    plain = normal(text.replace("...", "?, ?"), family).rstrip("; ")
    plain = plain.replace("`", "").lower() if family == "mysql" else _lower_outside_quotes(plain)
    return _AROUND.sub(r"\1", _BLANKS.sub(" ", plain))


def _lower_outside_quotes(text: str) -> str:
    """Parts that an even number of double quotes follow are outside of them."""
    parts = text.split('"')
    last = len(parts) - 1
    return '"'.join(part.lower() if (last - at) % 2 == 0 else part for at, part in enumerate(parts))


def _words(text: str, family: Family) -> Iterator[tuple[str, bool]]:
    """(word, whether a blank or comment stands before it); `?` for literals."""
    end = -1
    for token in _dialect(family).tokenize(text):
        kind, raw, apart = token.token_type.name, text[token.start : token.end + 1], token.start > end + 1
        end = token.end
        if raw == "?::":  # sqlglot takes another dialect's operator for it
            yield "?", apart
            yield "::", False
            continue
        yield ("?" if kind in _LITERALS else raw), apart


_SHAPES = (["(", "?", ",", MANY, ")"], ["(", "?", ")"])
_ROWS = tuple((shape, [*shape, ",", *shape]) for shape in _SHAPES)


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
        if word != ")":
            continue
        for shape, rows in _ROWS:
            # Rows of VALUES: one is as good as many.
            if [token for token, _ in folded[-len(rows) :]] == rows:
                del folded[-len(shape) - 1 :]
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
