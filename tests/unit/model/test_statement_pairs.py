# SPDX-License-Identifier: Apache-2.0
"""Normal forms and identities of pairs of texts. `tests/system` compares the lists with real servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.model.identities import Family
from powerprof.model.statements import make_key, normalise
from tests.programs.statement_pairs import (
    MYSQL,
    MYSQL_ANSI,
    MYSQL_COARSER,
    POSTGRESQL,
    POSTGRESQL_COARSER,
    POSTGRESQL_FINER,
    hash_statement,
)


def key(text: str, family: Family, ansi_quotes: bool) -> str:
    return make_key(normalise(text, family, ansi_quotes=ansi_quotes), family)


PAIRS: list[tuple[Family, bool, str, str, bool]] = [
    *(("mysql", False, *pair) for pair in MYSQL),
    *(("mysql", True, *pair) for pair in MYSQL_ANSI),
    *(("mysql", False, one, other, True) for one, other, _ in MYSQL_COARSER),
    *(("postgresql", False, *pair) for pair in POSTGRESQL),
    *(("postgresql", False, one, other, True) for one, other, _ in POSTGRESQL_COARSER),
    *(("postgresql", False, one, other, False) for one, other, _ in POSTGRESQL_FINER),
]


@pytest.mark.parametrize(("family", "ansi", "one", "other", "same"), PAIRS)
def test_one_statement_has_one_normal_form_and_two_have_two_identities(
    family: Family, ansi: bool, one: str, other: str, same: bool
) -> None:
    assert (key(one, family, ansi) == key(other, family, ansi)) is same
    if not same:
        first, second = (hash_statement(text.encode(), family, ansi_quotes=ansi) for text in (one, other))
        assert first != second


@pytest.mark.parametrize(("family", "ansi", "text"), sorted({(family, ansi, one) for family, ansi, one, _, _ in PAIRS}))
def test_a_normal_form_is_that_of_itself(family: Family, ansi: bool, text: str) -> None:
    assert make_key(key(text, family, ansi), family) == key(text, family, ansi)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("INSERT INTO t VALUES (NULL, 'x', NULL)", "INSERT INTO t VALUES (?, …)"),
        ("SELECT COUNT(*) FROM t WHERE a IN (7, NULL) AND b IS NULL", None),
        ("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p (a) ON DELETE SET NULL", ""),
        ("CREATE TABLE t (a INT NULL, b VARCHAR(5) NULL, c INT NOT NULL DEFAULT NULL)", None),
        ("SAVEPOINT s140052563_x0", "SAVEPOINT ?"),
        ("RELEASE SAVEPOINT `s 1`", "RELEASE SAVEPOINT ?"),
        ("ROLLBACK TO SAVEPOINT s1", "ROLLBACK TO SAVEPOINT ?"),
        ("ROLLBACK WORK TO s1", "ROLLBACK WORK TO ?"),
        ("BEGIN; SAVEPOINT s1; SELECT 1", "BEGIN; SAVEPOINT ?; SELECT ?"),
        ("SELECT savepoint FROM t", ""),
        ("ROLLBACK", ""),
        ("SELECT .5, a+.5, t.5a FROM t", "SELECT ?, a + ?, t.5a FROM t"),
        ("SELECT a FROM t WHERE a IN (5)", "SELECT a FROM t WHERE a IN (?, …)"),
        ("SELECT a FROM t WHERE a IN (SELECT 5)", "SELECT a FROM t WHERE a IN (SELECT ?)"),
        ("SELECT f(1), f(2), f(3), g FROM t", "SELECT f(?), …, g FROM t"),
        ("INSERT INTO t VALUES (1, NOW()), (2, NOW()), (3, NOW())", "INSERT INTO t VALUES (?, NOW())"),
        ("INSERT INTO t VALUES (NOW()), (NOW())", "INSERT INTO t VALUES (NOW())"),
        ("SELECT NOW(), NOW() FROM t", ""),
        ("SELECT a.f(1), f(2)", "SELECT a.f(?), f(?)"),
        ("SELECT f(a, 1), f(b, 1)", "SELECT f(a, ?), f(b, ?)"),
        ("EXECUTE IMMEDIATE 'SELECT 1'", "EXECUTE IMMEDIATE ?"),
        ("SELECT /*! STRAIGHT_JOIN */ a FROM t", "SELECT STRAIGHT_JOIN a FROM t"),
        ("SELECT a /*!999999 secret */ FROM t", "SELECT a FROM t"),
        ("SET @a := 5, @b = NULL", "SET @? := ?, @? = ?"),
        ("SELECT @@session.sql_mode", ""),
    ],
)
def test_values_are_those_of_the_digest(text: str, shown: str | None) -> None:
    expected = {
        None: text.replace("7, NULL", "?, …").replace("5)", "?)").replace("DEFAULT NULL", "DEFAULT ?"),
        "": text,
    }
    assert normalise(text) == expected.get(shown, shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('SELECT "a", "x""y" FROM "t" WHERE b = \'it"s\'', 'SELECT `a`, `x"y` FROM `t` WHERE b = ?'),
        ('SELECT "a`b" FROM t', "SELECT `a``b` FROM t"),
        # The mode may change before the string.
        ("SET sql_mode = ''; SELECT \"secret\"", "SET sql_mode = ?; SELECT ?"),
    ],
)
def test_names_in_double_quotes_are_names_with_ansi_quotes_alone(text: str, shown: str) -> None:
    assert normalise(text, ansi_quotes=True) == shown
    assert '"' not in normalise(text) and "secret" not in normalise(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT \"a\", '\\', 'secret'",
        "SELECT 'it\\'s', 'secret' FROM \"t\"",
        "SELECT \"it's\", 'secret' FROM t",
        'SELECT \'secret"\', "a"',
        "SELECT \"a\" -- 'secret\n, 'secret'",
        "SELECT /*! \"a\", 'secret' */ 0x736563726574",
    ],
)
def test_no_string_is_kept_with_ansi_quotes(text: str) -> None:
    kept = normalise(text, ansi_quotes=True, is_whole=False)
    assert "secret" not in kept and "736563726574" not in kept


_ITEM = st.sampled_from(("1", "-2", "NULL", "'x'", ".5", "0x1F", "X'00'"))


@given(st.lists(_ITEM, min_size=2, max_size=6), st.lists(_ITEM, min_size=2, max_size=6))
def test_lists_of_values_of_any_length_are_one_statement(one: list[str], other: list[str]) -> None:
    forms = {
        key(text.format(", ".join(items)), "mysql", False)
        for items in (one, other)
        for text in ("SELECT a FROM t WHERE a IN ({}) AND b IS NULL",)
    }
    assert forms == {"select a from t where a in(?,…)and b is null"}


@given(st.sampled_from(("CAST({} AS SIGNED)", "NOW() + {}", "f(a, {})", "{} * 2")), st.integers(1, 9))
def test_lists_of_expressions_of_any_length_are_one_statement(item: str, count: int) -> None:
    items = [item.format(number) for number in range(count)]
    lists = {key(f"SELECT a FROM t WHERE a IN ({', '.join(each)})", "mysql", False) for each in (items, items[:1])}
    rows = {
        key(f"INSERT INTO t VALUES {', '.join(f'(DEFAULT, {one})' for one in each)}", "mysql", False)
        for each in (items, items[:1])
    }
    assert len(lists) == len(rows) == 1


@given(st.text(alphabet="abc_x1 (),-'\"`+.", max_size=40), st.text(alphabet="abc_x1 (),-'\"`+.", max_size=40))
def test_an_identity_is_never_coarser_than_the_normal_form_but_for_the_length_of_lists(one: str, other: str) -> None:
    """Two texts with one identity are kept as one text. Unfinished quotes are no statement."""
    first, second = (hash_statement(f"SELECT {text} FROM t".encode()) for text in (one, other))
    if first == second and not any(mark in one + other for mark in "'\"`"):
        strip = str.maketrans("", "", " ()")
        assert key(f"SELECT {one} FROM t", "mysql", False).translate(strip).replace("?,…", "?") == key(
            f"SELECT {other} FROM t", "mysql", False
        ).translate(strip).replace("?,…", "?")
