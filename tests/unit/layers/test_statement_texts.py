# SPDX-License-Identifier: Apache-2.0
"""Texts of clients enter a record as `NormalText` alone, which only `statements.normal` makes."""

from __future__ import annotations

import ast
import re
from typing import get_type_hints

import msgspec
import pytest

from powerprof.database.base import ReplicationStatus
from powerprof.diagnosis.evidence import Client, Evidence, LoggedEvent, LogSummary
from powerprof.queries.comparison import StatementChange
from powerprof.queries.records import Statement
from tests.unit.layers import sources

_OWNER = "powerprof/model/statements.py"
# What servers call the texts that clients sent, and what quotes them.
_TEXTS = re.compile(
    r"\s*(?:SELECT|SHOW)\b.*\b(?:INFO|PROCESSLIST_INFO|SQL_TEXT|DIGEST_TEXT|QUERY_SAMPLE_TEXT|EVENT_DEFINITION"
    r"|ROUTINE_DEFINITION|argument|sql_text|query|PROCESSLIST|BINLOG EVENTS|RELAYLOG EVENTS|ENGINE|SLAVES? STATUS"
    r"|REPLICA STATUS|LAST_ERROR_MESSAGE|CREATE EVENT)\b",
    re.DOTALL,
)
# The modules that read such texts. Those without a reason pass them through `statements.normal`.
_READERS = {
    "powerprof/cure/replicas.py": "the number of its own thread alone",
    "powerprof/database/pg_stat_statements.py": "",
    "powerprof/database/replication_status.py": "",
    "powerprof/database/server_report.py": "",
    "powerprof/diagnosis/postgres_queries.py": "",
    "powerprof/diagnosis/server_queries.py": "",
    "powerprof/diagnosis/rules_clients.py": "names of statements, as they are shown",
    "powerprof/diagnosis/wording.py": "names of statements, as they are shown",
    "powerprof/reversible/session_copies.py": "numbers, users and hosts of connections alone",
}
_FIELDS = [
    (Client, "statement"),
    (LoggedEvent, "info"),
    (LogSummary, "sql_error"),
    (ReplicationStatus, "last_sql_error"),
    (Evidence, "last_statements"),
    (Statement, "text"),
    (StatementChange, "text"),
]


def violations(source: str) -> list[str]:
    """What a module may not do unless it is the owner, or a reader that is known."""
    found = []
    for node in sources.walk(source):
        if isinstance(node, ast.Call) and "NormalText" in ast.dump(node.func):
            found.append("makes a NormalText")
        if isinstance(node, ast.Call) and ast.dump(node.func).count("cast") and "NormalText" in ast.dump(node):
            found.append("casts to NormalText")
    found += ["reads texts of clients" for _, text in sources.strings(source) if _TEXTS.match(text)]
    return found


def test_only_the_owner_makes_one_and_only_known_modules_read_texts() -> None:
    readers = set()
    for path, source in sources.modules().items():
        name, found = f"powerprof/{path}", violations(source)
        if name != _OWNER:
            assert {"makes a NormalText", "casts to NormalText"}.isdisjoint(found), name
        if "reads texts of clients" in found:
            readers.add(name)
    assert readers == set(_READERS)


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ('rows(c, f"SELECT t.ID, LEFT(e.SQL_TEXT, {n}) FROM events_statements_current e")', "reads texts of clients"),
        ('rows(c, "SELECT pid, query FROM pg_stat_activity")', "reads texts of clients"),
        ('records(c, "SHOW FULL PROCESSLIST")', "reads texts of clients"),
        ('records(c, "SHOW ENGINE INNODB STATUS")', "reads texts of clients"),
        ("Client(statement=NormalText(row['info']))", "makes a NormalText"),
        ("Client(statement=normal_module.NormalText(text))", "makes a NormalText"),
        ("Client(statement=cast(NormalText, text))", "casts to NormalText"),
        ('Client(statement=typing.cast("NormalText", text))', "casts to NormalText"),
    ],
)
def test_a_planted_violation_is_seen(planted: str, found: str) -> None:
    assert found in violations(planted)


@pytest.mark.parametrize(("record", "field"), _FIELDS)
def test_a_field_of_a_text_takes_no_raw_string(record: type[msgspec.Struct], field: str) -> None:
    """The types are then held by mypy."""
    assert "NormalText" in str(get_type_hints(record)[field])
