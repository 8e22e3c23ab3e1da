# SPDX-License-Identifier: Apache-2.0
"""Texts as people see them: no value is left, and a client's text meets the server's digest of it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.statements.normal import key, normal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT c FROM sbtest1 WHERE id=5", "SELECT c FROM sbtest1 WHERE id = ?"),
        (
            "select count(*) from t where n='it''s' and x in (1,2,-3)",
            "select count(*) from t where n = ? and x in (?, …)",
        ),
        ("INSERT INTO t VALUES (1,'a'),(2,'b'),(-3,'c')", "INSERT INTO t VALUES (?, …)"),
        ("SELECT BENCHMARK(1000000,SHA2('x',256))", "SELECT BENCHMARK(?, SHA2(?, …))"),
        ("CALL p(1, 'x')", "CALL p(?, …)"),
        ("UPDATE t SET k=k+1, a=-2 WHERE id=3", "UPDATE t SET k = k + ?, a = ? WHERE id = ?"),
        ("SELECT a - 1 FROM db.t LIMIT 10, 20", "SELECT a - ? FROM db.t LIMIT ?, …"),
        ("SELECT x FROM t WHERE a = 0x1F AND b = x'AA' /* id=7 */", "SELECT x FROM t WHERE a = ? AND b = ?"),
        ("BEGIN", "BEGIN"),
        ("SELECT 'cut off in the mid", "SELECT ?"),
        ("SELECT c FROM `cut off in the", "SELECT c FROM `cut off in the`"),
    ],
)
def test_values_are_left_out(text: str, shown: str) -> None:
    assert normal(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT * FROM \"Users\" WHERE id = $1 AND x = 'a\\'", 'SELECT * FROM "Users" WHERE id = ? AND x = ?'),
        ("SELECT a::int FROM t WHERE k = ANY($1::int[])", "SELECT a::int FROM t WHERE k = ANY(?::int[])"),
        ("INSERT INTO t VALUES ($1,$2),($3,$4)", "INSERT INTO t VALUES (?, …)"),
        ("DO $$begin raise notice 'secret'; end$$", "DO ?"),
        ("CREATE FUNCTION f() RETURNS int AS $b$ SELECT 'secret", "CREATE FUNCTION f() RETURNS int AS ?"),
        ("SELECT E'it\\'s', U&'d\\0061', B'101'", "SELECT ?, …"),
    ],
)
def test_values_are_left_out_of_postgresqls_texts(text: str, shown: str) -> None:
    assert normal(text, "postgresql") == shown
    assert key(shown, "postgresql") == key(text, "postgresql")


def test_quoted_names_of_postgresql_keep_their_case() -> None:
    assert (
        key('SELECT A FROM "B"', "postgresql")
        == key('select a from "B"', "postgresql")
        != key('select a from "b"', "postgresql")
    )


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("SELECT c FROM sbtest1 WHERE id=5", "SELECT `c` FROM `sbtest1` WHERE `id` = ?"),
        ("SELECT COUNT(*) FROM s.t WHERE n='x'", "SELECT COUNT ( * ) FROM `s` . `t` WHERE `n` = ?"),
        ("SELECT 1 FROM t WHERE a IN (1,2)", "SELECT ? FROM `t` WHERE `a` IN (...)"),
        ("INSERT INTO t VALUES (1,2),(3,4)", "INSERT INTO `t` VALUES (...) /* , ... */"),
    ],
)
def test_a_text_has_the_key_of_the_servers_digest(text: str, digest: str) -> None:
    assert key(text) == key(digest)


@given(st.text(max_size=300))
def test_any_text_has_a_normal_form_without_control_characters(text: str) -> None:
    assert not any(unicodedata.category(character) == "Cc" for character in normal(text))


@given(
    st.text(alphabet=st.characters(blacklist_characters="'\\", blacklist_categories=("Cs",)), min_size=12, max_size=40)
)
def test_no_quoted_value_is_left(value: str) -> None:
    assert value not in normal(f"SELECT c FROM t WHERE p = '{value}' AND q = 1")
