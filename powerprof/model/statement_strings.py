# SPDX-License-Identifier: Apache-2.0
"""Strings and comments of a statement, in every reading that its server may use.

Whether a backslash escapes is a mode of the connection (NO_BACKSLASH_ESCAPES, standard_conforming_strings). In SJIS,
GBK and Big5 it may be the second half of a character. A wrong reading shows quoted values as names, and hides names
as strings. A part that is a string in any fitting reading is treated as one: a lost name is better than a kept value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from powerprof.model.identities import Family

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


def replace_strings(text: str, family: Family, *, is_whole: bool = True, ansi_quotes: bool = False) -> str:
    """Return the text with every string as `'0'`, without comments except those that MySQL and MariaDB execute.

    With `ansi_quotes`, double quotes are those of names, as in PostgreSQL.

    Bytes outside of UTF-8 are surrogates (PEP 383). If the text may be cut off (not `is_whole`), readings with an
    unfinished string or comment fit as well.
    """
    data = text.encode("utf-8", "surrogateescape" if _is_bytes(text) else "replace")
    names = b'"' if family == "postgresql" else b'`"' if ansi_quotes else b"`"
    usual, ends = _find_spans(data, family, names, escapes=family == "mysql", pairs=False, executed=True)
    strings = [(start, end) for start, end, kind in usual if kind == _STRING_SPAN]
    if strings and (not ends or any(_WORD_BYTE.match(data, end) for _, end in strings)):
        # With an extra quote (`'O'Brien'`) or a cut, the parts are certain only up to the first string.
        others = [
            start
            for spans in _read_other_ways(data, family, names, False)
            for start, _, kind in spans
            if kind == _STRING_SPAN
        ]
        rest = min([strings[0][0], *others])
        data = data[:rest] + _REPLACEMENTS[_STRING_SPAN]
        usual, _ = _find_spans(data, family, names, escapes=family == "mysql", pairs=False, executed=True)
    kinds = bytearray(len(data))
    for start, end, kind in usual:
        kinds[start:end] = bytes((kind,)) * (end - start)
    for spans in _read_other_ways(data, family, names, is_whole):
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


def _read_other_ways(data: bytes, family: Family, names: bytes, is_whole: bool) -> Iterator[list[tuple[int, int, int]]]:
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
            spans, ends = _find_spans(data, family, names, escapes=way[0], pairs=way[1], executed=way[2])
            if ends or not is_whole:
                yield spans


def _find_spans(
    data: bytes, family: Family, names: bytes, *, escapes: bool, pairs: bool, executed: bool
) -> tuple[list[tuple[int, int, int]], bool]:
    """Return start, end and kind of strings and comments in one reading, and whether all of them end in the text.

    `names` are the quotes of names.
    """
    spans: list[tuple[int, int, int]] = []
    at = 0
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
            kind = None if word in names else _STRING_SPAN
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
