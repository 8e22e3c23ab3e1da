# SPDX-License-Identifier: Apache-2.0
"""Settings of private servers: reserved ones, and those that need trust."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from powerprof.database import mysql
from powerprof.database.settings import does_setting_need_trust, does_variable_need_trust, find_reserved_setting
from powerprof.system.errors import UsageError


@pytest.mark.parametrize(
    ("name", "reserved"),
    [
        ("port", "port"),
        ("PORT", "port"),
        ("skip-networking", "networking"),
        ("loose_skip_port", "port"),
        ("data", "datadir"),
        ("maximum-mysqlx-port", "mysqlx"),
        ("wsrep_provider", "wsrep"),
        ("cache.port", "port"),
        ("cache.loose-tmpd", "tmpdir"),
        ("portable", None),
        ("sort_buffer_size", None),
    ],
)
def test_a_setting_is_reserved_by_each_of_its_meanings(name: str, reserved: str | None) -> None:
    assert find_reserved_setting(name, "mysql") == reserved
    with nullcontext() if reserved is None else pytest.raises(UsageError, match="powerprof's own"):
        mysql.format_settings({name: 1})


@pytest.mark.parametrize(
    ("name", "value", "family", "needed"),
    [
        ("innodb_buffer_pool_size", "1G", "mysql", False),
        ("loose-innodb_x", "1G", "mysql", False),
        ("innodb_data_home_dir", "/etc", "mysql", True),
        ("plugin_load", "x.so", "mysql", True),
        ("skip-loose-sql_mode", "ANSI", "mysql", False),
        ("cache.sql_mode", "ANSI", "mysql", True),
        ("port", 1, "mysql", False),
        ("work_mem", "64MB", "postgresql", False),
        ("Work_Mem", "64MB", "postgresql", False),
        ("auto_explain.log", 1, "postgresql", True),
        ("local_preload_libraries", "x", "postgresql", False),
        ("odd_setting", 1, "postgresql", True),
    ],
)
def test_only_tuning_settings_need_no_trust(name: str, value: str | int, family: str, needed: bool) -> None:
    assert does_setting_need_trust(name, value, family) is needed  # type: ignore[arg-type]


def test_variables_of_malloc_need_no_trust() -> None:
    assert not does_variable_need_trust("MALLOC_ARENA_MAX")
    assert all(map(does_variable_need_trust, ("LD_PRELOAD", "MALLOC_ARENA_MAX_", "GLIBC_TUNABLES")))
