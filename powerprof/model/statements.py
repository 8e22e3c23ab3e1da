# SPDX-License-Identifier: Apache-2.0
"""Texts of statements without their values, as people and servers' digests know them; the only user of sqlglot.

This module owns one rule: no text of a client enters a record, page or log with its values. Records therefore hold
`NormalText`, and only the functions here create one. A raw `str` in such a field is a type error.

sqlglot's tokenizers know the strings, comments, hexadecimal literals and quoted names of each family. Its parser is not
used, because a text may be cut off. Only one text of each kind (`identities`) is normalised, and the time grows
with its length. A client may send ever new statements: within `limit_texts` all texts of a window share a budget of
words, each text is read once, and texts past the budget are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, NewType

import msgspec

from powerprof.model.identities import Family
from powerprof.model.statement_strings import replace_strings
from powerprof.system.foreign_text import printable

NormalText = NewType("NormalText", str)
"""A text of a client, or of a server about it, without values."""
MANY = "…"
# Words of digests: lists, introducers, hexadecimal strings (MariaDB), units of intervals.
_DIGEST_WORDS = (("...", "?, ?"), ("(_charset)", "_charset"), ("(unknown)", "?"), ("SQL_TSI_", ""))
_MORE = [(",", False), (MANY, True)]
_VALUES = {MANY: "?"}
NO_TEXT = NormalText("")
UNREADABLE = NormalText("(not kept: the values in it cannot be recognised)")
_LITERALS = frozenset(
    [
        *("NUMBER", "STRING", "NATIONAL_STRING", "HEX_STRING", "BIT_STRING", "BYTE_STRING", "RAW_STRING"),
        *("PLACEHOLDER", "HEREDOC_STRING", "UNICODE_STRING"),
    ]
)
_MAX_BYTES = 136 << 10  # the part of a text that programs in the kernel keep
# Ends of the parts that a cut text leaves open.
_CLOSING_MARKS = ("", "'", '"', "`", "*/")
_NO_SPACE_BEFORE = frozenset((",", ")", ".", ";", "::", "[", "]"))
_NO_SPACE_AFTER = frozenset(("(", ".", "@", "@@", "::", "["))
# A parameter of PostgreSQL's extended protocol.
_PARAMETER = re.compile(r"(?<![\w$])\$\d+")
# Strings are replaced before. What is left are names in backticks, comments that servers execute, and operators.
# Version 999999 stands for no server: tools write notes so.
_NAME_OR_MARK = re.compile(
    r"(`(?:[^`]|``)*+`?)|\"((?:[^\"]|\"\")*+)\"?|(/\*M?!99\d*+[\s\S]*?(?:\*/|\Z)|/\*M?!\d*+|\*/)|--"
)
_BLANKS = re.compile(r"\s+")
_AROUND = re.compile(r" ?([^\w\s]+) ?")
_WORD = re.compile(r"\w+|[^\w\s]")
_OPERAND = re.compile(r"[\w$)`\"\]?]")
# Words before a value, not an operator between two.
_BEFORE_VALUES = frozenset(
    (
        *("SELECT", "DISTINCT", "ALL", "THEN", "ELSE", "WHEN", "CASE", "AND", "OR", "XOR", "BETWEEN", "LIKE"),
        *("REGEXP", "RLIKE", "DEFAULT", "RETURN", "BY", "WHERE", "HAVING", "LIMIT", "OFFSET", "INTERVAL"),
        *("DIV", "MOD", "IN"),
    )
)
_BEFORE_SIGNS = _BEFORE_VALUES | {"NOT", "TO", "FETCH", "RETURNING", "VALUES"}
_BEFORE_ROWS = frozenset(("SELECT", "WITH", "VALUES", "TABLE", "("))
_BEFORE_SAVEPOINTS = frozenset(
    (*words, *to)
    for words in (("ROLLBACK",), ("ROLLBACK", "WORK"), ("ROLLBACK", "TRANSACTION"))
    for to in (("TO",), ("TO", "SAVEPOINT"))
) | {("SAVEPOINT",), ("RELEASE",), ("RELEASE", "SAVEPOINT")}
# Words that end the item of a list without parentheses, with the marks that end any.
_ENDS_OF_ITEMS = frozenset(
    (
        *(",", ")", "]", ";", "SELECT", "DISTINCT", "ALL", "VALUES", "VALUE", "FROM", "WHERE", "HAVING"),
        *("BY", "SET", "ORDER", "GROUP", "LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "ON", "INTO"),
        *("FOR", "RETURNING", "USING", "WINDOW"),
    )
)
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

LEFT_OUT = NormalText("(text left out)")
# 3,000 kinds of statements with 60 words each have 180,000 words. The tokenizers need some 10 µs per word.
MOST_WORDS = 400_000
_BLOCK_BYTES = 16


class TextBudget:
    """The remaining cost of the texts of one window. `left_out_count` is the number of texts that were not read."""

    def __init__(self, words: int = MOST_WORDS) -> None:
        self._left = words
        self._known: dict[tuple[str, Family, bool, bool], NormalText] = {}
        self._left_out: set[int] = set()

    @property
    def left_out_count(self) -> int:
        """The number of distinct texts that were left out."""
        return len(self._left_out)

    def notes(self) -> list[str]:
        """Return the notes for readers."""
        if not self._left_out:
            return []
        return [
            f"{self.left_out_count:,} texts were left out, as all together have more than {MOST_WORDS:,} words: "
            f"their statements are in the row {LEFT_OUT}"
        ]

    def normalise(self, text: str, family: Family, is_whole: bool, ansi_quotes: bool) -> NormalText:
        """Return the normal text, or LEFT_OUT past the budget."""
        known = self._known.get((text, family, is_whole, ansi_quotes))
        if known is None:
            # The cost is the larger of words and blocks of 16 bytes: a single word may be as long as the text.
            cost = max(len(_WORD.findall(text)), len(text) // _BLOCK_BYTES) + 1
            if cost > self._left:
                self._left_out.add(hash((text, family)))
                return LEFT_OUT
            self._left -= cost
            known = _normalise(text, family, is_whole, ansi_quotes)
            self._known[text, family, is_whole, ansi_quotes] = known
        return known


_BUDGET: ContextVar[TextBudget | None] = ContextVar("texts of a window", default=None)


@contextmanager
def limit_texts(words: int = MOST_WORDS) -> Iterator[TextBudget]:
    """Limit all texts in this block to a number of words. Their normal texts are cached until its end."""
    budget = TextBudget(words)
    token = _BUDGET.set(budget)
    try:
        yield budget
    finally:
        _BUDGET.reset(token)


@lru_cache
def _make_tokenizer(family: Family) -> Any:
    from sqlglot.dialects.mysql import MySQL
    from sqlglot.dialects.postgres import Postgres

    # Without this, the rest after CALL, SHOW and other commands is one string.
    if family == "mysql":
        return type("Words", (MySQL.Tokenizer,), {"COMMANDS": set()})(dialect=MySQL())
    return type("Words", (Postgres.Tokenizer,), {"COMMANDS": set()})(dialect=Postgres())


def normalise(text: str, family: Family = "mysql", *, is_whole: bool = True, ansi_quotes: bool = False) -> NormalText:
    """Return the statement with each value as `?` and lists of values as `?, …`, without comments.

    The result is printable. A text that the tokenizer refuses is not kept, because its values cannot be recognised. A
    text past the budget of a window (`limit_texts`) is LEFT_OUT. Pass `is_whole=False` if the text may be cut off or
    may have failed: an unfinished quote then excludes no reading. Pass `ansi_quotes` if the server read the text with
    that mode: double quotes are then those of names, which the result has in backticks.
    """
    is_whole = is_whole and len(text) <= _MAX_BYTES
    text, budget = text[:_MAX_BYTES], _BUDGET.get()
    # Such a text may change the mode and go on with a string.
    ansi_quotes = ansi_quotes and family == "mysql" and "sql_mode" not in text.lower()
    if budget is None or text == LEFT_OUT:
        return _normalise(text, family, is_whole, ansi_quotes)
    return budget.normalise(text, family, is_whole, ansi_quotes)


def _normalise(text: str, family: Family, is_whole: bool, ansi_quotes: bool) -> NormalText:
    text = replace_strings(text, family, is_whole=is_whole, ansi_quotes=ansi_quotes)
    text = _PARAMETER.sub("?", text) if family == "postgresql" else _NAME_OR_MARK.sub(_rewrite_mark, text)
    for closer in _CLOSING_MARKS:
        with suppress(Exception):  # sqlglot's errors, and any exception that a hostile text causes in it
            words = _fold_lists(_replace_values(_read_words(text + closer, family), family))
            return NormalText(printable(_join_words(words)))
    return UNREADABLE


def _rewrite_mark(mark: re.Match[str]) -> str:
    """Return names with backticks, no marks of executed comments, and two signs that begin no comment."""
    if mark[2] is not None:
        return "`" + mark[2].replace('""', '"').replace("`", "``") + "`"
    return mark[1] or (" " if mark[3] else "- -")


def label_text(label: str, text: NormalText = NO_TEXT, after: str = "") -> NormalText:
    """Return the text between words of powerprof, such as `(prepare) ` and `… (9,000 bytes)`."""
    return NormalText(f"{label}{text}{after}")


def normalise_logged_event(kind: str, info: str) -> NormalText:
    """Return the GTID or the statement of an event of SHOW BINLOG EVENTS; else NO_TEXT.

    Events of other kinds contain values (`User var`, `Annotate_rows`) or nothing that a rule reads.
    """
    if kind.startswith("Gtid"):
        gtid = _GTID.search(info)
        return NormalText(gtid[0]) if gtid else NO_TEXT
    return normalise(info, is_whole=False) if kind in ("Query", "Query_compressed") else NO_TEXT


def normalise_replication_error(message: str) -> NormalText:
    """Return an error of a replica's SQL thread without values.

    It keeps the server's words before the first quoted part, the normalised statement, and the position in the source's
    log. Quotes in these messages are not escaped, so a quoted part has no certain end. Words of a trigger (SIGNAL) are
    not quoted. Everything between the first quote or semicolon and the next certain place is dropped.
    """
    if column := _COLUMN.match(message):
        return NormalText(printable(column[0]))
    head = printable(_QUOTED_PART.split(message, maxsplit=1)[0]).strip(" :,(")
    if not head.startswith(_ERRORS):
        return NormalText("(an error in other words than the known ones: not kept)")
    queries = message.split(_QUERY)
    if len(queries) == 2:
        query = normalise(_AFTER_QUERY.sub("", queries[1]).removesuffix("'"), is_whole=False)
        return NormalText(f"{head} on query: {query}")
    tail = _AFTER_ROWS.search(message)
    return NormalText(f"{head}; {tail[1]}" if tail else head)


def make_key(text: str, family: Family = "mysql") -> str:
    """Return a key that is equal for texts of one statement, from a client or a server's digest (`IN (...)`)."""
    for shown, word in _DIGEST_WORDS:
        text = text.replace(shown, word)
    plain = normalise(text, family).rstrip("; ")
    plain = plain.replace("`", "").lower() if family == "mysql" else _lower_outside_quotes(plain)
    return _AROUND.sub(r"\1", _BLANKS.sub(" ", plain))


