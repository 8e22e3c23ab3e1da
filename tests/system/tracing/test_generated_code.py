# SPDX-License-Identifier: Apache-2.0
"""Code that PostgreSQL compiles for a query is one row of a profile, with the way to get names."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("root_bpf")
_SETTINGS = ("jit = on", "jit_above_cost = 0", "max_parallel_workers_per_gather = 0")
_QUERY = "SELECT sum(a * 2 + b * 3 - (a % 7) * (b % 5)) FROM n, generate_series(1, 20) WHERE a * 3 + b > 10"


def test_compiled_code_is_one_row(powerprof_cli: Cli) -> None:
    with PrivateServer(family="postgresql", settings={"autovacuum": False}) as server:
        libraries = Path(str(server.build.binary)).parents[1] / "lib"
        if not (libraries / "llvmjit.so").exists():
            pytest.skip(f"no capability: llvmjit.so in {libraries}")
        stop = threading.Event()
        with server.connect() as connection:
            sql.execute(
                connection, "CREATE TEMP TABLE n AS SELECT n AS a, n % 100 AS b FROM generate_series(1, 50000) n"
            )
            for setting in _SETTINGS:
                sql.execute(connection, f"SET {setting}")

            def work() -> None:
                while not stop.is_set():
                    sql.execute(connection, _QUERY)

            worker = threading.Thread(target=work)
            worker.start()
            try:
                words = ["profile", "--pid", str(server.pid), "--duration", "3", "--no-save", "--json", "-"]
                result = powerprof_cli(words)
            finally:
                stop.set()
                worker.join()
    assert result.code == 0, result.err
    found = json.loads(result.out)
    generated = [row for row in found["functions"] if row["module"] == "[PostgreSQL JIT code]"]
    assert [row["function"] for row in generated] == ["[PostgreSQL JIT code]"]
    assert generated[0]["self_count"] > 0
    assert sum(row["self_count"] for row in found["functions"]) == found["target_count"]
    assert [str(note) for note in found["notes"] if "SET jit = off" in str(note)]
