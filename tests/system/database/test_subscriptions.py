# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL with a logical subscription that fails: `diagnose` finds it, and its remedy ends it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import postgresql
from powerprof.system.errors import CapabilityError
from powerprof.system.programs import start, stop
from tests.conftest import Cli
from tests.programs.waiting import wait_until

_ACCOUNT = 65534 if os.geteuid() == 0 else os.geteuid()
_PORT = 5498
_RETRY = "wal_retrieve_retry_interval=100ms"
_SETTINGS = ("listen_addresses=", f"port={_PORT}", "wal_level=logical", _RETRY, "fsync=off")


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL with the databases postgres (publisher) and shop (subscriber)."""

    folder: Path
    binaries: Path
    pid: int

    def execute(self, database: str, *statements: str) -> str:
        """Return the output of statements, each in a transaction of its own, by the superuser postgres."""
        words = [part for statement in statements for part in ("-c", statement)]
        command = [self.binaries / "psql", "-h", self.folder, "-p", str(_PORT), "-U", "postgres", "-d", database]
        return subprocess.run([*command, "-AtqX", *words], check=True, capture_output=True, text=True).stdout.strip()

    def count_errors(self) -> int:
        """Return the errors of the apply worker."""
        return int(self.execute("shop", "SELECT apply_error_count FROM pg_stat_subscription_stats"))


@pytest.fixture
def subscriber() -> Iterator[Postgres]:
    try:
        build = postgresql.find_build()
    except CapabilityError as error:
        pytest.skip(f"no capability: PostgreSQL ({error.hint})")
    if build.version < (15,):
        pytest.skip("no capability: PostgreSQL 15 counts the errors of subscriptions")
    binaries = build.binary.resolve().parent
    with tempfile.TemporaryDirectory(prefix="subscriber-", dir="/tmp") as name:
        folder = Path(name)
        os.chown(folder, _ACCOUNT, -1)
        made = ["-D", folder / "data", "-A", "trust", "-U", "postgres", "-N"]
        subprocess.run(
            [binaries / "initdb", *made], check=True, capture_output=True, cwd=folder, user=_ACCOUNT, extra_groups=[]
        )
        options = [word for setting in _SETTINGS for word in ("-c", setting)]
        process = start(
            [str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder), *options],
            user=(_ACCOUNT, _ACCOUNT),
        )
        try:
            asked = [binaries / "pg_isready", "-q", "-h", folder, "-p", str(_PORT)]
            wait_until(lambda: subprocess.run(asked).returncode == 0, "subscription")
            server = Postgres(folder, binaries, process.pid)
            _subscribe(server)
            yield server
        finally:
            stop(process)


def _subscribe(server: Postgres) -> None:
    table = "CREATE TABLE item (id int PRIMARY KEY)"
    server.execute("postgres", "CREATE DATABASE shop", table, "CREATE PUBLICATION items FOR TABLE item")
    server.execute("postgres", "SELECT pg_create_logical_replication_slot('orders', 'pgoutput')")
    options = "create_slot=false, copy_data=false"
    address = f"host={server.folder} port={_PORT} user=postgres dbname=postgres"
    server.execute(
        "shop", table, f"CREATE SUBSCRIPTION orders CONNECTION '{address}' PUBLICATION items WITH ({options})"
    )


def _diagnose(cli: Cli, server: Postgres) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the faults about workers and the record of one diagnosis."""
    done = cli(["diagnose", "--pid", str(server.pid), "--duration", "1", "--no-save", "--json", "-"], timeout=120)
    assert done.code == 0, done.err
    record = json.loads(done.out)
    return [
        finding
        for finding in record["findings"]
        if finding["rule"] == "restarted_worker" and finding["severity"] == "fault"
    ], record


def test_a_failing_subscription_is_found_and_its_remedy_ends_it(powerprof_cli: Cli, subscriber: Postgres) -> None:
    subscriber.execute("shop", "INSERT INTO item VALUES (1)")
    subscriber.execute("postgres", "INSERT INTO item VALUES (1)")
    wait_until(lambda: subscriber.count_errors() > 2, "subscription")
    errors, began_s = subscriber.count_errors(), time.monotonic()
    faults, record = _diagnose(powerprof_cli, subscriber)
    counted_hz = (subscriber.count_errors() - errors) / (time.monotonic() - began_s)
    oid = subscriber.execute("shop", "SELECT oid FROM pg_subscription")
    fault = faults[0]
    # The server does not know the account of this test.
    assert f"The logical subscription with number {oid} (its name is unknown without a login) fails" in fault["text"]
    # An attempt that meets the former worker's end is no counted error, so there are more starts than errors.
    assert fault["rate_hz"] >= 3
    assert fault["rate_hz"] >= 0.5 * counted_hz
    assert record["evidence"]["subscriptions_after"] is None
    assert not any("launcher" in finding["text"] for finding in record["findings"])

    account = subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
    subscriber.execute("postgres", f'CREATE ROLE "{account}" LOGIN')
    faults, record = _diagnose(powerprof_cli, subscriber)
    fault = faults[0]
    assert fault["text"].startswith("The logical subscription orders fails: its workers start ")
    assert any(line.startswith("pg_stat_subscription_stats: ") for line in fault["evidence"])
    assert "wal_retrieve_retry_interval is 100 ms: the pause between attempts" in fault["evidence"]

    # Both remedies of the finding.
    subscriber.execute("shop", 'ALTER SUBSCRIPTION "orders" SET (disable_on_error = true)')
    wait_until(lambda: subscriber.execute("shop", "SELECT subenabled FROM pg_subscription") == "f", "subscription")
    faults, _ = _diagnose(powerprof_cli, subscriber)
    assert faults == []
    errors = subscriber.count_errors()
    subscriber.execute("shop", 'ALTER SUBSCRIPTION "orders" SET (disable_on_error = false)')
    subscriber.execute("shop", 'ALTER SUBSCRIPTION "orders" ENABLE')
    wait_until(lambda: subscriber.count_errors() > errors + 2, "errors of the enabled subscription")
    subscriber.execute("shop", 'ALTER SUBSCRIPTION "orders" DISABLE')
    faults, _ = _diagnose(powerprof_cli, subscriber)
    assert faults == []
