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
from functools import cache, lru_cache
from itertools import product
from typing import Any, Literal, NewType

from powerprof.system.files import printable

# Which texts are the same statement: a hash that sees no literals, comments or blanks.
#
# The kernel program computes it at each statement, byte by byte, from the table that is made here. It tells statements
# apart and need not be read: `normal` then makes the text that people see, and puts together what the hash kept apart
# (`id=5` and `id = 5`). Where the hash is coarser than the text (`IN (1,2)`, `IN (1,2,3)`), it is on purpose: the
# lengths of lists would else make a statement of each.

Family = Literal["mysql", "postgresql"]
"""Whose words and quotes they are: in PostgreSQL `"` quotes names, a backslash is one but in E'…', # is an operator."""

STATES = 32
_OFFSET, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_TEXT_BIT = 256  # below are numbers of commands

(_OTHER, _IDENTITY_WORD, _NAME, _SPACE, _SLASH, _COMMENT, _STAR, _DASH, _LINE) = range(9)
# Literals, and what follows them; those of a list (after a literal and a comma) are 8 further on.
(_AFTER, _NUMBER, _SINGLE, _SINGLE_ESCAPE, _DOUBLE, _DOUBLE_ESCAPE) = range(9, 15)
_LIST = 8
_PREFIX = 15  # PostgreSQL: a word that so far is E
_LITERAL = ord("?")
_IDENTITY_BLANKS = b" \t\r\n\f\v"


def _is_word(byte: int) -> bool:
    return byte >= 0x80 or chr(byte).isalnum() or byte in b"_$"


def _literal(byte: int, shift: int, family: Family) -> int | None:
    """The state that a literal's first byte leads to."""
    if byte == ord("'"):
        return _SINGLE + shift
    if byte == ord('"') and family == "mysql":
        return _DOUBLE + shift
    if chr(byte).isdigit() and byte < 0x80:
        return _NUMBER + shift
    return _AFTER + shift if byte == _LITERAL else None


def _outside(byte: int, family: Family) -> tuple[int, int]:
    """After an operator, or where nothing came yet: (next state, what is mixed in; 0: nothing)."""
    literal = _literal(byte, 0, family)
    if literal is not None:
        return literal, _LITERAL
    if byte in _IDENTITY_BLANKS or not byte:
        return _OTHER, 0
    if byte == ord("#") and family == "mysql":
        return _LINE, 0
    if byte in b"Ee" and family == "postgresql":
        return _PREFIX, byte
    maybe = {ord("/"): _SLASH, ord("-"): _DASH}.get(byte)
    if maybe is not None:
        return maybe, 0
    return _NAME if byte == _name_quote(family) else _IDENTITY_WORD if _is_word(byte) else _OTHER, byte


def _name_quote(family: Family) -> int:
    return ord("`") if family == "mysql" else ord('"')


def _deferred(first: str, byte: int, family: Family) -> tuple[int, int]:
    """After a byte that began no comment: it is mixed in with this one, by another value than this one alone."""
    state, mixed = _outside(byte, family)
    return state, (mixed + ord(first)) % 255 + 1


def _after(byte: int, shift: int, family: Family) -> tuple[int, int]:
    """After a literal: more of them, with blanks, parentheses and commas between, are a list that counts once."""
    literal = _literal(byte, shift, family)
    if literal is not None:
        return literal, 0
    if byte in _IDENTITY_BLANKS or byte in b"()" or not byte:
        return _AFTER + shift, 0
    if byte == ord(","):
        return _AFTER + _LIST, 0 if shift else byte
    if shift and byte == ord("-"):
        return _AFTER + _LIST, 0
    return _outside(byte, family)


def _word(byte: int, family: Family) -> tuple[int, int]:
    if _is_word(byte):
        return _IDENTITY_WORD, byte
    return (_SPACE, ord(" ")) if byte in _IDENTITY_BLANKS else _outside(byte, family)


