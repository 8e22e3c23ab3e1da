# SPDX-License-Identifier: Apache-2.0
"""Identities of statements: a hash of a text that ignores literals, comments and blanks.

The kernel programs compute it byte by byte from the tables of `build_tables`. `statements.normalise` creates the text
for people and combines texts with different hashes (`id=5` and `id = 5`). The hash must never be coarser than the
normal form, except for the length of a list: `IN (1,2)` and `IN (1,2,3)` would otherwise be two statements.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

Family = Literal["mysql", "postgresql"]
"""The dialect. In PostgreSQL `"` quotes names, a backslash escapes only in E'…', and # is an operator."""
_Dialect = Literal["mysql", "postgresql", "ansi"]  # MySQL and MariaDB with sql_mode=ANSI_QUOTES: `"` quotes names

STATES = 64
ANSI_BIT = 512
"""The bit of identities of texts with ANSI_QUOTES."""

(_OTHER, _WORD_STATE, _NAME, _SPACE, _SLASH, _COMMENT, _STAR, _DASH, _LINE) = range(9)
# States of literals and after them. Those of a list (after a literal and a comma) are 8 higher.
(_AFTER, _NUMBER, _SINGLE, _SINGLE_ESCAPE, _DOUBLE, _DOUBLE_ESCAPE) = range(9, 15)
_LIST_SHIFT = 8
_E_PREFIX = 15  # PostgreSQL: a word that consists of E so far
_DASHES = 16  # MySQL: a comment only if a blank follows
_DOUBLE_NAME = 23
_COMMENT_START, _COMMENT_M, _VERSION = 24, 25, 26  # `/*!40101` and `/*M!100100` are executed
_COMMA, _COMMA_SIGN = 27, 28  # after a literal and a comma
# After a literal: a parenthesis that is mixed in with the next byte, and a comma after it. In a list 1 higher.
_CLOSED, _CLOSED_COMMA = 29, 31
_SAVEPOINT = 33  # after S. Savepoint names are values, because clients draw a new name for each transaction.
_SAVEPOINT_LETTERS = b"AVEPOINT"
_SAVEPOINT_END = _SAVEPOINT + len(_SAVEPOINT_LETTERS)
_SAVEPOINT_SPACE, _SAVEPOINT_QUOTED, _SAVEPOINT_DOUBLE = range(_SAVEPOINT_END + 1, _SAVEPOINT_END + 4)
_LITERAL = ord("?")
_BLANK_BYTES = b" \t\r\n\f\v"
# Bytes that were not mixed in at once, as control characters, which statements do not have.
_SLASH_MARK, _DASH_MARK, _DASHES_MARK, _CLOSED_MARK, _CLOSED_COMMA_MARK = range(1, 6)


def _is_word_byte(byte: int) -> bool:
    return byte >= 0x80 or chr(byte).isalnum() or byte in b"_$"


def _start_literal(byte: int, shift: int, dialect: _Dialect) -> int | None:
    """Return the state after a literal's first byte; None if the byte starts no literal."""
    if byte == ord("'"):
        return _SINGLE + shift
    if byte == ord('"') and dialect == "mysql":
        return _DOUBLE + shift
    if chr(byte).isdigit() and byte < 0x80:
        return _NUMBER + shift
    return _AFTER + shift if byte == _LITERAL else None


def _start_name(byte: int, dialect: _Dialect) -> int | None:
    """Return the state within a quoted name; None if the byte starts none."""
    if byte == ord("`") and dialect != "postgresql":
        return _NAME
    if byte != ord('"') or dialect == "mysql":
        return None
    return _NAME if dialect == "postgresql" else _DOUBLE_NAME


