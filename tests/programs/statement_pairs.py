# SPDX-License-Identifier: Apache-2.0
"""Pairs of texts with the truth of performance_schema's digest or of PostgreSQL's query id: one statement or two."""

from __future__ import annotations

from powerprof.model.identities import ANSI_BIT, STATES, Family, build_tables

# (one text, another text, whether MySQL's and MariaDB's digest is one).
MYSQL: list[tuple[str, str, bool]] = [
    # NULL among values
    ("INSERT INTO four VALUES (NULL, NULL, '', NULL)", "INSERT INTO four VALUES (64, 'x41', '', 6)", True),
    (
        "SELECT COUNT(*) FROM t WHERE a IN (7, NULL, 0) AND b IS NULL",
        "SELECT COUNT(*) FROM t WHERE a IN (1, 2) AND b IS NULL",
        True,
    ),
    ("SELECT COUNT(*) FROM t WHERE b IS NULL", "SELECT COUNT(*) FROM t WHERE b IS NOT NULL", False),
    ("UPDATE t SET a = NULL, b = 5", "UPDATE t SET a = 5, b = NULL", True),
    ("SELECT a FROM t WHERE a <=> NULL", "SELECT a FROM t WHERE a <=> 4", True),
    ("SELECT COALESCE(NULL, a)", "SELECT COALESCE(1, a)", True),
    ("SELECT CASE WHEN a = 1 THEN NULL ELSE 2 END FROM t", "SELECT CASE WHEN a = 1 THEN 5 ELSE NULL END FROM t", True),
    ("SELECT NULL", "SELECT 1", True),
    ("SELECT a FROM t WHERE b = 1 OR NULL", "SELECT a FROM t WHERE b = 1 OR 1", True),
    ("SELECT IFNULL(a, NULL) FROM t", "SELECT IFNULL(a, 'x') FROM t", True),
    ("SELECT a FROM t WHERE a BETWEEN NULL AND 5", "SELECT a FROM t WHERE a BETWEEN 1 AND NULL", True),
    ("CREATE TABLE n1 (a DATE NULL)", "CREATE TABLE n1 (a DATE NOT NULL)", False),
    # numbers
    ("SELECT .5", "SELECT 0.5", True),
    ("SELECT a FROM t WHERE a > .5 AND b < 1", "SELECT a FROM t WHERE a > 7 AND b < .25", True),
    ("SELECT a+.5 FROM t", "SELECT a+1 FROM t", True),
    ("SELECT 5.", "SELECT 5", True),
    ("SELECT 1.5e-10", "SELECT 2", True),
    ("SELECT 1e5, 2", "SELECT 1, 2, 3", True),
    ("SELECT -1", "SELECT 1", True),
    ("SELECT - 1", "SELECT 1", True),
    ("SELECT +-1", "SELECT 1", True),
    ("SELECT a FROM t WHERE a = -1", "SELECT a FROM t WHERE a = 1", True),
    ("SELECT a FROM t WHERE a IN (-1, -2)", "SELECT a FROM t WHERE a IN (1, 2, 3)", True),
    ("SELECT a - 1 FROM t", "SELECT a + 1 FROM t", False),
    ("SELECT a -1 FROM t", "SELECT a - 2 FROM t", True),
    ("SELECT a FROM t WHERE a BETWEEN -5 AND -1", "SELECT a FROM t WHERE a BETWEEN 1 AND 2", True),
    ("SELECT 5--1", "SELECT 5--2", True),
    ("SELECT 5--1 FROM t", "SELECT 5--1 FROM s", False),
    # hexadecimal, bits, strings
    ("SELECT 0x1F", "SELECT 31", True),
    ("SELECT X'1F'", "SELECT x'2F'", True),
    ("SELECT X'1F'", "SELECT 31", True),
    ("SELECT b'101'", "SELECT 0b11", True),
    ("SELECT N'abc'", "SELECT 'abc'", True),
    ("SELECT 'it''s'", "SELECT 'it\\'s'", True),
    ('SELECT "a"', "SELECT 'a'", True),
    ("SELECT _utf8mb4 'abc'", "SELECT _latin1 'x'", True),
    ("SELECT _utf8mb4 'abc'", "SELECT 'abc'", False),
    ("SELECT _utf8mb4'abc'", "SELECT _utf8mb4 X'61'", True),
    ("SELECT 'a' COLLATE utf8mb4_bin", "SELECT 'b' COLLATE utf8mb4_bin", True),
    ("SELECT DATE '2020-01-01'", "SELECT DATE '2021-01-01'", True),
    ("SELECT DATE '2020-01-01'", "SELECT TIMESTAMP '2021-01-01 00:00:00'", False),
    ("SELECT TRUE", "SELECT FALSE", False),
    ("SELECT TRUE", "SELECT 1", False),
    # lists and rows
    ("SELECT a FROM t WHERE a IN (1)", "SELECT a FROM t WHERE a IN (1, 2)", True),
    ("SELECT a FROM t WHERE a IN (1)", "SELECT a FROM t WHERE a NOT IN (1)", False),
    ("INSERT INTO t (a) VALUES (1), (2)", "INSERT INTO t (a) VALUES (1), (2), (3)", True),
    (
        "INSERT INTO t (a, b) VALUES (1, 'x'), (2, 'y')",
        "INSERT INTO t (a, b) VALUES (1, 'x'), (NULL, 'y'), (3, NULL)",
        True,
    ),
    ("INSERT INTO t (a) VALUES (1)", "INSERT INTO t (a, b) VALUES (1, 2)", False),
    ("SELECT 1", "SELECT 1, 2", False),
    ("SELECT 1, 2", "SELECT 1, 2, 3", True),
    ("SELECT LEAST(1, 2, 3)", "SELECT LEAST(1, 2)", True),
    (
        "SELECT a FROM t WHERE (a, b) IN ((1, 2), (3, 4))",
        "SELECT a FROM t WHERE (a, b) IN ((1, 2), (3, 4), (5, 6))",
        True,
    ),
    ("SELECT a FROM t LIMIT 5", "SELECT a FROM t LIMIT 10", True),
    ("SELECT a FROM t LIMIT 5", "SELECT a FROM t LIMIT 5, 10", False),
    ("SELECT a FROM t LIMIT 5, 10", "SELECT a FROM t LIMIT 10 OFFSET 5", False),
    ("SELECT a FROM t ORDER BY 1", "SELECT a FROM t ORDER BY 2", True),
    ("SELECT a FROM t GROUP BY 1, 2", "SELECT a FROM t GROUP BY 1, 2, 3", True),
    # parentheses and operators
    ("SELECT a FROM t WHERE (a = 1 OR b = 2) AND a = 3", "SELECT a FROM t WHERE (a = 1 OR b = 2 AND a = 3)", False),
    ("SELECT GREATEST(1, -a) FROM t", "SELECT GREATEST(1, a) FROM t", False),
    ("SELECT a FROM t WHERE a = 1 AND b = 2", "SELECT a FROM t WHERE a = 1 OR b = 2", False),
    ("SELECT a FROM t WHERE a < 1", "SELECT a FROM t WHERE a <= 1", False),
    ("SELECT NOT 1", "SELECT ! 1", False),
    ("SELECT 10 DIV 3", "SELECT 7 DIV 2", True),
    ("SELECT 10 DIV 3", "SELECT 7 MOD 2", False),
    # names, comments, hints
    ("SELECT `a` FROM `t`", "SELECT a FROM t", True),
    ("SELECT a FROM t", "SELECT b FROM t", False),
    ("SELECT a  FROM\n t", "SELECT a FROM t", True),
    ("SELECT COUNT(*) FROM t", "SELECT COUNT( * ) FROM t", True),
    ("SELECT a /* note 5 */ FROM t -- end", "SELECT a FROM t # other", True),
    ("SELECT /*! STRAIGHT_JOIN */ a FROM t", "SELECT STRAIGHT_JOIN a FROM t", True),
    ("SELECT /*!40001 SQL_NO_CACHE */ a FROM t", "SELECT a FROM t", False),
    ("/*!40101 SET @a = 1 */", "/*!40101 SET max_join_size = 1 */", False),
    ("/*!40101 SET @a = 1 */", "/*!40101 SET @a = 2 */", True),
    ("SET @a = NULL", "SET @a = 5", True),
    ("SET @a = 5", "SET @b = 5", True),
    ("SELECT @a, @b", "SELECT @c, @d", True),
    # statements by name
    ("EXECUTE IMMEDIATE 'SELECT 1'", "EXECUTE IMMEDIATE 'SELECT 2, 3'", True),
    ("PREPARE p1 FROM 'SELECT 1'", "PREPARE p1 FROM 'SELECT 2'", True),
    ("SELECT a FROM t WHERE b LIKE 'x%' ESCAPE '|'", "SELECT a FROM t WHERE b LIKE 'y' ESCAPE '!'", True),
    ("SELECT a FROM t WHERE b = 'x' UNION SELECT 2", "SELECT a FROM t WHERE b = 'y' UNION SELECT 3", True),
    ("SELECT SLEEP(0)", "SELECT SLEEP(0.001)", True),
    ("SELECT JSON_EXTRACT('{}', '$.a')", "SELECT JSON_EXTRACT('{\"b\": 1}', '$.b')", True),
    ("SELECT INTERVAL 1 DAY + '2020-01-01'", "SELECT INTERVAL 2 DAY + '2020-01-02'", True),
    ("SELECT INTERVAL 1 DAY + '2020-01-01'", "SELECT INTERVAL 1 HOUR + '2020-01-01'", False),
]