def _lower_outside_quotes(text: str) -> str:
    """Return the text in lower case outside of double quotes: an even number of quotes follows such a part."""
    parts = text.split('"')
    last = len(parts) - 1
    return '"'.join(part.lower() if (last - at) % 2 == 0 else part for at, part in enumerate(parts))


class _Word(NamedTuple):
    """A word of a text: `?` for a literal, and whether a blank or comment precedes it."""

    text: str
    apart: bool
    kind: str = ""


def _read_words(text: str, family: Family) -> Iterator[_Word]:
    """Yield the words of a text without strings and comments."""
    end = -1
    for token in _make_tokenizer(family).tokenize(text):
        kind, raw, apart = token.token_type.name, text[token.start : token.end + 1], token.start > end + 1
        end = token.end
        if raw == "?::":  # sqlglot reads it as an operator of another dialect.
            yield _Word("?", apart, "PLACEHOLDER")
            yield _Word("::", False)
            continue
        yield _Word("?" if kind in _LITERALS else raw, apart, kind)


def _replace_values(words: Iterator[_Word], family: Family) -> list[_Word]:
    """Return the words with one `?` for each value: NULL, signs, fractions, strings side by side, savepoints."""
    values: list[_Word] = []
    start = 0  # of the statement
    for read in words:
        word, before = read, values[-1] if values else _Word("", False)
        if (word.kind == "NULL" and _starts_value(before.text)) or _names_savepoint(values[start : start + 5], word):
            word = word._replace(text="?")
        if family == "mysql" and word.kind == "INTRODUCER":
            word = word._replace(text="_charset")
        elif family == "mysql" and before.text == "@" and not word.apart:
            word = word._replace(text="?")  # The digests have no names of variables and hosts.
        if word.text == "?":
            if before.text == "." and not word.apart and (before.apart or not _is_operand(values[-2:-1])):
                word = word._replace(apart=values.pop().apart)
            while values and values[-1].text in ("-", "+") and not _is_operand(values[-2:-1]):
                values.pop()
            before = values[-1] if values else _Word("", False)
        if not (before.text == "?" and _continues_value(before, word, family)):
            values.append(word)
        if word.text == ";":
            start = len(values)
    return values


