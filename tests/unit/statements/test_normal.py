# SPDX-License-Identifier: Apache-2.0
"""Texts as people see them: no value is left, and a client's text meets the server's digest of it."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from types import FrameType
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.statements.text import (
    LEFT_OUT,
    MOST_WORDS,
    Family,
    limit_texts,
    make_key,
    normalise,
    normalise_logged_event,
    normalise_replication_error,
)


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
    assert normalise(text) == shown


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
    assert normalise(text, "postgresql") == shown
    assert make_key(shown, "postgresql") == make_key(text, "postgresql")


def test_quoted_names_of_postgresql_keep_their_case() -> None:
    assert (
        make_key('SELECT A FROM "B"', "postgresql")
        == make_key('select a from "B"', "postgresql")
        != make_key('select a from "b"', "postgresql")
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
    assert make_key(text) == make_key(digest)


@given(st.text(max_size=300))
def test_any_text_has_a_normal_form_without_control_characters(text: str) -> None:
    assert not any(unicodedata.category(character) == "Cc" for character in normalise(text))


@given(
    st.text(alphabet=st.characters(blacklist_characters="'\\", blacklist_categories=("Cs",)), min_size=12, max_size=40)
)
def test_no_quoted_value_is_left(value: str) -> None:
    assert value not in normalise(f"SELECT c FROM t WHERE p = '{value}' AND q = 1")


_LONG = {
    "calls": "CALL x; " * 500,
    "additions": "a+" * 2000,
    "brackets": "(" * 4000,
    "quotes": '"a" ' * 1000,
    "blanks": "`" + " " * 4000 + "`",
    "rows": "INSERT INTO t VALUES " + ",".join("(1,2)" for _ in range(700)),
    "commands": "SHOW " * 800,
    "open comments": "/* " * 1300,
}


@pytest.mark.parametrize("family", get_args(Family))
@pytest.mark.parametrize("kind", _LONG)
def test_a_text_takes_time_with_its_length(kind: str, family: Family) -> None:
    """Steps of the interpreter, which no busy machine changes: four times the length is not eight times as many."""
    whole = _LONG[kind]
    short, long = (steps(lambda text=text: make_key(text, family)) for text in (whole[:1000], whole[:4000]))
    assert long < 8 * short
    assert long < 1_500_000


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python were executed."""
    count = 0

    def step(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        nonlocal count
        count += 1
        return step

    normalise("SELECT 1")
    normalise("SELECT 1", "postgresql")
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def test_the_texts_of_a_window_together_are_bounded_and_what_was_left_out_is_counted() -> None:
    with limit_texts(1000) as texts:
        shown = [normalise(f"SELECT c{number} FROM t WHERE id = {number}") for number in range(200)]
        again = [normalise(f"SELECT c{number} FROM t WHERE id = {number}") for number in range(200)]
    assert shown == again
    left_out = shown.count(LEFT_OUT)
    assert 0 < left_out < 200 and left_out == texts.left_out_count
    assert shown[0] == "SELECT c0 FROM t WHERE id = ?"
    assert texts.notes()[0].startswith(f"{left_out:,} texts were left out")
    assert not any("7" in text for text in shown if text != LEFT_OUT and "c7" not in text and "7 " not in text)


def test_three_thousand_hostile_texts_of_a_window_are_bounded() -> None:
    texts = [f"{'a+' * 2000}{number}" for number in range(2811)]
    with limit_texts() as budget:
        for text in texts:
            make_key(text)
    # 4,000 words each.
    assert budget.left_out_count == 2811 - MOST_WORDS // 4002


def test_a_window_of_usual_texts_is_read_whole() -> None:
    texts = [
        f"SELECT a, b, c FROM t{number} WHERE id = {number} AND name = 'x y z' ORDER BY d" for number in range(8000)
    ]
    with limit_texts() as budget:
        assert len({normalise(text) for text in texts}) == 8000
    assert budget.notes() == []


_HEAD = "Error 'Duplicate entry '5-secret' for key 'PRIMARY'' on query. Default database: 'app'. Query: "
_ROWS = (
    "Could not execute Write_rows_v1 event on table app.t; {}, Error_code: 1062; {}the event's {} log b.01, "
    "end_log_pos 7"
)


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (f"{_HEAD}'INSERT INTO t VALUES (5,'secret')'", "Error on query: INSERT INTO t VALUES (?, …)"),
        (f"{_HEAD}'INSERT INTO t VALUES (5,'sec'ret", "Error on query: INSERT INTO t VALUES (?, …"),
        (f"{_HEAD}'SET PASSWORD = 'secret''", "Error on query: SET PASSWORD = ?"),
        (
            f"{_HEAD}'INSERT INTO t VALUES (5,'secret')', Gtid 0-1-5, Internal MariaDB error code: 1062",
            "Error on query: INSERT INTO t VALUES (?, …)",
        ),
        (f"{_HEAD}'UPDATE t SET a='Query: 'secret', b=''", "Error"),
        (
            _ROWS.format("Duplicate entry 'secret' for key 'x'", "handler error HA_ERR_FOUND_DUPP_KEY; ", "master"),
            "Could not execute Write_rows_v1 event on table app.t; Error_code: 1062; handler error "
            "HA_ERR_FOUND_DUPP_KEY; the event's master log b.01, end_log_pos 7",
        ),
        (
            _ROWS.format("a trigger says secret", "", "source"),
            "Could not execute Write_rows_v1 event on table app.t; Error_code: 1062; the event's source log b.01, "
            "end_log_pos 7",
        ),
        (
            "Could not execute Write_rows event on table app.t; a trigger says secret, and it is cut",
            "Could not execute Write_rows event on table app.t",
        ),
        (
            "Column 1 of table 'a.t' cannot be converted from type 'int' to type 'char(5)'",
            "Column 1 of table 'a.t' cannot be converted from type 'int' to type 'char(5)'",
        ),
        (
            "Worker 1 failed executing transaction 'ANONYMOUS' at source log b.1, end_log_pos 733; Error 'secret' "
            "on query. Default database: 'a'. Query: 'insert into t values('secret')', Error_code: MY-001062",
            "Worker 1 failed executing transaction on query: insert into t values(?)",
        ),
        ("secret is all of it", "(an error in other words than the known ones: not kept)"),
    ],
)
def test_an_error_of_replication_keeps_its_words_and_no_values(message: str, kept: str) -> None:
    assert normalise_replication_error(message) == kept


@pytest.mark.parametrize(
    ("kind", "info", "kept"),
    [
        ("Query", "use `a`; INSERT INTO t VALUES ('secret') /* secret */", "use `a`; INSERT INTO t VALUES (?)"),
        ("Gtid", "BEGIN GTID 0-99-9 /* secret */", "GTID 0-99-9"),
        ("Gtid", "SET @@SESSION.GTID_NEXT= 'secret'", ""),
        ("Annotate_rows", "INSERT INTO t VALUES ('secret')", ""),
        ("Rows_query", "# INSERT INTO t VALUES ('secret')", ""),
        ("User var", "@`a`=_utf8mb4 'secret' COLLATE utf8mb4_bin", ""),
        ("Execute_load_query", "use `a`; LOAD DATA INFILE 'secret'", ""),
    ],
)
def test_an_event_of_the_binary_log_keeps_no_values(kind: str, info: str, kept: str) -> None:
    assert normalise_logged_event(kind, info) == kept