# Normal forms are coarser than the digest on purpose: each pair is one row here and two digests there.
MYSQL_COARSER: list[tuple[str, str, str]] = [
    ("SAVEPOINT s140052563_x0", "SAVEPOINT s140386388_x1", "names of savepoints"),
    ("RELEASE SAVEPOINT s1", "RELEASE SAVEPOINT `s2`", "names of savepoints"),
    ("ROLLBACK TO SAVEPOINT s1", "ROLLBACK TO SAVEPOINT s2", "names of savepoints"),
    ("ROLLBACK WORK TO s1", "ROLLBACK WORK TO s2", "names of savepoints"),
    ("INSERT INTO t (a) VALUES (1)", "INSERT INTO t (a) VALUES (1), (2)", "one row and several"),
    (
        "INSERT INTO t (a, b) VALUES (1, NOW()), (2, NOW())",
        "INSERT INTO t (a, b) VALUES (1, NOW()), (2, NOW()), (3, NOW())",
        "lists of expressions",
    ),
    (
        "SELECT a FROM t WHERE a IN (CAST(1 AS SIGNED), CAST(2 AS SIGNED))",
        "SELECT a FROM t WHERE a IN (CAST(1 AS SIGNED))",
        "lists of expressions",
    ),
    (
        "SELECT a FROM t WHERE a IN (1+1, 2+2)",
        "SELECT a FROM t WHERE a IN (1+1, 2+2, 3+3, 4+4)",
        "lists of expressions",
    ),
    (
        "SELECT CONCAT(_utf8mb4 'a', _utf8mb4 'b')",
        "SELECT CONCAT(_utf8mb4 'a', _utf8mb4 'b', _utf8mb4 'c')",
        "lists of expressions",
    ),
    (
        "SELECT CAST('1' AS SIGNED), CAST('2' AS SIGNED) FROM t",
        "SELECT CAST('1' AS SIGNED), CAST('2' AS SIGNED), CAST('3' AS SIGNED) FROM t",
        "lists of expressions",
    ),
    ("SELECT A FROM t", "SELECT a FROM t", "upper and lower case of names"),
    ("SELECT 'a' 'b'", "SELECT 'a'", "strings side by side"),
]

