# SPDX-License-Identifier: Apache-2.0
"""`export --statements all`: the statements of every server of the host, within one bound."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from powerprof.database import sql
from tests.conftest import Cli
from tests.programs.host_servers import mariadb
from tests.system.live.alert_faults import repeated
from tests.system.live.engines import wait_for
from tests.system.live.test_export import exporter, scrape

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "asks_every_server")
_PORTS = (33996, 33997)
_BOUND = 20


def test_statements_of_two_servers_have_series_within_one_bound(powerprof_cli: Cli, server_folder: Path) -> None:
    work = [f"SELECT BENCHMARK(20000, MD5({', '.join(['1'] * 1)})) + {'+ '.join(['1'] * n)}" for n in range(1, 30)]
    with ExitStack() as stack:
        for port in _PORTS:
            server = stack.enter_context(mariadb(server_folder / str(port), port))

            def execute(connection: object) -> None:
                for statement in work:
                    sql.fetch_rows(connection, statement)  # type: ignore[arg-type]

            stack.enter_context(repeated(server.connect, execute, 0.05))
        words = ("--interval", "2", "--ask-every", "2", "--meter", "none", "--statements", "all")
        port, _ = stack.enter_context(exporter(powerprof_cli, *words))
        names = {f"mariadbd:{number}" for number in _PORTS}

        def served() -> set[str]:
            rows = [dict(labels) for name, labels in scrape(port) if name == "powerprof_statement_info"]
            assert len(rows) <= _BOUND
            return {row["server"] for row in rows if "BENCHMARK" in row["text"]}

        wait_for("statements of both", lambda: names <= served(), 120)
        rows = [dict(labels) for name, labels in scrape(port) if name == "powerprof_statement_cpu_seconds_total"]
        assert len(rows) <= _BOUND + len({row["server"] for row in rows})
