# SPDX-License-Identifier: Apache-2.0
"""Texts of statements without their values, as people and servers' digests know them; the only user of sqlglot.

This module owns one rule: no text of a client enters a record, page or log with its values. Records therefore hold
`NormalText`, and only the functions here create one. A raw `str` in such a field is a type error.

sqlglot's tokenizers know the strings, comments, hexadecimal literals and quoted names of each family. Its parser is not
used, because a text may be cut off. Only one text of each kind is normalised (`hash_statement`), and the time grows
with its length. A client may send ever new statements: within `limit_texts` all texts of a window share a budget of
words, each text is read once, and texts past the budget are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import product
from typing import Any, Literal, NewType

from powerprof.system.files import printable

# Identity: a hash of a text that ignores literals, comments and blanks.
#
# The kernel program computes it byte by byte from the table of `build_table`. `normalise` creates the text for people
# and combines texts with different hashes (`id=5` and `id = 5`). The hash is deliberately coarser for lists
# (`IN (1,2)`, `IN (1,2,3)`): otherwise each length of a list would be another statement.

Family = Literal["mysql", "postgresql"]
"""The dialect. In PostgreSQL `"` quotes names, a backslash escapes only in E'…', and # is an operator."""

STATES = 32
_OFFSET, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_TEXT_BIT = 256  # Smaller identities are numbers of commands.

(_OTHER, _WORD_STATE, _NAME, _SPACE, _SLASH, _COMMENT, _STAR, _DASH, _LINE) = range(9)
# States of literals and after them. Those of a list (after a literal and a comma) are 8 higher.
(_AFTER, _NUMBER, _SINGLE, _SINGLE_ESCAPE, _DOUBLE, _DOUBLE_ESCAPE) = range(9, 15)
_LIST_SHIFT = 8
_E_PREFIX = 15  # PostgreSQL: a word that consists of E so far
_LITERAL = ord("?")
_BLANK_BYTES = b" \t\r\n\f\v"


def _is_word_byte(byte: int) -> bool:
    return byte >= 0x80 or chr(byte).isalnum() or byte in b"_$"


def _start_literal(byte: int, shift: int, family: Family) -> int | None:
    """Return the state after a literal's first byte; None if the byte starts no literal."""
    if byte == ord("'"):
        return _SINGLE + shift
    if byte == ord('"') and family == "mysql":
        return _DOUBLE + shift
    if chr(byte).isdigit() and byte < 0x80:
        return _NUMBER + shift
    return _AFTER + shift if byte == _LITERAL else None


def _step_outside(byte: int, family: Family) -> tuple[int, int]:
    """Return the next state and the value to mix in (0: none), at the start or after an operator."""
    literal = _start_literal(byte, 0, family)
    if literal is not None:
        return literal, _LITERAL
    if byte in _BLANK_BYTES or not byte:
        return _OTHER, 0
    if byte == ord("#") and family == "mysql":
        return _LINE, 0
    if byte in b"Ee" and family == "postgresql":
        return _E_PREFIX, byte
    maybe = {ord("/"): _SLASH, ord("-"): _DASH}.get(byte)
    if maybe is not None:
        return maybe, 0
    return _NAME if byte == _name_quote(family) else _WORD_STATE if _is_word_byte(byte) else _OTHER, byte


def _name_quote(family: Family) -> int:
    return ord("`") if family == "mysql" else ord('"')


def _step_after_mark(first: str, byte: int, family: Family) -> tuple[int, int]:
    """Return the step after a byte that started no comment: both bytes are mixed in as one distinct value."""
    state, mixed = _step_outside(byte, family)
    return state, (mixed + ord(first)) % 255 + 1