# With sql_mode=ANSI_QUOTES.
MYSQL_ANSI: list[tuple[str, str, bool]] = [
    ('SELECT * FROM "Attributes" WHERE "InventoryId"=0', 'SELECT * FROM "Inventory" WHERE "TenantId"=1', False),
    (
        'SELECT * FROM "Users" WHERE "UserId"=2 AND "IsDeleted"=0',
        'SELECT * FROM "Users" WHERE "UserId"=6 AND "IsDeleted"=1',
        True,
    ),
    ('SELECT "a" FROM "t"', "SELECT `a` FROM t", True),
    ('SELECT "a", "b" FROM "t"', 'SELECT "a" FROM "t"', False),
    ('SELECT "a" FROM "t" WHERE "b" = \'x\'', 'SELECT "a" FROM "t" WHERE "b" = \'it\'\'s\'', True),
    ('SELECT "a" AS "x y" FROM "t"', 'SELECT "a" AS "x z" FROM "t"', False),
    ('INSERT INTO "t" ("a", "b") VALUES (1, \'a"b\')', 'INSERT INTO "t" ("a", "b") VALUES (NULL, \'c\')', True),
    ('SELECT "t"."a" FROM "t"', "SELECT t.a FROM t", True),
    ('SELECT /* "x" */ "a" FROM "t"', 'SELECT "a" FROM "t" -- "y"', True),
]

