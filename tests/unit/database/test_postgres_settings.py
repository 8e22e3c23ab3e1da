# SPDX-License-Identifier: Apache-2.0
"""Settings of a PostgreSQL server: values, texts in its files, and roles and databases with other values."""

from __future__ import annotations

import pytest

from powerprof.database.base import Login, StatementError
from powerprof.database.postgres_settings import (
    find_unloaded_file,
    list_hiding,
    list_setting_names,
    read_file_text,
    read_setting,
    without_limits,
)
from powerprof.database.postgres_wire import NO_LOGIN_TRIGGERS, SAFE_OPTIONS
from powerprof.system.errors import PowerprofError
from tests.programs.answers import Answer, Answers

_AUTO = "/data/postgresql.auto.conf"


def connection(key: str, answer: Answer) -> Answers:
    return Answers({key: answer}, "postgresql")


def test_read_a_setting_in_any_case() -> None:
    server = connection("'work_mem'", [("work_mem", "4MB", "user", "default")])
    found = read_setting(server, "Work_Mem")
    assert found is not None
    assert (found.name, found.value, found.context, found.source) == ("work_mem", "4MB", "user", "default")
    assert read_setting(server, "workmem") is None
    assert list_setting_names(connection("pg_settings", [("a",), ("b",)])) == ["a", "b"]


_LOADED = ("t", None, "/etc/p.conf")
# A setting that waits for a restart does not keep the server from loading the others.
_WAITING = ("f", "setting could not be applied", "/etc/p.conf")


@pytest.mark.parametrize(
    ("rows", "texts", "text"),
    [([], [], None), ([_LOADED], ["7MB", "8MB"], "8MB"), ([_LOADED], [""], ""), ([_WAITING, _LOADED], ["8MB"], "8MB")],
)
def test_read_the_last_text_of_the_file(rows: list[tuple[str | None, ...]], texts: list[str], text: str | None) -> None:
    server = Answers({"f.setting": [(each,) for each in texts], "f.applied": rows}, "postgresql")
    assert read_file_text(server, "work_mem") == text


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([("f", None, _AUTO), ("f", "syntax error", "/etc/p.conf")], "/etc/p.conf: syntax error"),
        (StatementError("permission denied for view pg_file_settings [42501]", None, 1), "may not read the server's"),
        (StatementError("the connection was lost", None, 0), "the connection was lost"),
    ],
)
def test_files_that_cannot_be_read_or_loaded_are_an_error(answer: Answer, reason: str) -> None:
    with pytest.raises(PowerprofError, match=reason):
        read_file_text(connection("f.applied", answer), "work_mem")


def test_a_text_that_cannot_be_restored_is_an_error() -> None:
    server = Answers({"f.setting": [("a\ufffd",)], "f.applied": [_LOADED]}, "postgresql")
    with pytest.raises(PowerprofError, match="not UTF-8"):
        read_file_text(server, "work_mem")


def test_find_a_file_that_is_not_loaded() -> None:
    assert find_unloaded_file(connection("pg_stat_file", [])) is None
    assert find_unloaded_file(connection("pg_stat_file", [("/etc/p\x1b.conf",)])) == "/etc/p?.conf"


def test_name_roles_and_databases_with_their_own_value() -> None:
    rows = [("app", "shop", "work_mem=16MB"), (None, "shop", "work_mem=1=2"), ("app", None, "work_mem=")]
    server = connection("pg_db_role_setting", [*rows, (None, None, "work_mem=9")])
    assert list_hiding(server, "work_mem") == [
        "role app in database shop: 16MB",
        "database shop: 1=2",
        "role app: ",
        "all roles: 9",
    ]


@pytest.mark.parametrize(
    ("row", "options"), [(("on", "on"), NO_LOGIN_TRIGGERS), ((None, "on"), SAFE_OPTIONS), (("on", "off"), SAFE_OPTIONS)]
)
def test_a_session_has_no_triggers_and_no_time_limit(row: tuple[str | None, str], options: str) -> None:
    login = without_limits(connection("event_triggers", [row]), Login(user="u", family="postgresql"))
    assert login.session_options == f"{options} -c statement_timeout=0"
