# SPDX-License-Identifier: Apache-2.0
"""Which texts are one statement, as the kernel program counts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.statements.text import STATES, build_table, hash_statement


def number(text: str) -> int:
    return hash_statement(text.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT c FROM t1 WHERE id=5", "SELECT  c FROM t1\nWHERE id=77 /* request 8 */"),
        ("SELECT 'it''s', 5", "SELECT 'a\\'b', 7 "),
        ("x IN (1,2,3) AND y=1", "x IN (1, 2) AND y=9"),
        ("INSERT INTO t VALUES (1,'a'),(2,'b')", "INSERT INTO t VALUES (1,'abc'),(-2,'b'),(3,'c')"),
        ("SELECT 1 -- why\nFROM t", "SELECT 2 -- because\nFROM t"),
        ("a = 0x1F", "a = 0xABCDEF"),
        ("a = 1.5e10", "a = 3"),
        ("a = ?", "a = 3"),
    ],
)
def test_values_comments_and_blanks_make_no_difference(one: str, other: str) -> None:
    assert number(one) == number(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT c FROM t1 WHERE id=5", "SELECT c FROM t2 WHERE id=5"),
        ("x IN (1)", "x IN (1,2)"),
        ("LIMIT 1", "LIMIT 1, 2"),
        ("ab", "a b"),
        ("SELECT `a` FROM t", "SELECT `b` FROM t"),
        ("SELECT a", "SELECT A"),
    ],
)
def test_what_is_another_statement_has_another_number(one: str, other: str) -> None:
    assert number(one) != number(other)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ('SELECT "a" FROM t', 'SELECT "b" FROM t', False),
        ("SELECT 'C:\\', 1 FROM t", "SELECT 'd', 2 FROM t", True),
        ("SELECT E'it\\'s' FROM t", "SELECT E'no' FROM t", True),
        ("SELECT e'a'", "SELECT f'a'", False),
        ("SELECT a # 5", "SELECT a # 6", True),
        ("SELECT a # 5, b", "SELECT a # 6, c", False),
        ("SELECT elements FROM e", "SELECT elements  FROM e", True),
        ("SELECT c FROM t WHERE id = $1", "SELECT c FROM t WHERE id = $2", False),
    ],
)
def test_quotes_and_operators_are_postgresqls_in_its_texts(one: str, other: str, is_same: bool) -> None:
    first, second = (hash_statement(text.encode(), "postgresql") for text in (one, other))
    assert (first == second) is is_same


def test_operators_are_told_apart_though_comments_begin_like_them() -> None:
    assert len({number(f"a{operator}b") for operator in ("-", "+", "/", "*", " ", "")}) == 6


def test_the_table_leads_to_states_that_exist_and_fits_the_program() -> None:
    for how in (build_table(), build_table("postgresql")):
        assert len(how) == 2 * STATES * 256
        assert max(how[: STATES * 256]) < STATES


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_quoted_value_never_matters(one: bytes, other: bytes) -> None:
    quoted = [
        b"SELECT c FROM t WHERE k='" + value.replace(b"\\", b"").replace(b"'", b"") + b"'" for value in (one, other)
    ]
    assert hash_statement(quoted[0]) == hash_statement(quoted[1])
