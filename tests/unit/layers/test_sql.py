# SPDX-License-Identifier: Apache-2.0
"""Names in the SQL that powerprof writes are qualified: otherwise settings of a session decide whose object is used."""

from __future__ import annotations

import re

import pytest

from tests.unit.layers import sources

_VERB = re.compile(r"\s*(SELECT|WITH|CREATE|DROP|ALTER|SET|SHOW|GRANT|EXPLAIN|KILL|CALL|INSERT|UPDATE|DELETE)\s")
_POSTGRESQL = re.compile(r"\bpg_|OPERATOR\(|current_setting")
# Private servers alone get these: their data are made by powerprof, and nobody else's.
_PRIVATE = (
    *(f"database/{name}.py" for name in ("mysql", "postgresql", "preparation", "private_server", "topology")),
    "workloads/",
    "experiment/bench_data.py",
)
_WITH = re.compile(r"\bWITH (?:RECURSIVE )?(\w+) \(")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'")
_TABLE = re.compile(r"(?<!SHOW )(?<!SHOW CREATE )\b(?:FROM|JOIN|INTO|UPDATE|TABLE|EVENT)\s+(?!\()([\w.{}\"`]+)")
_CALL = re.compile(r"(?<![\w.])([a-z_]\w*)\(")
_CAST = re.compile(r"::\s*([\w.]+)")
_TYPE = re.compile(r"\b(?:CAST\s*\(|USING\s*\(|LIKE|ILIKE|SIMILAR|BETWEEN|IN\s*\(|DISTINCT FROM|NULLIF|CASE)", re.I)
_SIGN = re.compile(r"[=<>+/|~%!-]|(?<!SELECT )(?<![.(])\*")


def unqualified_postgresql(statement: str) -> list[str]:
    """Return the names, operators and words of a statement of PostgreSQL that are looked up in the search_path."""
    plain = _QUOTED.sub("''", statement)
    without = re.sub(r"OPERATOR\(pg_catalog\.[^)]*\)", " ", plain)
    own = {*_WITH.findall(without), "LATERAL"}  # the statement's own names come before those of any schema
    tables = [name for name in _TABLE.findall(without) if name not in own]
    found = [name for name in tables if not name.startswith(("pg_catalog.", "public.", "{"))]
    found += [name for name in _CALL.findall(without) if name not in ("", "pg_catalog")]
    found += [name for name in _CAST.findall(without) if not name.startswith("pg_catalog.")]
    found += [*_TYPE.findall(without), *_SIGN.findall(without.replace("::", " "))]
    return found


def unqualified_mysql(statement: str) -> list[str]:
    """Return the tables of a statement of MariaDB or MySQL that are not in a schema of which nobody else owns a table.

    A function needs no schema: MariaDB and MySQL prefer their own function to a stored one of the same name.
    """
    tables = _TABLE.findall(_QUOTED.sub("''", statement))
    own = ("information_schema.", "performance_schema.", "{", "`{", '"{')
    return [name for name in tables if not name.startswith(own) and not name.isdigit()]


def violations(path: str, text: str) -> list[str]:
    """Return what is not qualified in the SQL of a file."""
    if any(part in path for part in _PRIVATE):
        return []
    found = []
    for line, statement in sources.strings(text):
        if not _VERB.match(statement) or _VERB.fullmatch(statement + " "):
            continue
        check = unqualified_postgresql if _POSTGRESQL.search(statement) else unqualified_mysql
        found += [f"{path}:{line}: {name}" for name in check(statement)]
    return found


def test_names_in_our_sql_are_qualified() -> None:
    assert [line for name, text in sources.modules().items() for line in violations(f"powerprof/{name}", text)] == []


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ('x = "SELECT extname FROM pg_extension"', "pg_extension"),
        ('x = f"SELECT 1 FROM pg_catalog.pg_class c JOIN pg_namespace n ON true LIMIT {most}"', "pg_namespace"),
        ('x = "SELECT 1 FROM pg_catalog.pg_class c WHERE c.oid = 1"', "="),
        ("x = \"SELECT current_setting('role')\"", "current_setting"),
        ('x = "WITH a (b) AS (SELECT 1) SELECT pg_catalog.now() FROM a JOIN c ON true"', "c"),
        ("x = \"SELECT 'pg_class'::regclass FROM pg_catalog.pg_class\"", "regclass"),
        ("x = \"SELECT 1 FROM pg_catalog.pg_class c WHERE c.relname LIKE 'a'\"", "LIKE"),
        ('x = "SELECT 1 FROM pg_catalog.pg_class c WHERE c.oid IN (1)"', "IN ("),
        ('x = "SELECT User FROM mysql.user"', "mysql.user"),
        ('x = f"SELECT COUNT(*) FROM threads WHERE {condition}"', "threads"),
        ('x = ("SELECT NAME " "FROM sys.processlist LIMIT 1")', "sys.processlist"),
    ],
)
def test_a_planted_name_is_found(planted: str, name: str) -> None:
    assert violations("powerprof/planted.py", planted) == [f"powerprof/planted.py:1: {name}"]
