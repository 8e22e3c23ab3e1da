# SPDX-License-Identifier: Apache-2.0
"""The plan for a setting of PostgreSQL."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from powerprof.cure import postgres_settings
from powerprof.cure.postgres_settings import plan_postgres_setting
from powerprof.cure.records import Remedy
from powerprof.database.base import Login
from powerprof.database.postgres_settings import ServerSetting
from powerprof.reversible.postgres_settings import UNSET, DataFolder, PostgresSetting
from powerprof.system.errors import UnknownNameError, UsageError

LOGIN = Login(user="u", family="postgresql")
WORK_MEM = ServerSetting("work_mem", "4MB", "user", "default")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the server answers."""
    answers: dict[str, Any] = {"setting": WORK_MEM, "unloaded": None, "hiding": [], "file": UNSET}
    monkeypatch.setattr(postgres_settings.sql, "connect", lambda *_, **__: nullcontext())
    monkeypatch.setattr(postgres_settings, "without_limits", lambda _, login: login)
    monkeypatch.setattr(postgres_settings, "read_setting", lambda *_: answers["setting"])
    monkeypatch.setattr(postgres_settings, "list_setting_names", lambda _: ["work_mem", "wal_level"])
    monkeypatch.setattr(postgres_settings, "find_unloaded_file", lambda _: answers["unloaded"])
    monkeypatch.setattr(postgres_settings, "list_hiding", lambda *_: answers["hiding"])
    monkeypatch.setattr(DataFolder, "of", lambda pid: DataFolder(104, "/data", pid))
    monkeypatch.setattr(PostgresSetting, "read", lambda _: answers["file"])
    return answers


def plan(value: str = "8MB") -> tuple[PostgresSetting, str, Remedy]:
    return plan_postgres_setting(71, LOGIN, "WORK_MEM", value)


@pytest.mark.parametrize(("file", "before"), [(UNSET, "4MB"), ("5000", "5000")])
def test_a_plan_goes_from_the_present_value_to_the_chosen_one(server: dict[str, Any], file: str, before: str) -> None:
    server["file"] = file
    setting, old, remedy = plan()
    assert (setting.name, setting.value, setting.folder.inode, old) == ("work_mem", "8MB", 71, file)
    assert (remedy.name, remedy.from_value, remedy.to_value) == ("work_mem", before, "8MB")
    assert remedy.lasting == "ALTER SYSTEM SET work_mem = '8MB'; SELECT pg_catalog.pg_reload_conf()"
    assert "except" not in remedy.delays


def test_a_plan_names_who_is_not_changed(server: dict[str, Any]) -> None:
    server["hiding"] = [f"role r{number}: 1MB" for number in range(6)]
    delays = plan()[2].delays
    assert delays.endswith("(role r0: 1MB, role r1: 1MB, role r2: 1MB, role r3: 1MB and 2 more)")


@pytest.mark.parametrize(
    ("name", "context", "source", "reason"),
    [
        ("server_version", "internal", "default", "computes it"),
        ("shared_buffers", "postmaster", "default", "only when the server starts"),
        ("transaction_isolation", "user", "default", "each session sets it"),
        ("log_connections", "superuser-backend", "default", "connections that open during the test"),
        ("post_auth_delay", "backend", "default", "connections that open during the test"),
        ("temp_tablespaces", "user", "default", "a list of quoted names"),
        ("work_mem", "user", "command line", "command line sets it"),
    ],
)
def test_a_setting_that_no_reload_changes_is_refused(
    server: dict[str, Any], name: str, context: str, source: str, reason: str
) -> None:
    server["setting"] = ServerSetting(name, "1", context, source)
    with pytest.raises(UsageError, match=reason) as refused:
        plan()
    assert refused.value.hint


def test_a_value_that_means_none_and_an_unloaded_file_are_refused(server: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is not a value"):
        plan(UNSET)
    server["unloaded"] = "/etc/postgresql/pg_hba.conf"
    with pytest.raises(UsageError, match=r"pg_hba\.conf changed after the server loaded it"):
        plan()


def test_an_unknown_name_is_answered_with_all_names(server: dict[str, Any]) -> None:
    server["setting"] = None
    with pytest.raises(UnknownNameError) as unknown:
        plan()
    assert (unknown.value.word, unknown.value.names) == ("WORK_MEM", ("work_mem", "wal_level"))