def _quoted(byte: int, quote: str, inside: int, escape: int | None, after: int) -> tuple[int, int]:
    if byte == ord("\\") and escape is not None:
        return escape, 0
    return (after if byte == ord(quote) else inside), 0


def _string(state: int, plain: int, byte: int, shift: int, family: Family) -> tuple[int, int]:
    """Within quotes. PostgreSQL's second kind is E'…', the only one with escapes."""
    if family == "postgresql":
        return _quoted(byte, "'", state, None if plain == _SINGLE else _DOUBLE_ESCAPE + shift, _AFTER + shift)
    quote, escape = ("'", _SINGLE_ESCAPE) if plain == _SINGLE else ('"', _DOUBLE_ESCAPE)
    return _quoted(byte, quote, state, escape + shift, _AFTER + shift)


def next_state(state: int, byte: int, family: Family = "mysql") -> tuple[int, int]:
    """(next state, what is mixed into the hash; 0: nothing)."""
    shift = _LIST if state >= _AFTER + _LIST else 0
    plain = state - shift
    if state == _PREFIX and byte == ord("'"):
        return _DOUBLE, _LITERAL
    if plain == _IDENTITY_WORD or state == _PREFIX:
        return _word(byte, family)
    if plain == _NAME:
        return (_OTHER if byte == _name_quote(family) else _NAME), byte
    if plain == _SLASH:
        return (_COMMENT, 0) if byte == ord("*") else _deferred("/", byte, family)
    if plain == _COMMENT:
        return (_STAR if byte == ord("*") else _COMMENT), 0
    if plain == _STAR:
        return {ord("/"): (_OTHER, 0), ord("*"): (_STAR, 0)}.get(byte, (_COMMENT, 0))
    if plain == _DASH:
        return (_LINE, 0) if byte == ord("-") else _deferred("-", byte, family)
    if plain == _LINE:
        return (_OTHER if byte == ord("\n") else _LINE), 0
    if plain == _NUMBER:
        more = _is_word(byte) or byte == ord(".")
        return (state, 0) if more else _after(byte, shift, family)
    if plain in (_SINGLE, _DOUBLE):
        return _string(state, plain, byte, shift, family)
    if plain in (_SINGLE_ESCAPE, _DOUBLE_ESCAPE):
        return state - 1, 0
    return _after(byte, shift, family) if plain == _AFTER else _outside(byte, family)


@cache
def build_table(family: Family = "mysql") -> bytes:
    """What the kernel program goes by: 256 next states for each state, then as many values to mix in."""
    steps = [next_state(state, byte, family) for state in range(STATES) for byte in range(256)]
    return bytes(state for state, _ in steps) + bytes(mixed for _, mixed in steps)


def hash_statement(text: bytes, family: Family = "mysql") -> int:
    """The number of the statement that a text is, as the kernel program computes it."""
    how, state, value = build_table(family), 0, _OFFSET
    for byte in text:
        at = state << 8 | byte
        state, mixed = how[at], how[STATES * 256 + at]
        if mixed:
            value = (value ^ mixed) * _PRIME & _MASK
    return value | _TEXT_BIT


# Where the strings of a statement are, in every way in which its server may read them: pure.
#
# Whether a backslash escapes is a mode of the connection (NO_BACKSLASH_ESCAPES, standard_conforming_strings), and in
# SJIS, GBK and Big5 it may be the second half of a character. Read in the wrong way a text shows what was quoted as
# names, and hides names as strings. What is a string in any way that fits the text is taken for one: a name lost costs
# less than a client's value kept.

