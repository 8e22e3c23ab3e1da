# SPDX-License-Identifier: Apache-2.0
"""Where the strings of a statement are, in every way in which its server may read them: pure.

Whether a backslash escapes is a mode of the connection (NO_BACKSLASH_ESCAPES, standard_conforming_strings), and in
SJIS, GBK and Big5 it may be the second half of a character. Read in the wrong way a text shows what was quoted as
names, and hides names as strings. What is a string in any way that fits the text is taken for one: a name lost costs
less than a client's value kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from powerprof.statements.identity import Family

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
_STRING, _COMMENT = 1, 2
# What a string is replaced by; also x'0' and b'0' are literals.
_INSTEAD = {_STRING: b"'0'", _COMMENT: b" "}


def without_strings(text: str, family: Family, *, is_whole: bool = True) -> str:
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
        kind: int | None = _COMMENT
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