def _step_after_literal(byte: int, shift: int, family: Family) -> tuple[int, int]:
    """Return the step after a literal.

    Further literals with blanks, parentheses and commas between count once, as a list.
    """
    literal = _start_literal(byte, shift, family)
    if literal is not None:
        return literal, 0
    if byte in _BLANK_BYTES or byte in b"()" or not byte:
        return _AFTER + shift, 0
    if byte == ord(","):
        return _AFTER + _LIST_SHIFT, 0 if shift else byte
    if shift and byte == ord("-"):
        return _AFTER + _LIST_SHIFT, 0
    return _step_outside(byte, family)


def _step_word(byte: int, family: Family) -> tuple[int, int]:
    if _is_word_byte(byte):
        return _WORD_STATE, byte
    return (_SPACE, ord(" ")) if byte in _BLANK_BYTES else _step_outside(byte, family)


def _step_quoted(byte: int, quote: str, inside: int, escape: int | None, after: int) -> tuple[int, int]:
    if byte == ord("\\") and escape is not None:
        return escape, 0
    return (after if byte == ord(quote) else inside), 0


def _step_string(state: int, plain: int, byte: int, shift: int, family: Family) -> tuple[int, int]:
    """Return the step within quotes. PostgreSQL's second kind is E'…', the only one with escapes."""
    if family == "postgresql":
        return _step_quoted(byte, "'", state, None if plain == _SINGLE else _DOUBLE_ESCAPE + shift, _AFTER + shift)
    quote, escape = ("'", _SINGLE_ESCAPE) if plain == _SINGLE else ('"', _DOUBLE_ESCAPE)
    return _step_quoted(byte, quote, state, escape + shift, _AFTER + shift)


def next_state(state: int, byte: int, family: Family = "mysql") -> tuple[int, int]:
    """Return the next state and the value to mix into the hash (0: none)."""
    shift = _LIST_SHIFT if state >= _AFTER + _LIST_SHIFT else 0
    plain = state - shift
    if state == _E_PREFIX and byte == ord("'"):
        return _DOUBLE, _LITERAL
    if plain == _WORD_STATE or state == _E_PREFIX:
        return _step_word(byte, family)
    if plain == _NAME:
        return (_OTHER if byte == _name_quote(family) else _NAME), byte
    if plain == _SLASH:
        return (_COMMENT, 0) if byte == ord("*") else _step_after_mark("/", byte, family)
    if plain == _COMMENT:
        return (_STAR if byte == ord("*") else _COMMENT), 0
    if plain == _STAR:
        return {ord("/"): (_OTHER, 0), ord("*"): (_STAR, 0)}.get(byte, (_COMMENT, 0))
    if plain == _DASH:
        return (_LINE, 0) if byte == ord("-") else _step_after_mark("-", byte, family)
    if plain == _LINE:
        return (_OTHER if byte == ord("\n") else _LINE), 0
    if plain == _NUMBER:
        more = _is_word_byte(byte) or byte == ord(".")
        return (state, 0) if more else _step_after_literal(byte, shift, family)
    if plain in (_SINGLE, _DOUBLE):
        return _step_string(state, plain, byte, shift, family)
    if plain in (_SINGLE_ESCAPE, _DOUBLE_ESCAPE):
        return state - 1, 0
    return _step_after_literal(byte, shift, family) if plain == _AFTER else _step_outside(byte, family)


@cache
def build_table(family: Family = "mysql") -> bytes:
    """Return the kernel program's table: 256 next states for each state, then as many values to mix in."""
    steps = [next_state(state, byte, family) for state in range(STATES) for byte in range(256)]
    return bytes(state for state, _ in steps) + bytes(mixed for _, mixed in steps)


def hash_statement(text: bytes, family: Family = "mysql") -> int:
    """Return the identity of the statement of a text, as the kernel program computes it."""
    how, state, value = build_table(family), 0, _OFFSET
    for byte in text:
        at = state << 8 | byte
        state, mixed = how[at], how[STATES * 256 + at]
        if mixed:
            value = (value ^ mixed) * _PRIME & _MASK
    return value | _TEXT_BIT