# (one text, another text, whether PostgreSQL 15's query id is one).
POSTGRESQL: list[tuple[str, str, bool]] = [
    ("SELECT a FROM t WHERE a = 1", "SELECT a FROM t WHERE a = 2", True),
    ("SELECT a FROM t WHERE a = NULL", "SELECT a FROM t WHERE a = 2", True),
    ("SELECT a FROM t WHERE a IS NULL", "SELECT a FROM t WHERE a IS NOT NULL", False),
    ("INSERT INTO t VALUES (NULL, 'x')", "INSERT INTO t VALUES (1, NULL)", True),
    ("SELECT .5", "SELECT 0.25", True),
    ("SELECT 1.5e-3", "SELECT 2.5", True),
    ("SELECT -1", "SELECT 1", True),
    ("SELECT a - 1 FROM t", "SELECT a - 5 FROM t", True),
    ("SELECT $a$x$a$::text", "SELECT 'y'::text", True),
    ("SELECT E'it\\'s'::text", "SELECT 'x'::text", True),
    ("SELECT U&'d\\0061'::text", "SELECT 'x'::text", True),
    ("SELECT B'101'", "SELECT B'1'", True),
    ("SELECT X'1F'", "SELECT B'1'", True),
    ("SELECT '5'::int", "SELECT '6'::int", True),
    ("SELECT a FROM t LIMIT 5", "SELECT a FROM t LIMIT 10", True),
    ("SELECT a FROM t /* x /* y */ z */", "SELECT a FROM t -- w", True),
    ('SELECT "a" FROM "t" WHERE a = 1', 'SELECT "a" FROM "t" WHERE a = 2', True),
    ("SELECT a FROM t", "SELECT b FROM t", False),
    ("SELECT 'a'\n'b'", "SELECT 'c'", True),
    ("SELECT a FROM t WHERE b IN ('x', 'y')", "SELECT a FROM t WHERE b IN ('z', 'w')", True),
    ("SELECT a FROM t WHERE (a = 1 OR b = 'x') AND a = 3", "SELECT a FROM t WHERE a = 1 OR (b = 'x' AND a = 3)", False),
    ("SELECT interval '1 day'", "SELECT interval '2 days'", True),
    (
        "SELECT CASE WHEN a = 1 THEN NULL ELSE 'x' END FROM t",
        "SELECT CASE WHEN a = 2 THEN 'y' ELSE NULL END FROM t",
        True,
    ),
    ("SELECT a FROM t ORDER BY 1", "SELECT a FROM t ORDER BY 1 DESC", False),
    ("SELECT ARRAY[1, 2]", "SELECT ARRAY[3, 4]", True),
    ("SELECT a FROM t WHERE a = ANY('{1,2}'::int[])", "SELECT a FROM t WHERE a = ANY('{3}'::int[])", True),
    ("SELECT '{}'::jsonb ? 'k'", "SELECT '{}'::jsonb ? 'j'", True),
    ("SELECT '{}'::jsonb ? 'k'", "SELECT '{}'::jsonb -> 'k'", False),
    ("UPDATE t SET a = NULL WHERE b = 'x'", "UPDATE t SET a = 5 WHERE b = 'y'", True),
]