def _step_outside(byte: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the next state and the value to mix in (0: none), at the start or after an operator."""
    literal = _start_literal(byte, 0, dialect)
    if literal is not None:
        return literal, _LITERAL
    if byte in _BLANK_BYTES or not byte:
        return _OTHER, 0
    if byte == ord("#") and dialect != "postgresql":
        return _LINE, 0
    if byte in b"Ee" and dialect == "postgresql":
        return _E_PREFIX, byte
    if byte in b"Ss":
        return _SAVEPOINT, byte
    maybe = {ord("/"): _SLASH, ord("-"): _DASH}.get(byte)
    if maybe is not None:
        return maybe, 0
    name = _start_name(byte, dialect)
    return name if name is not None else _WORD_STATE if _is_word_byte(byte) else _OTHER, byte


def _step_after_mark(mark: int, byte: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the step after bytes that were not mixed in: they and this byte are one value outside of ASCII's text."""
    state, mixed = _step_outside(byte, dialect)
    return state, 0x80 | (mixed + 16 * mark) & 0x7F if mixed else mark


def _step_after_literal(byte: int, shift: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the step after a literal. Further literals, and those behind commas, count once."""
    literal = _start_literal(byte, shift, dialect)
    if literal is not None:
        return literal, 0
    if byte in _BLANK_BYTES or not byte:
        return _AFTER + shift, 0
    if byte == ord(")"):
        return _CLOSED + (shift > 0), 0
    if byte == ord(","):
        return _COMMA, 0 if shift else byte
    return _step_outside(byte, dialect)


def _step_in_list(state: int, byte: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the step after a literal and a comma, or a sign after them. A sign of a number is a part of it."""
    literal = _start_literal(byte, _LIST_SHIFT, dialect)
    if literal is not None:
        return literal, 0
    if byte in _BLANK_BYTES:
        return state, 0
    if state == _COMMA_SIGN:
        return _step_dash(byte, dialect)
    return (_COMMA_SIGN, 0) if byte == ord("-") else _step_outside(byte, dialect)


def _step_closed(state: int, byte: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the step after the end of a row of literals. Further rows count once."""
    in_list = state in (_CLOSED + 1, _CLOSED_COMMA + 1)
    if byte in _BLANK_BYTES or not byte:
        return state, 0
    if state in (_CLOSED_COMMA, _CLOSED_COMMA + 1):
        row = byte == ord("(")
        return (_COMMA, 0 if in_list else byte) if row else _step_after_mark(_CLOSED_COMMA_MARK, byte, dialect)
    if byte == ord(","):
        return _CLOSED_COMMA + in_list, 0
    return (state, byte) if byte == ord(")") else _step_after_mark(_CLOSED_MARK, byte, dialect)


def _step_dash(byte: int, dialect: _Dialect) -> tuple[int, int]:
    if byte == ord("-"):
        return (_LINE if dialect == "postgresql" else _DASHES), 0
    return _step_after_mark(_DASH_MARK, byte, dialect)


def _step_word(byte: int, dialect: _Dialect) -> tuple[int, int]:
    if _is_word_byte(byte):
        return _WORD_STATE, byte
    return (_SPACE, ord(" ")) if byte in _BLANK_BYTES else _step_outside(byte, dialect)


def _step_savepoint(state: int, byte: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the step within the word SAVEPOINT and the name after it."""
    if state < _SAVEPOINT_END:
        is_next = byte & ~0x20 == _SAVEPOINT_LETTERS[state - _SAVEPOINT]
        return (state + 1, byte) if is_next else _step_word(byte, dialect)
    if state == _SAVEPOINT_END:
        return (_SAVEPOINT_SPACE, ord(" ")) if byte in _BLANK_BYTES else _step_word(byte, dialect)
    if state == _SAVEPOINT_SPACE:
        if byte in _BLANK_BYTES:
            return state, 0
        if (quoted := _start_name(byte, dialect)) is not None:
            return (_SAVEPOINT_QUOTED if quoted == _NAME else _SAVEPOINT_DOUBLE), _LITERAL
        return (_NUMBER, _LITERAL) if _is_word_byte(byte) else _step_outside(byte, dialect)
    quote = b"`" if state == _SAVEPOINT_QUOTED and dialect != "postgresql" else b'"'
    return (_AFTER if byte in quote else state), 0


def _step_comment(state: int, byte: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the step within a comment. MySQL and MariaDB execute those that start with `!`."""
    if state == _VERSION:
        return (state, 0) if byte in b"0123456789" else _step_outside(byte, dialect)
    if state == _LINE:
        return (_OTHER if byte == ord("\n") else _LINE), 0
    if state == _STAR and byte == ord("/"):
        return _OTHER, 0
    if state in (_COMMENT_START, _COMMENT_M) and dialect != "postgresql":
        if byte == ord("!"):
            return _VERSION, 0
        if byte == ord("M") and state == _COMMENT_START:
            return _COMMENT_M, 0
    return (_STAR if byte == ord("*") else _COMMENT), 0


def _step_quoted(byte: int, quote: str, inside: int, escape: int | None, after: int) -> tuple[int, int]:
    if byte == ord("\\") and escape is not None:
        return escape, 0
    return (after if byte == ord(quote) else inside), 0


def _step_string(state: int, plain: int, byte: int, shift: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the step within quotes. PostgreSQL's second kind is E'…', the only one with escapes."""
    if dialect == "postgresql":
        return _step_quoted(byte, "'", state, None if plain == _SINGLE else _DOUBLE_ESCAPE + shift, _AFTER + shift)
    quote, escape = ("'", _SINGLE_ESCAPE) if plain == _SINGLE else ('"', _DOUBLE_ESCAPE)
    return _step_quoted(byte, quote, state, escape + shift, _AFTER + shift)


def _step_literal(state: int, byte: int, dialect: _Dialect) -> tuple[int, int]:
    """Return the step within a literal and after it."""
    shift = _LIST_SHIFT if state >= _AFTER + _LIST_SHIFT else 0
    plain = state - shift
    if plain == _NUMBER and (_is_word_byte(byte) or byte == ord(".")):
        return state, 0
    if plain in (_SINGLE, _DOUBLE):
        return _step_string(state, plain, byte, shift, dialect)
    if plain in (_SINGLE_ESCAPE, _DOUBLE_ESCAPE):
        return state - 1, 0
    return _step_after_literal(byte, shift, dialect)


def next_state(state: int, byte: int, dialect: _Dialect = "mysql") -> tuple[int, int]:
    """Return the next state and the value to mix into the hash (0: none)."""
    if state == _E_PREFIX and byte == ord("'"):
        return _DOUBLE, _LITERAL
    if state in (_WORD_STATE, _E_PREFIX):
        return _step_word(byte, dialect)
    if state in (_NAME, _DOUBLE_NAME):
        end = b"`" if state == _NAME and dialect != "postgresql" else b'"'
        return (_OTHER if byte in end else state), byte
    if state == _SLASH:
        return (_COMMENT_START, 0) if byte == ord("*") else _step_after_mark(_SLASH_MARK, byte, dialect)
    if state == _DASH:
        return _step_dash(byte, dialect)
    if state == _DASHES:
        if byte <= ord(" "):
            return (_OTHER if byte == ord("\n") else _LINE), 0
        return _step_after_mark(_DASHES_MARK, byte, dialect)
    if state in (_COMMENT, _STAR, _LINE, _COMMENT_START, _COMMENT_M, _VERSION):
        return _step_comment(state, byte, dialect)
    if state in (_COMMA, _COMMA_SIGN):
        return _step_in_list(state, byte, dialect)
    if _CLOSED <= state <= _CLOSED_COMMA + 1:
        return _step_closed(state, byte, dialect)
    if _SAVEPOINT <= state <= _SAVEPOINT_DOUBLE:
        return _step_savepoint(state, byte, dialect)
    is_literal = 0 <= (state - _AFTER) % _LIST_SHIFT <= _DOUBLE_ESCAPE - _AFTER and _AFTER <= state < _DOUBLE_NAME
    return _step_literal(state, byte, dialect) if is_literal else _step_outside(byte, dialect)


def build_tables(family: Family) -> tuple[bytes, ...]:
    """Return the kernel program's tables by the bit ANSI_QUOTES of sql_mode. PostgreSQL has one."""
    return (_build_table(family),) if family == "postgresql" else (_build_table(family), _build_table("ansi"))


@cache
def _build_table(dialect: _Dialect) -> bytes:
    """Return 256 next states for each state, then as many values to mix in."""
    steps = [next_state(state, byte, dialect) for state in range(STATES) for byte in range(256)]
    return bytes(state for state, _ in steps) + bytes(mixed for _, mixed in steps)