# Strings of a statement, in every reading that its server may use.
#
# Whether a backslash escapes is a mode of the connection (NO_BACKSLASH_ESCAPES, standard_conforming_strings). In SJIS,
# GBK and Big5 it may be the second half of a character. A wrong reading shows quoted values as names, and hides names
# as strings. A part that is a string in any fitting reading is treated as one: a lost name is better than a kept value.

_MARKS = {
    "mysql": re.compile(rb"['\"`#]|--(?=[\s\x00-\x1f]|$)|/\*"),
    "postgresql": re.compile(rb"['\"]|--|/\*|(?<![\w$\x80-\xff])\$(?:[A-Za-z_\x80-\xff][\w\x80-\xff]*)?\$"),
}
_NESTED = re.compile(rb"/\*|\*/")
_EXECUTED = re.compile(rb"M?!")
_ESCAPING = re.compile(rb"(?<![\w$\x80-\xff])[eE]$")
# Parts within quotes: a character of two bytes, an escaped byte, a doubled quote.
_PAIR = rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]|"
_ESCAPE = rb"\\[\s\S]|"
_ENDS = {
    (quote, escapes, pairs): re.compile(
        b"(?:%s%s%s|[^%s])*+%s" % (_PAIR if pairs else b"", _ESCAPE if escapes else b"", quote * 2, quote, quote)
    )
    for quote, escapes, pairs in product((b"'", b'"', b"`"), (True, False), (True, False))
}
_WORD_BYTE = re.compile(rb"[\w\x80-\xff]")
_STRING_SPAN, _COMMENT_SPAN = 1, 2
# x'0' and b'0' are literals too.
_REPLACEMENTS = {_STRING_SPAN: b"'0'", _COMMENT_SPAN: b" "}


def replace_strings(text: str, family: Family, *, is_whole: bool = True) -> str:
    """Return the text with every string as `'0'`, without comments except those that MySQL and MariaDB execute.

    Bytes outside of UTF-8 are surrogates (PEP 383). If the text may be cut off (not `is_whole`), readings with an
    unfinished string or comment fit as well.
    """
    data = text.encode("utf-8", "surrogateescape" if _is_bytes(text) else "replace")
    usual, ends = _find_spans(data, family, escapes=family == "mysql", pairs=False, executed=True)
    strings = [(start, end) for start, end, kind in usual if kind == _STRING_SPAN]
    if strings and (not ends or any(_WORD_BYTE.match(data, end) for _, end in strings)):
        # With an extra quote (`'O'Brien'`) or a cut, the parts are certain only up to the first string.
        others = [
            start for spans in _read_other_ways(data, family, False) for start, _, kind in spans if kind == _STRING_SPAN
        ]
        rest = min([strings[0][0], *others])
        data = data[:rest] + _REPLACEMENTS[_STRING_SPAN]
        usual, _ = _find_spans(data, family, escapes=family == "mysql", pairs=False, executed=True)
    kinds = bytearray(len(data))
    for start, end, kind in usual:
        kinds[start:end] = bytes((kind,)) * (end - start)
    for spans in _read_other_ways(data, family, is_whole):
        for start, end, kind in spans:
            if kind == _STRING_SPAN:
                kinds[start:end] = b"\1" * (end - start)
    parts, at = [], 0
    for run in re.finditer(rb"\x01+|\x02+", kinds):
        parts += [data[at : run.start()], _REPLACEMENTS[kinds[run.start()]]]
        at = run.end()
    return b"".join([*parts, data[at:]]).decode("utf-8", "replace")