_MARKS = {
    "mysql": re.compile(rb"['\"`#]|--(?=[\s\x00-\x1f]|$)|/\*"),
    "postgresql": re.compile(rb"['\"]|--|/\*|(?<![\w$\x80-\xff])\$(?:[A-Za-z_\x80-\xff][\w\x80-\xff]*)?\$"),
}
_NESTED = re.compile(rb"/\*|\*/")
_EXECUTED = re.compile(rb"M?!")
_ESCAPING = re.compile(rb"(?<![\w$\x80-\xff])[eE]$")
# What may stand within quotes: an escaped byte, a character of two bytes, a doubled quote.
_PAIR = rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]|"
_ESCAPE = rb"\\[\s\S]|"
_ENDS = {
    (quote, escapes, pairs): re.compile(
        b"(?:"
        + (_PAIR if pairs else b"")
        + (_ESCAPE if escapes else b"")
        + quote * 2
        + b"|[^"
        + quote
        + b"])*+"
        + quote
    )
    for quote, escapes, pairs in product((b"'", b'"', b"`"), (True, False), (True, False))
}
_GLUED = re.compile(rb"[\w\x80-\xff]")
_STRING, _QUOTING_COMMENT = 1, 2
# What a string is replaced by; also x'0' and b'0' are literals.
_INSTEAD = {_STRING: b"'0'", _QUOTING_COMMENT: b" "}


def replace_strings(text: str, family: Family, *, is_whole: bool = True) -> str:
    """The text with every string as `'0'` and without its comments, but those that MySQL and MariaDB execute.

    Bytes that were no UTF-8 are there as surrogates (PEP 383). If the text may be cut off (not `is_whole`), ways in
    which a string or comment does not end fit as well.
    """
    data = text.encode("utf-8", "surrogateescape" if _is_bytes(text) else "replace")
    usual, ends = _spans(data, family, escapes=family == "mysql", pairs=False, executed=True)
    strings = [(start, end) for start, end, kind in usual if kind == _STRING]
    if strings and (not ends or any(_GLUED.match(data, end) for _, end in strings)):
        # A quote too many (`'O'Brien'`), or a cut: which parts are strings is certain only up to the first one.
        rest = min(
            [
                strings[0][0],
                *(start for spans in _other(data, family, False) for start, _, kind in spans if kind == _STRING),
            ]
        )
        data = data[:rest] + _INSTEAD[_STRING]
        usual, _ = _spans(data, family, escapes=family == "mysql", pairs=False, executed=True)
    kinds = bytearray(len(data))
    for start, end, kind in usual:
        kinds[start:end] = bytes((kind,)) * (end - start)
    for spans in _other(data, family, is_whole):
        for start, end, kind in spans:
            if kind == _STRING:
                kinds[start:end] = b"\1" * (end - start)
    parts, at = [], 0
    for run in re.finditer(rb"\x01+|\x02+", kinds):
        parts += [data[at : run.start()], _INSTEAD[kinds[run.start()]]]
        at = run.end()
    return b"".join([*parts, data[at:]]).decode("utf-8", "replace")


