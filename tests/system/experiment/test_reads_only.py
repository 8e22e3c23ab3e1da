# SPDX-License-Identifier: Apache-2.0
"""A workload of clients' statements on a given server: it reads, whatever its texts turn out to do."""

from __future__ import annotations

import json
import pwd
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.given import GivenServer
from powerprof.database.private_server import PrivateServer
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_options import BenchOptions
from powerprof.system.errors import PowerprofError
from powerprof.workloads.reading import read_workload, resolve
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("mariadbd")
_TEXT = """
schema = "powerprof.workload/1"
name = "saved"
title = "saved"
[load]
database = "shop"
sql = ["SELECT n FROM t"]
reads_only = true
[conditions.as-is]
[conditions.changed]
setup = ["CREATE TABLE IF NOT EXISTS u LIKE t"]
load.sql = ["SELECT n FROM u"]
"""


def test_reads_only_uses_a_read_only_account(users_server: PrivateServer, tmp_path: Path) -> None:
    with users_server.connect() as connection:
        sql.execute(connection, "CREATE DATABASE shop", "CREATE TABLE shop.t (n INT)", "INSERT INTO shop.t VALUES (1)")
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "workload.toml").write_text(_TEXT)
    workload = read_workload(folder)
    cases = [resolve(workload, name) for name in ("as-is", "changed")]
    with GivenServer(users_server.login) as given, Bench(cases, BenchOptions(given=given), print) as bench:
        for case in cases:
            login = bench.context(case).login
            assert (login.user != users_server.login.user, login.database) == (True, "shop")
            with sql.connect(login) as connection, bench.connect(case) as control:
                for one in (connection, control):
                    assert sql.fetch_scalar(one, "SELECT COUNT(*) FROM u") == 0, "setup ran by the user's own account"
                    for text in (
                        "WITH x AS (SELECT 1) DELETE FROM t",
                        "DELETE FROM t",
                        "SET GLOBAL init_connect = 'x'",
                    ):
                        with pytest.raises(PowerprofError):
                            sql.execute(one, text)
    with users_server.connect() as connection:
        assert sql.fetch_scalar(connection, "SELECT COUNT(*) FROM shop.t") == 1
        assert sql.fetch_scalar(connection, "SELECT COUNT(*) FROM mysql.user WHERE User LIKE 'pp\\_read%'") == 0


def test_under_sudo_the_clients_run_as_the_caller(
    powerprof_cli: Cli, users_server: PrivateServer, sysbench: Path, tmp_path: Path, root: None
) -> None:
    """The server asks the kernel who each of them is."""
    caller = pwd.getpwuid(65534)
    with users_server.connect() as connection:
        sql.execute(
            connection,
            "DROP DATABASE IF EXISTS shop",  # of the test above
            f"CREATE USER {caller.pw_name}@localhost IDENTIFIED VIA unix_socket",
            f"GRANT ALL ON shop.* TO {caller.pw_name}@localhost",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (n INT)",
            "CREATE TABLE shop.seen (who VARCHAR(80))",
            "CREATE FUNCTION shop.note() RETURNS INT SQL SECURITY DEFINER"
            " BEGIN INSERT INTO shop.seen VALUES (SESSION_USER()); RETURN 1; END",
        )
    for folder in (users_server.directory.parent, users_server.directory, users_server.socket.parent):
        folder.chmod(0o711)
    users_server.socket.chmod(0o777)
    folder = tmp_path / "saved"
    folder.mkdir()
    text = _TEXT.replace("reads_only = true\n", "").replace("SELECT n FROM t", "SELECT note()")
    (folder / "workload.toml").write_text(text)
    done = powerprof_cli(
        [
            *(
                "--quiet",
                "compare",
                "as-is",
                "changed",
                "--workloads",
                str(tmp_path),
                "--socket",
                str(users_server.socket),
            ),
            *("--pairs", "3", "--duration", "0.4", "--meter", "none", "--json", "-", "--no-save"),
        ],
        env={"SUDO_UID": "65534", "SUDO_GID": "65534"},
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["blocks"]
    with users_server.connect() as connection:
        seen = {row[0] for row in sql.fetch_rows(connection, "SELECT DISTINCT who FROM shop.seen")}
    assert seen == {f"{caller.pw_name}@localhost"}