POSTGRESQL_COARSER: list[tuple[str, str, str]] = [
    ("SELECT a FROM t WHERE a IN (1, 2)", "SELECT a FROM t WHERE a IN (1, 2, 3)", "length of lists, before 18"),
    ("SELECT a FROM t WHERE a IN (1)", "SELECT a FROM t WHERE a IN (1, 2)", "length of lists"),
    (
        "SELECT a FROM t WHERE a IN ('1'::int, '2'::int)",
        "SELECT a FROM t WHERE a IN ('1'::int, '2'::int, '3'::int)",
        "length of lists",
    ),
    ("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')", "number of rows"),
    (
        "INSERT INTO t VALUES (DEFAULT, 'a'), (DEFAULT, 'b')",
        "INSERT INTO t VALUES (DEFAULT, 'a'), (DEFAULT, 'b'), (DEFAULT, 'c')",
        "number of rows",
    ),
    ("SELECT ARRAY['1'::int, '2'::int]", "SELECT ARRAY['1'::int, '2'::int, '3'::int]", "length of lists"),
    ("SAVEPOINT a", "SAVEPOINT b", "names of savepoints, before 17"),
    ('ROLLBACK TO "a"', "ROLLBACK TO b", "names of savepoints, before 17"),
]

# PostgreSQL parses more than spelling: two rows here, one query id there.
POSTGRESQL_FINER: list[tuple[str, str, str]] = [
    ("SELECT a FROM t LIMIT 5", "SELECT a FROM t OFFSET 5", "which of both is missing"),
    ("SELECT '5'::int", "SELECT CAST('6' AS int)", "two spellings of a cast"),
    ('SELECT "a" FROM "t"', "SELECT a FROM t", "quotes that a name does not need"),
]

# MariaDB has two digests of these, and MySQL one.
MARIADB_FINER = {
    ("SELECT a FROM t WHERE a = -1", "SELECT a FROM t WHERE a = 1"),
    ("SELECT X'1F'", "SELECT 31"),
    ("SELECT _utf8mb4'abc'", "SELECT _utf8mb4 X'61'"),
    ("SELECT a FROM t WHERE a IN (1)", "SELECT a FROM t WHERE a IN (1, 2)"),
}
# MySQL has two digests of these, and MariaDB one: it keeps the numbers of columns.
MYSQL_FINER = {
    ("SELECT a FROM t ORDER BY 1", "SELECT a FROM t ORDER BY 2"),
    ("SELECT a FROM t GROUP BY 1, 2", "SELECT a FROM t GROUP BY 1, 2, 3"),
}
# MySQL has no such statement, or a digest's text in which parts are missing.
MYSQL_REFUSED = {
    ("EXECUTE IMMEDIATE 'SELECT 1'", "EXECUTE IMMEDIATE 'SELECT 2, 3'"),
    ("PREPARE p1 FROM 'SELECT 1'", "PREPARE p1 FROM 'SELECT 2'"),
}


# FNV-1a of 64 bits, as in the kernel program. Smaller identities than _TEXT_BIT are numbers of commands.
_OFFSET, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_TEXT_BIT = 256


def hash_statement(text: bytes, family: Family = "mysql", *, ansi_quotes: bool = False) -> int:
    """Return the identity of the statement of a text, as the kernel program computes it."""
    how, state, value = build_tables(family)[ansi_quotes], 0, _OFFSET
    for byte in text:
        at = state << 8 | byte
        state, mixed = how[at], how[STATES * 256 + at]
        if mixed:
            value = (value ^ mixed) * _PRIME & _MASK
    return value & ~ANSI_BIT | _TEXT_BIT | (ANSI_BIT if ansi_quotes else 0)