def _is_bytes(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _other(data: bytes, family: Family, is_whole: bool) -> Iterator[list[tuple[int, int, int]]]:
    """The other ways that fit: in a whole text, those in which every string and comment ends within it."""
    try:
        data.decode()
        pairs: tuple[bool, ...] = (False,)
    except UnicodeDecodeError:
        pairs = (False, True)
    escapes = (True, False) if b"\\" in data else (family == "mysql",)
    executed = (True, False) if family == "mysql" and re.search(rb"/\*M?!", data) else (True,)
    for way in list(product(escapes, pairs, executed)):
        if way != (family == "mysql", False, True):
            spans, ends = _spans(data, family, escapes=way[0], pairs=way[1], executed=way[2])
            if ends or not is_whole:
                yield spans


def _spans(
    data: bytes, family: Family, *, escapes: bool, pairs: bool, executed: bool
) -> tuple[list[tuple[int, int, int]], bool]:
    """(start, end, string or comment) in one way, and whether all of them end before the text does."""
    spans: list[tuple[int, int, int]] = []
    at, names = 0, b"`" if family == "mysql" else b'"'
    while (mark := _MARKS[family].search(data, at)) is not None:
        start, word = mark.start(), mark[0]
        kind: int | None = _QUOTING_COMMENT
        if word == b"/*" and family == "mysql" and executed and _EXECUTED.match(data, mark.end()):
            at = mark.end()
            continue
        if word == b"/*":
            end = _comment_end(data, mark.end(), nested=family == "postgresql")
        elif word[:1] in (b"#", b"-"):
            end = data.find(b"\n", start) + 1 or len(data)
        elif word[:1] == b"$":
            kind, end = _STRING, data.find(word, mark.end()) + 1 and data.find(word, mark.end()) + len(word)
        else:
            kind = None if word == names else _STRING
            escaping = escapes or (
                family == "postgresql" and _ESCAPING.search(data[max(0, start - 2) : start]) is not None
            )
            match = _ENDS[word, escaping and kind == _STRING, pairs].match(data, mark.end())
            end = match.end() if match else 0
        if kind is not None:
            spans.append((start, end or len(data), kind))
        if not end:
            return spans, False
        at = end
    return spans, True


def _comment_end(data: bytes, at: int, *, nested: bool) -> int:
    """Behind the end of a comment; 0 where it has none."""
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

    def normalise(self, text: str, family: Family, is_whole: bool) -> NormalText:
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
def limit_texts(words: int = MOST_WORDS) -> Iterator[TextBudget]:
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


def normalise(text: str, family: Family = "mysql", *, is_whole: bool = True) -> NormalText:
    """Return the statement with each value as `?` and lists of values as `?, …`; comments are left out.

    What a server or a client says is made printable. A text that no tokenizer takes is not kept: nobody could say what
    in it is a value. One that is past the budget of a window (`bounded`) is LEFT_OUT. Pass `is_whole=False` if the text
    may be cut off or may have failed: a quote that never ends rules out no way of reading it then.
    """
    is_whole = is_whole and len(text) <= _MOST_BYTES
    text, budget = text[:_MOST_BYTES], _BUDGET.get()
    if budget is None or text == LEFT_OUT:
        return _normal(text, family, is_whole)
    return budget.normalise(text, family, is_whole)


def _normal(text: str, family: Family, is_whole: bool) -> NormalText:
    text = replace_strings(text, family, is_whole=is_whole)
    if family == "postgresql":
        text = _PARAMETER.sub("?", text)
    for closer in _CLOSERS:
        with suppress(Exception):  # sqlglot's own kinds, and whatever a hostile text makes it raise
            return NormalText(printable(_joined(_folded(list(_words(text + closer, family))))))
    return UNREADABLE


def label_text(label: str, text: NormalText = NO_TEXT, after: str = "") -> NormalText:
    """Return the text between words of powerprof's own, such as `(prepare) ` and `… (9,000 bytes)`."""
    return NormalText(f"{label}{text}{after}")


def normalise_logged_event(kind: str, info: str) -> NormalText:
    """Return what SHOW BINLOG EVENTS shows of an event: the GTID that it begins, or its statement; else NO_TEXT.

    Events of other kinds hold values (`User var`, `Annotate_rows`) or nothing that a rule reads.
    """
    if kind.startswith("Gtid"):
        gtid = _GTID.search(info)
        return NormalText(gtid[0]) if gtid else NO_TEXT
    return normalise(info, is_whole=False) if kind in ("Query", "Query_compressed") else NO_TEXT


def normalise_replication_error(message: str) -> NormalText:
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
        query = normalise(_AFTER_QUERY.sub("", queries[1]).removesuffix("'"), is_whole=False)
        return NormalText(f"{head} on query: {query}")
    tail = _AFTER_ROWS.search(message)
    return NormalText(f"{head}; {tail[1]}" if tail else head)


def make_key(text: str, family: Family = "mysql") -> str:
    """What is equal for texts of one statement: of a client, or a digest's text of the server (`IN (...)`)."""
    plain = normalise(text.replace("...", "?, ?"), family).rstrip("; ")
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
