# SPDX-License-Identifier: Apache-2.0
"""Identities, strings in all readings, and normal forms of statements. Real servers judge the pairs in tests/system."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from types import FrameType
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database.server_report import ServerReport
from powerprof.model.identities import STATES, Family, build_tables
from powerprof.model.statement_strings import replace_strings
from powerprof.model.statements import (
    LEFT_OUT,
    MOST_WORDS,
    limit_texts,
    make_key,
    normalise,
    normalise_logged_event,
    normalise_replication_error,
)
from powerprof.queries.join import join_trace
from powerprof.tracing.captures import RecordedText, StatementUse
from tests.programs.statement_pairs import (
    MYSQL,
    MYSQL_ANSI,
    MYSQL_COARSER,
    POSTGRESQL,
    POSTGRESQL_COARSER,
    POSTGRESQL_FINER,
    hash_statement,
)
from tests.unit.queries.sample import trace


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
    for how in (*build_tables("mysql"), *build_tables("postgresql")):
        assert len(how) == 2 * STATES * 256
        assert max(how[: STATES * 256]) < STATES


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_quoted_value_never_matters(one: bytes, other: bytes) -> None:
    quoted = [
        b"SELECT c FROM t WHERE k='" + value.replace(b"\\", b"").replace(b"'", b"") + b"'" for value in (one, other)
    ]
    assert hash_statement(quoted[0]) == hash_statement(quoted[1])


HOSTILE: list[tuple[Family, bytes]] = [
    # SJIS: the second byte of the character is a backslash, or a backtick.
    ("mysql", b"SELECT '\x95\x5c', 'secret'"),
    ("mysql", b"SELECT '\x83\x60', 'secret', '\x83\x60'"),
    ("mysql", b"SELECT '\x95\x5c', 'secret', '\x95\x5c'"),
    # NO_BACKSLASH_ESCAPES
    ("mysql", b"SELECT '\\', 'secret'"),
    ("mysql", b"SELECT '\\', 'secret', '\\', \"secret\""),
    ("mysql", b"SELECT 'it\\'s', 'secret'"),
    ("mysql", b"SELECT 'it\\'s secret"),
    # What a tokenizer takes for a comment, and the server does not; and the other way round.
    ("mysql", b"SELECT a--'x\n', 'secret'"),
    ("mysql", b"SELECT /*! '*/', 'secret' */"),
    ("mysql", b"SELECT /* /* */ 'a', 'secret' /* ' */"),
    ("mysql", b"SELECT 1 # ' \n, 'secret'"),
    ("mysql", b"SELECT 0x736563726574, x'736563726574'"),
    ("postgresql", b"SELECT E'it\\'s secret', 'secret'"),
    ("postgresql", b"SELECT E'\\\\', 'secret'"),
    ("postgresql", b"SELECT '\\', 'secret'"),
    ("postgresql", b"SELECT 'it\\'s secret'"),
    ("postgresql", b"SELECT $a$ $b$ ' secret $a$, 'secret'"),
    ("postgresql", b"SELECT /* /* */ ' */ 'secret'"),
    ("postgresql", b"SELECT $q$ secret"),
]


@pytest.mark.parametrize(("family", "text"), HOSTILE)
def test_no_value_is_kept(family: Family, text: bytes) -> None:
    taken = trace(
        uses=[StatementUse(300, 11, 10, 10_000, 1, 0, 0)], texts=[RecordedText(300, 3, len(text), text)], latencies={}
    )
    if family == "postgresql":
        kept = normalise(text.decode("utf-8", "surrogateescape"), family)
    else:
        (kept,) = (one.text for one in join_trace(taken, ServerReport()).statements)
    assert "secret" not in kept
    assert "736563726574" not in kept
    assert kept.startswith(("SELECT", "(statement 000000000000012c", "(not kept"))


CUT: list[tuple[Family, str]] = [
    ("mysql", "SELECT 'a\\', 'secret', 'cut"),
    ("mysql", "SELECT '\\', 'secret', \"cut"),
    ("mysql", "SELECT \"\\\", 'secret', 'secret', \"cut"),
    ("mysql", "SELECT /*! 'x' /* 'secret"),
    ("mysql", "SELECT 1 -- secret"),
    ("mysql", "CREATE USER u IDENTIFIED BY 'secret"),
    ("mysql", "SELECT 'sec'secret'"),
    ("postgresql", "SELECT 'a\\', 'secret', E'cut"),
    ("postgresql", "SELECT '\\', 'secret', 'cut"),
    ("postgresql", "COPY t TO PROGRAM 'secret"),
    ("postgresql", "CREATE SUBSCRIPTION s CONNECTION 'password=secret"),
]


@pytest.mark.parametrize(("family", "text"), CUT)
def test_a_text_that_is_cut_keeps_no_value_in_any_way_of_reading_it(family: Family, text: str) -> None:
    assert "secret" not in normalise(text, family, is_whole=False)


CLEAR: list[tuple[Family, str, str]] = [
    (
        "mysql",
        "SELECT a FROM t WHERE b = 'it\\'s' AND c = \"x\" -- end\n AND d = 1",
        "SELECT a FROM t WHERE b = ? AND c = ? AND d = ?",
    ),
    ("mysql", "SELECT a FROM t WHERE b = 'caf\u00e9' AND c = '\\\\'", "SELECT a FROM t WHERE b = ? AND c = ?"),
    ("mysql", "SELECT `a'b`, 'c' FROM t /* 'x */", "SELECT `a'b`, ? FROM t"),
    ("mysql", "SELECT a FROM t WHERE b = 'caf\udce9' AND d = 1", "SELECT a FROM t WHERE b = ? AND d = ?"),
    ("postgresql", "SELECT \"a'b\", 'c' FROM t WHERE x = E'\\''", 'SELECT "a\'b", ? FROM t WHERE x = ?'),
    ("postgresql", "SELECT $$it's$$ FROM t", "SELECT ? FROM t"),
]


@pytest.mark.parametrize(("family", "text", "kept"), CLEAR)
def test_a_text_that_is_clear_is_kept(family: Family, text: str, kept: str) -> None:
    assert normalise(text, family) == kept


def test_it_is_linear() -> None:
    """4,096 bytes of what makes a scanner go back; without a limit on steps each would take minutes."""
    for part in ("'\\", "/*", "`'", "$a$", "''", "/*!", "\udc95\\"):
        for family in ("mysql", "postgresql"):
            assert len(replace_strings(part * (4096 // len(part)), family)) <= 3 * 4096  # type: ignore[arg-type]


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
    "negative numbers": "-1," * 1300,
    "nested lists": "a IN (1, (" * 400,
    "equal expressions": "f(a, 1)," * 500,
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
    before = sys.gettrace()
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)  # of coverage
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
    with limit_texts(MOST_WORDS // 10) as budget:
        for text in texts:
            make_key(text)
    # 4,000 words each.
    assert budget.left_out_count == 2811 - MOST_WORDS // 10 // 4002


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


@pytest.mark.parametrize(("words", "is_read"), [(11, True), (10, False)])
def test_the_budget_is_spent_by_words_or_by_length(words: int, is_read: bool) -> None:
    for text in ("SELECT a, b, c FROM t AS u", "a" * 175):  # ten words and marks; ten blocks of 16 bytes
        with limit_texts(words) as budget:
            assert (normalise(text) != LEFT_OUT) is is_read
            assert (normalise(text) != LEFT_OUT) is is_read
        assert budget.left_out_count == (not is_read)
    with limit_texts(0) as budget:
        assert {normalise(text) for text in ("SELECT a", "SELECT b", "SELECT a")} == {LEFT_OUT}
    assert budget.left_out_count == 2


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
        ("SELECT 'cut off in the mid", "SELECT ?"),
        ("SELECT c FROM `cut off in the", "SELECT c FROM `cut off in the`"),
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
