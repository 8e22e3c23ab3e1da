# SPDX-License-Identifier: Apache-2.0
"""powerprof compare where something goes wrong: killed in a block, not ours, to be put back, refused, or worse."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.programs.waiting import wait_until

QUICK = ["--pairs", "3", "--duration", "0.4", "--meter", "none"]
# Only blocks have a pace: the calibration runs as fast as it goes.
_ASKING = "--(rate|pace)=[1-9][0-9]*"


def _children(pid: int, word: str) -> list[int]:
    """The programs that this powerprof has started with such an argument."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            arguments = (entry / "cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue
        if int(words[1]) == pid and any(re.fullmatch(word, argument) for argument in arguments):
            found.append(int(entry.name))
    return found


# No tables, so that a server is ready at once.
_PLAIN = """\
schema = "powerprof.workload/1"
name = "plain"
title = "t"
[conditions.light]
load.sql = ["SELECT 1"]
[conditions.heavy]
load.sql = ["SELECT BENCHMARK(2000, MD5('x'))"]
"""


@pytest.mark.parametrize(
    ("killed", "turn"),
    [
        pytest.param("--socket=.*", "0.05", id="server"),
        pytest.param(_ASKING, "0.05", id="client", marks=pytest.mark.nightly),
        pytest.param(_ASKING, "0", id="client, whole windows"),
    ],
)
def test_a_block_is_repeated_when_its_server_or_client_is_killed(
    powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path, killed: str, turn: str
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/workload.toml").write_text(_PLAIN)
    # A server that was killed gets its tables again.
    arms = ("index", "no-index") if killed != _ASKING else ("light", "heavy", "--workloads", str(tmp_path))
    # A busy host does this rate, too. Without a rate, equal work is measured, which has no pace.
    process = powerprof_cli.start(["compare", *arms, *QUICK, "--rate", "30", "--turn", turn, "--json", "-"])
    try:
        wait_until(lambda: _children(process.pid, _ASKING), "a client that asks")
        os.kill(_children(process.pid, killed)[0], signal.SIGKILL)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    record = json.loads(out)
    # A pair in which other programs ran is left out, and is there.
    assert len([block for block in record["blocks"] if not block["dropped"]]) >= 4
    assert record["ended"] is None
    assert sum(block["attempts_count"] - 1 for block in record["blocks"]) >= 1
    assert any("attempt 1" in note for note in record["notes"])


def _given(server: PrivateServer, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment that name a server of the user's."""
    defaults = write_options(folder / "client.cnf", server.login, password=False)
    return [*QUICK, "--defaults-file", str(defaults), "--no-save"], {"MYSQL_PWD": server.login.password}


def test_settings_of_a_given_server_are_always_restored(
    powerprof_cli: Cli, users_server: PrivateServer, sysbench: Path, tmp_path: Path
) -> None:
    words, environment = _given(users_server, tmp_path)
    names = ("query_cache_type", "query_cache_size")

    def settings() -> list[Any]:
        with users_server.connect() as connection:
            return [sql.fetch_scalar(connection, f"SELECT @@GLOBAL.{name}") for name in names]

    before = settings()
    for delay_s in (0.0, 3.1):
        process = powerprof_cli.start(["compare", "query-cache-useless", "no-query-cache", *words], environment)
        try:
            # Not before it is at work: the first statement that it runs makes its schema.
            wait_until(lambda: _schemas(users_server), "its schema")
            time.sleep(delay_s)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 130, err
        assert settings() == before, f"after {delay_s} s"
        assert not _schemas(users_server)


def _schemas(server: PrivateServer) -> list[Any]:
    with server.connect() as connection:
        return sql.fetch_rows(connection, "SHOW DATABASES LIKE 'powerprof%'")


def test_a_foreign_schema_is_never_dropped(
    powerprof_cli: Cli, users_server: PrivateServer, sysbench: Path, tmp_path: Path
) -> None:
    words, environment = _given(users_server, tmp_path)
    with users_server.connect() as connection:
        sql.execute(connection, "CREATE DATABASE powerprof_world", "CREATE TABLE powerprof_world.precious (a INT)")
    done = powerprof_cli(["compare", "index", "no-index", *words], environment)
    assert done.code == 2
    assert "that powerprof did not make" in done.err
    with users_server.connect() as connection:
        assert sql.fetch_rows(connection, "SHOW TABLES FROM powerprof_world") == [("precious",)]
        sql.execute(connection, "DROP DATABASE powerprof_world")


def test_conditions_with_start_up_settings_need_a_private_server(
    powerprof_cli: Cli, users_server: PrivateServer, sysbench: Path, tmp_path: Path
) -> None:
    words, environment = _given(users_server, tmp_path)
    done = powerprof_cli(["compare", "read-buffer-5m", "read-buffer-128k", *words], environment)
    assert done.code == 2
    assert "needs a server started with its own settings" in done.err


def test_an_unexpected_plan_is_refused(powerprof_cli: Cli, mariadbd: Path, sysbench: Path, tmp_path: Path) -> None:
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "workload.toml").write_text(
        'schema = "powerprof.workload/1"\nname = "wrong"\ntitle = "t"\n[dataset]\nkind = "world"\n'
        '[load]\nsql = ["SELECT 1"]\n[conditions.left]\n[conditions.right]\n'
        "[[conditions.right.explain]]\nstatement = \"SELECT * FROM City WHERE Name = 'x'\"\n"
        'plan = [{ table = "City", type = ["ref"] }]\n'
    )
    done = powerprof_cli(["compare", "left", "right", "--workloads", str(tmp_path), *QUICK])
    assert done.code == 1
    assert done.err.startswith("error: right: the plan is not the one to measure: wanted City ref, found City ALL")
