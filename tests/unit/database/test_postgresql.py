# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL as a private server."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database import postgresql
from powerprof.database.base import Login
from powerprof.database.builds import ServerBuild
from powerprof.system.errors import PowerprofError, UsageError
from tests.unit.database.test_mysql import find

BUILD = ServerBuild(
    Path("/usr/lib/postgresql/15/bin/postgres"), "postgresql", (15, 18, 0), "postgres (PostgreSQL) 15.18"
)


def test_ours_come_after_what_was_asked_so_that_they_hold() -> None:
    words = postgresql.build_command_line(BUILD, {"shared_buffers": "64MB", "fsync": False}, 200, Path("/t/server"))
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
        postgresql.format_settings({name: "x"})


@pytest.mark.parametrize(("connections", "limit"), [(90, []), (91, ["max_connections=107"])])
def test_clients_of_postgres_have_room(connections: int, limit: list[str]) -> None:
    words = postgresql.build_command_line(BUILD, {}, connections, Path("/t/server"))
    assert [word for word in words if word.startswith("max_connections")] == limit


@pytest.mark.parametrize(("version", "granted"), [((14, 9, 0), False), ((15, 0, 0), True)])
def test_a_checkpoint_right_exists_since_postgres_15(
    tmp_path: Path, version: tuple[int, int, int], granted: bool
) -> None:
    (tmp_path / "initdb").touch()
    build = ServerBuild(tmp_path / "postgres", "postgresql", version, "")
    (initdb, _), (_, account) = postgresql.build_initialise_steps(build, Path("/t/data"))
    assert initdb[:2] == [str(tmp_path / "initdb"), "--pgdata=/t/data"] and "--auth=reject" in initdb
    assert ("GRANT pg_checkpoint TO powerprof" in account) is granted


def test_the_account_is_local() -> None:
    login = postgresql.build_login(Path("/t/s"))
    assert (login.socket, login.database) == (Path("/t/s/.s.PGSQL.5432"), "postgres")
    assert postgresql.build_files(BUILD, Login(user="powerprof")) == {"hba.conf": "local all powerprof trust\n"}


@pytest.mark.parametrize("output", ["", "mysqld Ver 8.0", "sh 5.2"])
def test_another_program_is_no_server(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    with pytest.raises(PowerprofError, match="is not a PostgreSQL server"):
        find(monkeypatch, postgresql.find_build, output)


@pytest.mark.parametrize(
    ("output", "version"),
    [("postgres (PostgreSQL) 15.18 (Debian)", (15, 18, 0)), ("postgres (PostgreSQL) 18beta1", (18, 0, 0))],
)
def test_postgres_has_two_numbers(monkeypatch: pytest.MonkeyPatch, output: str, version: tuple[int, int, int]) -> None:
    assert find(monkeypatch, postgresql.find_build, output).version == version
    with pytest.raises(PowerprofError, match=r"is not a PostgreSQL server .an error"):
        find(monkeypatch, postgresql.find_build, output, 1)
