# SPDX-License-Identifier: Apache-2.0
"""Roles of PostgreSQL's processes, by their titles."""

from __future__ import annotations

import pytest

from powerprof.system.server_roles import parse_client, parse_database, parse_part, parse_role, read_roles, read_titles
from tests.conftest import Tree
from tests.unit.system.conftest import add_process

# (title, role, client): the client's account and host.
_TITLES = [
    ("postgres: checkpointer ", "checkpointer", None),
    ("postgres: 15/main: walwriter   ", "walwriter", None),
    ("postgres: logical replication launcher", "logical replication launcher", None),
    ("postgres: autovacuum worker shop", "autovacuum worker shop", None),
    ("postgres: app shop [local] SELECT", "backend of shop", ("app", None)),
    ("postgres: 17/main: app shop 10.0.0.7(55412) idle in transaction", "backend of shop", ("app", "10.0.0.7")),
    ("postgres: app shop ::1(9) idle", "backend of shop", ("app", "::1")),
    ("postgres: parallel worker for PID 812", "parallel worker", None),
    ("postgres: startup recovering 000000010000", "startup", None),
    ("postgres: pglogical apply 16384:2342", "pglogical apply 16384:2342", None),
    ("postgres: walsender repl 10.0.0.9(4711) streaming 0/3000148", "walsender repl 10.0.0.9(4711)", None),
    ("/usr/lib/postgresql/15/bin/postgres -D data", None, None),
    ("postgres: app \x1b[31m [local] idle", "backend of ?[31m", ("app", None)),
]


@pytest.mark.parametrize(("title", "role", "client"), _TITLES)
def test_a_title_has_a_role_and_a_clients_account(
    title: str, role: str | None, client: tuple[str, str | None] | None
) -> None:
    assert parse_part(title) == role
    assert parse_client(title) == client
    assert parse_database(role or "") == ((role or "").removeprefix("backend of ") if client else None)
    assert parse_role(title) == (f"{role} for {client[0]}" if client else role)
    assert parse_database(parse_role(title) or "") == parse_database(role or "")


def test_roles_are_those_of_readable_titles(fake_tree: Tree) -> None:
    add_process(fake_tree, 7, "/p/postgres", files={"cmdline": "postgres: checkpointer \0\0"})
    add_process(fake_tree, 8, "/p/postgres", files={"cmdline": "/p/postgres\0-D\0/d\0"})
    add_process(fake_tree, 9, "/p/postgres", files={"cmdline": ""})
    add_process(fake_tree, 11, "/p/postgres", files={"cmdline": "postgres: app shop [local] idle"})
    assert read_roles([7, 8, 9, 10, 11]) == {7: "checkpointer", 11: "backend of shop for app"}
    assert read_titles([7, 8, 9, 10]) == {7: "postgres: checkpointer   ", 8: "/p/postgres -D /d "}
