# SPDX-License-Identifier: Apache-2.0
"""Settings and command lines of private servers, by product."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from powerprof.database import products
from powerprof.database.base import Login
from powerprof.database.builds import ServerBuild
from powerprof.database.connections import SPARE_FILES
from powerprof.system.errors import UsageError

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


@pytest.mark.parametrize(("connections", "limit"), [(90, []), (91, ["max_connections=107"])])
def test_clients_of_postgres_have_room(connections: int, limit: list[str]) -> None:
    words = products.build_postgres_words(BUILD, {}, connections, Path("/t/server"))
    assert [word for word in words if word.startswith("max_connections")] == limit


MARIADB = ServerBuild(Path("/usr/sbin/mariadbd"), "mariadb", (10, 11, 9), "Ver 10.11.9-MariaDB")


def test_a_mariadb_server_has_files_and_connections_for_its_clients() -> None:
    words = products.build_mysql_words(MARIADB, {"sync_binlog": 3, "autocommit": False}, 101, Path("/t/s"))
    assert words[:3] == ["--no-defaults", "--skip-name-resolve", "--performance-schema=ON"]
    assert words[3:5] == ["--max-connections=125", f"--open-files-limit={101 + SPARE_FILES}"]
    assert words.index("--autocommit=OFF") < words.index("--datadir=/t/s/data")
    assert {"--local-infile=OFF", "--secure-file-priv=/t/s/tmp", "--socket=/t/s/mysqld.sock"} <= set(words)
    few = products.build_mysql_words(MARIADB, {}, 100, Path("/t/s"))
    assert not any("max-connections" in word for word in few)
    old = msgspec.structs.replace(MARIADB, version=(10, 4, 9))
    assert "--performance-schema=ON" not in products.build_mysql_words(old, {}, 100, Path("/t/s"))
    assert products.build_mysql_network(None, "::1") == ["--skip-networking"]
    assert products.build_mysql_network(4001, "127.0.0.9") == ["--port=4001", "--bind-address=127.0.0.9"]


def test_settings_are_options_in_their_order() -> None:
    settings = {
        "flush": True,
        "big-tables": False,
        "skip-x": None,
        "replicate-do-db": ["a", "b"],
        "sort_buffer_size": 7,
    }
    options = ["--flush=ON", "--big-tables=OFF", "--skip-x", "--replicate-do-db=a", "--replicate-do-db=b"]
    assert products.format_settings(settings) == [*options, "--sort_buffer_size=7"]
    for name, value in (("flush", "a\nb"), ("flush", "a\0"), ("a b", 1), ("9", 1)):
        with pytest.raises(UsageError):
            products.format_settings({name: value})


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
    assert products.find_reserved_setting(name, "mysql") == reserved
    with nullcontext() if reserved is None else pytest.raises(UsageError, match="powerprof's own"):
        products.format_settings({name: 1})


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
    assert products.does_setting_need_trust(name, value, family) is needed  # type: ignore[arg-type]


def test_variables_of_malloc_need_no_trust() -> None:
    assert not products.does_variable_need_trust("MALLOC_ARENA_MAX")
    assert all(map(products.does_variable_need_trust, ("LD_PRELOAD", "MALLOC_ARENA_MAX_", "GLIBC_TUNABLES")))


@pytest.mark.parametrize(("version", "granted"), [((14, 9, 0), False), ((15, 0, 0), True)])
def test_a_checkpoint_right_exists_since_postgres_15(
    tmp_path: Path, version: tuple[int, int, int], granted: bool
) -> None:
    (tmp_path / "initdb").touch()
    build = ServerBuild(tmp_path / "postgres", "postgresql", version, "")
    (initdb, _), (_, account) = products.build_initialise_steps(build, Path("/t/data"))
    assert initdb[:2] == [str(tmp_path / "initdb"), "--pgdata=/t/data"] and "--auth=reject" in initdb
    assert ("GRANT pg_checkpoint TO powerprof" in account) is granted


def test_accounts_are_local_and_the_password_is_random() -> None:
    one, other = (products.build_mysql_login(Path("/t/s")) for _ in range(2))
    assert one.socket == Path("/t/s/mysqld.sock") and len(one.password) >= 32 and one.password != other.password
    postgres = products.build_postgres_login(Path("/t/s"))
    assert (postgres.socket, postgres.database) == (Path("/t/s/.s.PGSQL.5432"), "postgres")
    account = Login(user="powerprof")
    assert products.write_postgres_files(BUILD, account) == {"hba.conf": "local all powerprof trust\n"}
    assert products.product_of(MARIADB) is products.MYSQL and products.product_of(BUILD) is products.POSTGRESQL
