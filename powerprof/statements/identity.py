# SPDX-License-Identifier: Apache-2.0
"""Which texts are the same statement: a hash that sees no literals, comments or blanks.

The kernel program computes it at each statement, byte by byte, from the table that is made here. It tells statements
apart and need not be read: `normal` then makes the text that people see, and puts together what the hash kept apart
(`id=5` and `id = 5`). Where the hash is coarser than the text (`IN (1,2)`, `IN (1,2,3)`), it is on purpose: the lengths
of lists would else make a statement of each.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

Family = Literal["mysql", "postgresql"]
"""Whose words and quotes they are: in PostgreSQL `"` quotes names, a backslash is one but in E'…', # is an operator."""

STATES = 32
_OFFSET, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_TEXT_BIT = 256  # below are numbers of commands

(_OTHER, _WORD, _NAME, _SPACE, _SLASH, _COMMENT, _STAR, _DASH, _LINE) = range(9)
# Literals, and what follows them; those of a list (after a literal and a comma) are 8 further on.
(_AFTER, _NUMBER, _SINGLE, _SINGLE_ESCAPE, _DOUBLE, _DOUBLE_ESCAPE) = range(9, 15)
_LIST = 8
_PREFIX = 15  # PostgreSQL: a word that so far is E
_LITERAL = ord("?")
_BLANKS = b" \t\r\n\f\v"


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
    if byte in _BLANKS or not byte:
        return _OTHER, 0
    if byte == ord("#") and family == "mysql":
        return _LINE, 0
    if byte in b"Ee" and family == "postgresql":
        return _PREFIX, byte
    maybe = {ord("/"): _SLASH, ord("-"): _DASH}.get(byte)
    if maybe is not None:
        return maybe, 0
    return _NAME if byte == _name_quote(family) else _WORD if _is_word(byte) else _OTHER, byte


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
    if byte in _BLANKS or byte in b"()" or not byte:
        return _AFTER + shift, 0
    if byte == ord(","):
        return _AFTER + _LIST, 0 if shift else byte
    if shift and byte == ord("-"):
        return _AFTER + _LIST, 0
    return _outside(byte, family)


def _word(byte: int, family: Family) -> tuple[int, int]:
    if _is_word(byte):
        return _WORD, byte
    return (_SPACE, ord(" ")) if byte in _BLANKS else _outside(byte, family)


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


def step(state: int, byte: int, family: Family = "mysql") -> tuple[int, int]:
    """(next state, what is mixed into the hash; 0: nothing)."""
    shift = _LIST if state >= _AFTER + _LIST else 0
    plain = state - shift
    if state == _PREFIX and byte == ord("'"):
        return _DOUBLE, _LITERAL
    if plain == _WORD or state == _PREFIX:
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
def table(family: Family = "mysql") -> bytes:
    """What the kernel program goes by: 256 next states for each state, then as many values to mix in."""
    steps = [step(state, byte, family) for state in range(STATES) for byte in range(256)]
    return bytes(state for state, _ in steps) + bytes(mixed for _, mixed in steps)


def identity(text: bytes, family: Family = "mysql") -> int:
    """The number of the statement that a text is, as the kernel program computes it."""
    how, state, value = table(family), 0, _OFFSET
    for byte in text:
        at = state << 8 | byte
        state, mixed = how[at], how[STATES * 256 + at]
        if mixed:
            value = (value ^ mixed) * _PRIME & _MASK
    return value | _TEXT_BIT
