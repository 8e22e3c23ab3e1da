# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: settings, plans, and titles of processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import products, sql
from powerprof.database.builds import ServerBuild
from powerprof.system import processes
from powerprof.system.errors import PowerprofError, UsageError

BUILD = ServerBuild(
    Path("/usr/lib/postgresql/15/bin/postgres"), "postgresql", (15, 18, 0), "postgres (PostgreSQL) 15.18"
)


def test_ours_come_after_what_was_asked_so_that_they_hold() -> None:
    words = products.build_postgres_words(BUILD, {"shared_buffers": "64MB", "fsync": False}, 200, Path("/t/server"))
    assert words[:2] == ["-D", "/t/server/data"]
    asked = words[3::2]
    assert asked[:3] == ["max_connections=216", "shared_buffers=64MB", "fsync=off"]
    assert {"listen_addresses=", "unix_socket_directories=/t/server", "hba_file=/t/server/hba.conf"} <= set(asked[3:])
    assert BUILD.name == "PostgreSQL 15.18"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "archive_command",
            "restore_command",
            "shared_preload_libraries",
            "session_preload_libraries",
            "data_directory",
        ),
        *("hba_file", "listen_addresses", "port", "unix_socket_directories", "dynamic_library_path", "log_directory"),
        *("ssl_passphrase_command", "primary_conninfo", "jit_provider", "archive_library", "Log_Destination", "a b"),
    ],
)
def test_a_setting_that_opens_the_server_or_runs_something_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        products.check_postgres_settings({name: "x"})


class _Answers:
    """A connection that gives one answer."""

    family = "postgresql"

    def __init__(self, text: str) -> None:
        self._text = text
        self.description = [("QUERY PLAN",)]

    def cursor(self) -> _Answers:
        return self

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str, arguments: object = None) -> None:
        assert statement.startswith("EXPLAIN (FORMAT JSON) SELECT")

    def fetchall(self) -> list[tuple[str]]:
        return [(self._text,)]


def _plan(text: str) -> list[dict[str, Any]]:
    connection: Any = _Answers(text)
    return sql.dialect_of(connection).explain(connection, "SELECT 1")


def test_a_plan_is_told_by_its_tables_and_a_bitmap_scan_with_its_index() -> None:
    scan = {"Node Type": "Bitmap Heap Scan", "Relation Name": "city", "Plan Rows": 5}
    below = {"Node Type": "Bitmap Index Scan", "Index Name": "name_btree", "Plan Rows": 5}
    other = {"Node Type": "Seq Scan", "Relation Name": "country", "Plan Rows": 239}
    join = {"Node Type": "Hash Join", "Plans": [{**scan, "Plans": [below]}, {"Node Type": "Hash", "Plans": [other]}]}
    assert _plan(json.dumps([{"Plan": {"Node Type": "Aggregate", "Plans": [join]}}])) == [
        {"table": "city", "type": "Bitmap Heap Scan", "key": "name_btree", "rows": 5},
        {"table": "country", "type": "Seq Scan", "key": None, "rows": 239},
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '[{"Plan": 1}]', "nonsense"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PowerprofError, match="cannot read the plan"):
        _plan(text)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("postgres: checkpointer ", "checkpointer"),
        ("postgres: 15/main: walwriter   ", "walwriter"),
        ("postgres: logical replication launcher", "logical replication launcher"),
        ("postgres: autovacuum worker shop", "autovacuum worker shop"),
        ("postgres: app shop [local] SELECT", "backend of shop"),
        ("postgres: 17/main: app shop 10.0.0.7(55412) idle in transaction", "backend of shop"),
        ("postgres: parallel worker for PID 812", "parallel worker"),
        ("postgres: walsender repl 10.0.0.9(4711) streaming 0/3000148", "walsender repl 10.0.0.9(4711)"),
        ("/usr/lib/postgresql/15/bin/postgres -D data", None),
        ("postgres: app \x1b[31m [local] idle", "backend of"),
    ],
)
def test_a_title_says_the_part_and_of_a_client_the_database(title: str, name: str | None) -> None:
    said = processes.parse_part(title)
    assert said == name or (name == "backend of" and said is not None and "\x1b" not in said)