def _starts_value(before: str) -> bool:
    """Return whether NULL is a value after this word. It is none in `IS NULL`, `NOT NULL`, `SET NULL`, `INT NULL`."""
    return before.upper() in _BEFORE_VALUES or (before != "" and not _OPERAND.fullmatch(before[-1]))


def _is_operand(before: Sequence[_Word]) -> bool:
    """Return whether a sign after this word is an operator: `a - 1`, but `= -1`, `(-1`, `SELECT -1`."""
    word = before[-1].text if before else ""
    return word != "" and bool(_OPERAND.fullmatch(word[-1])) and word.upper() not in _BEFORE_SIGNS


def _names_savepoint(before: Sequence[_Word], word: _Word) -> bool:
    """Return whether a word is the name of a savepoint. The words before it are those of its statement."""
    words = tuple(earlier.text.upper() for earlier in before)
    return words in _BEFORE_SAVEPOINTS and (words[-1] == "SAVEPOINT" or word.text.upper() != "SAVEPOINT")


def _continues_value(before: _Word, word: _Word, family: Family) -> bool:
    """Return whether a word belongs to the literal before it: strings side by side, digits of PostgreSQL."""
    if word.text == "?":
        return family == "mysql" or before.kind == word.kind == "STRING"
    return family == "postgresql" and before.kind == "NUMBER" and not word.apart and word.text[:1].isidentifier()