def _is_bytes(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _read_other_ways(data: bytes, family: Family, is_whole: bool) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the spans of the other readings that fit. In a whole text every string and comment must end."""
    try:
        data.decode()
        pairs: tuple[bool, ...] = (False,)
    except UnicodeDecodeError:
        pairs = (False, True)
    escapes = (True, False) if b"\\" in data else (family == "mysql",)
    executed = (True, False) if family == "mysql" and re.search(rb"/\*M?!", data) else (True,)
    for way in list(product(escapes, pairs, executed)):
        if way != (family == "mysql", False, True):
            spans, ends = _find_spans(data, family, escapes=way[0], pairs=way[1], executed=way[2])
            if ends or not is_whole:
                yield spans


def _find_spans(
    data: bytes, family: Family, *, escapes: bool, pairs: bool, executed: bool
) -> tuple[list[tuple[int, int, int]], bool]:
    """Return start, end and kind of strings and comments in one reading, and whether all of them end in the text."""
    spans: list[tuple[int, int, int]] = []
    at, names = 0, b"`" if family == "mysql" else b'"'
    while (mark := _MARKS[family].search(data, at)) is not None:
        start, word = mark.start(), mark[0]
        kind: int | None = _COMMENT_SPAN
        if word == b"/*" and family == "mysql" and executed and _EXECUTED.match(data, mark.end()):
            at = mark.end()
            continue
        if word == b"/*":
            end = _find_comment_end(data, mark.end(), nested=family == "postgresql")
        elif word[:1] in (b"#", b"-"):
            end = data.find(b"\n", start) + 1 or len(data)
        elif word[:1] == b"$":
            kind, end = _STRING_SPAN, data.find(word, mark.end()) + 1 and data.find(word, mark.end()) + len(word)
        else:
            kind = None if word == names else _STRING_SPAN
            escaping = escapes or (
                family == "postgresql" and _ESCAPING.search(data[max(0, start - 2) : start]) is not None
            )
            match = _ENDS[word, escaping and kind == _STRING_SPAN, pairs].match(data, mark.end())
            end = match.end() if match else 0
        if kind is not None:
            spans.append((start, end or len(data), kind))
        if not end:
            return spans, False
        at = end
    return spans, True


def _find_comment_end(data: bytes, at: int, *, nested: bool) -> int:
    """Return the place after the end of a comment; 0 without an end."""
    if not nested:
        return data.find(b"*/", at) + 2 if b"*/" in data[at:] else 0
    depth = 1
    for edge in _NESTED.finditer(data, at):
        depth += 1 if edge[0] == b"/*" else -1
        if not depth:
            return edge.end()
    return 0


NormalText = NewType("NormalText", str)
"""A text of a client, or of a server about it, without values."""
MANY = "…"
NO_TEXT = NormalText("")
UNREADABLE = NormalText("(not kept: the values in it cannot be recognised)")
_LITERALS = frozenset(
    [
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
    ]
)
_MAX_BYTES = 136 << 10  # the part of a text that programs in the kernel keep
# Ends of the parts that a cut text leaves open.
_CLOSING_MARKS = ("", "'", '"', "`", "*/")
_NO_SPACE_BEFORE = frozenset((",", ")", ".", ";", "::", "[", "]"))
_NO_SPACE_AFTER = frozenset(("(", ".", "@", "@@", "::", "["))
# A parameter of PostgreSQL's extended protocol.
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

LEFT_OUT = NormalText("(text left out)")
# 3,000 kinds of statements with 60 words each have 180,000 words. The tokenizers need some 10 µs per word.
MOST_WORDS = 400_000
_BLOCK_BYTES = 16


class TextBudget:
    """The remaining cost of the texts of one window. `left_out_count` is the number of texts that were not read."""

    def __init__(self, words: int = MOST_WORDS) -> None:
        self._left = words
        self._known: dict[tuple[str, Family, bool], NormalText] = {}
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

    def normalise(self, text: str, family: Family, is_whole: bool) -> NormalText:
        """Return the normal text, or LEFT_OUT past the budget."""
        known = self._known.get((text, family, is_whole))
        if known is None:
            # The cost is the larger of words and blocks of 16 bytes: a single word may be as long as the text.
            cost = max(len(_WORD.findall(text)), len(text) // _BLOCK_BYTES) + 1
            if cost > self._left:
                self._left_out.add(hash((text, family)))
                return LEFT_OUT
            self._left -= cost
            known = self._known[text, family, is_whole] = _normalise(text, family, is_whole)
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
def _tokenizer(family: Family) -> Any:
    from sqlglot.dialects.mysql import MySQL
    from sqlglot.dialects.postgres import Postgres

    # Without this, the rest after CALL, SHOW and other commands is one string.
    if family == "mysql":
        return type("Words", (MySQL.Tokenizer,), {"COMMANDS": set()})(dialect=MySQL())
    return type("Words", (Postgres.Tokenizer,), {"COMMANDS": set()})(dialect=Postgres())


def normalise(text: str, family: Family = "mysql", *, is_whole: bool = True) -> NormalText:
    """Return the statement with each value as `?` and lists of values as `?, …`, without comments.

    The result is printable. A text that the tokenizer refuses is not kept, because its values cannot be recognised. A
    text past the budget of a window (`limit_texts`) is LEFT_OUT. Pass `is_whole=False` if the text may be cut off or
    may have failed: an unfinished quote then excludes no reading.
    """
    is_whole = is_whole and len(text) <= _MAX_BYTES
    text, budget = text[:_MAX_BYTES], _BUDGET.get()
    if budget is None or text == LEFT_OUT:
        return _normalise(text, family, is_whole)
    return budget.normalise(text, family, is_whole)


def _normalise(text: str, family: Family, is_whole: bool) -> NormalText:
    text = replace_strings(text, family, is_whole=is_whole)
    if family == "postgresql":
        text = _PARAMETER.sub("?", text)
    for closer in _CLOSING_MARKS:
        with suppress(Exception):  # sqlglot's errors, and any exception that a hostile text causes in it
            return NormalText(printable(_join_words(_fold_lists(list(_read_words(text + closer, family))))))
    return UNREADABLE


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
    plain = normalise(text.replace("...", "?, ?"), family).rstrip("; ")
    plain = plain.replace("`", "").lower() if family == "mysql" else _lower_outside_quotes(plain)
    return _AROUND.sub(r"\1", _BLANKS.sub(" ", plain))


def _lower_outside_quotes(text: str) -> str:
    """Return the text in lower case outside of double quotes: an even number of quotes follows such a part."""
    parts = text.split('"')
    last = len(parts) - 1
    return '"'.join(part.lower() if (last - at) % 2 == 0 else part for at, part in enumerate(parts))


def _read_words(text: str, family: Family) -> Iterator[tuple[str, bool]]:
    """Yield each word, with `?` for literals, and whether a blank or comment precedes it."""
    end = -1
    for token in _tokenizer(family).tokenize(text):
        kind, raw, apart = token.token_type.name, text[token.start : token.end + 1], token.start > end + 1
        end = token.end
        if raw == "?::":  # sqlglot reads it as an operator of another dialect.
            yield "?", apart
            yield "::", False
            continue
        yield ("?" if kind in _LITERALS else raw), apart


_SHAPES = (["(", "?", ",", MANY, ")"], ["(", "?", ")"])
_ROWS = tuple((shape, [*shape, ",", *shape]) for shape in _SHAPES)


def _fold_lists(words: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Return the words with signs of numbers and lists of literals combined."""
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
            # Keep one row of VALUES.
            if [token for token, _ in folded[-len(rows) :]] == rows:
                del folded[-len(shape) - 1 :]
    return folded


def _is_operand(before: list[tuple[str, bool]]) -> bool:
    """Return whether a sign after this word is an operator: `a - 1`, but `= -1`, `(-1`, `SELECT -1`."""
    if not before:
        return False
    word = before[0][0]
    return bool(_OPERAND.fullmatch(word[-1])) and word.upper() not in ("SELECT", "THEN", "ELSE", "LIMIT", "BY", "AND")


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