class _List(msgspec.Struct):
    """An open list: places of its first word, its present item and the last different one, and the word before it."""

    begin: int
    before: str = ""
    start: int = 0
    last: tuple[int, int] | None = None
    is_single: bool = True
    has_value: bool = False

    def begin_item(self, start: int) -> None:
        """Note that an item starts."""
        self.start, self.is_single = start, False

    def end_item(self, words: list[tuple[str, bool]]) -> None:
        """Remove the item that ends the words if it repeats the one before."""
        start, end = self.last or (0, 0)
        count = len(words) - self.start
        if count == 1 and words[-1][0] == MANY:
            return
        if count and end - start == count:
            item = [_VALUES.get(word, word) for word, _ in words[self.start :]]
            is_row = (item[0], item[-1]) == ("(", ")")
            if (is_row or "?" in item) and item == [_VALUES.get(word, word) for word, _ in words[start:end]]:
                del words[end:]
                if not is_row:
                    words += _MORE
                return
        self.last = self.start, len(words)


def _fold_lists(words: list[_Word]) -> list[tuple[str, bool]]:
    """Return the words with lists combined: `?, …` for values and equal expressions, one row of several.

    Values behind commas are combined first, across operators, as the digests of MySQL and MariaDB do it.
    """
    folded: list[tuple[str, bool]] = []
    lists = [_List(0)]
    for word in words:
        text, top = word.text, lists[-1]
        ends = text.upper() in _ENDS_OF_ITEMS
        if ends:
            top.end_item(folded)
        if text in (")", "]") and len(lists) > 1:
            lists.pop()
            lists[-1].has_value |= top.has_value
            # One value or expression of values, not a row or another statement.
            if (
                top.before == "IN"
                and top.is_single
                and top.has_value
                and folded[top.begin][0].upper() not in _BEFORE_ROWS
            ):
                folded += _MORE
        before = folded[-1][0].upper() if folded else ""
        folded.append((text, word.apart))
        top.has_value |= text == "?"
        if text in ("(", "["):
            lists.append(_List(len(folded), before, len(folded)))
        elif text == ",":
            top.begin_item(len(folded))
        elif ends and top is lists[-1]:
            top.start, top.last = len(folded), None
        elif text == "?" and [token for token, _ in folded[-3:-1]] in (["?", ","], [MANY, ","]):
            del folded[-2:]
            if folded[-1][0] == "?":
                folded += _MORE
            top.start = len(folded) - 1
    lists[-1].end_item(folded)
    return folded


def _join_words(words: list[tuple[str, bool]]) -> str:
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
