# SPDX-License-Identifier: Apache-2.0
"""How far a replica is behind in both arms of a cure: healthy, held up, stopped, and where there is no source."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.cure.records import Cure
from powerprof.cure.remedies import CureRequest
from powerprof.cure.replicas import COMMITTED, OWN_STATEMENTS, RECEIVED, ReplicaLag, ReplicaSampler
from powerprof.database import sql
from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
from powerprof.database.topology import ServerTopology
from powerprof.experiment.claims import metric_named
from powerprof.measure.window import run_window
from powerprof.model.runs import decode_record
from tests.conftest import Cli, each_release
from tests.system.cure.test_cure import options_of

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "counts_statements")
_HELD_S = 4.0
_STOP, _START = ("STOP SLAVE SQL_THREAD", "STOP REPLICA SQL_THREAD"), ("START SLAVE", "START REPLICA")


@contextmanager
def written(build: ServerBuild | None) -> Iterator[PrivateServer]:
    """A replica whose source is written to some thirty times a second."""
    options = ServerOptions(build=build)
    with ServerTopology("primary-replica", 2, options=options) as topology:
        ended = threading.Event()
        writer = threading.Thread(target=_write, args=(topology["primary"].server, ended))
        writer.start()
        try:
            yield topology["replica-1"].server
        finally:
            ended.set()
            writer.join()


def _write(source: PrivateServer, ended: threading.Event) -> None:
    with source.connect() as connection:
        sql.execute(connection, "CREATE DATABASE w", "CREATE TABLE w.t (n INT)")
        while not ended.wait(0.03):
            sql.execute(connection, "INSERT INTO w.t VALUES (1)")


def looked(server: PrivateServer, options: Path, length_s: float) -> ReplicaLag:
    request = CureRequest(
        pid=str(server.pid), choice=None, pairs=3, window_s=length_s, seed=1, defaults_file=options
    )  # fmt: skip
    with ReplicaSampler(server.pid, request) as replica:
        assert replica.unavailable is None
        assert replica.own_tid is not None
        assert (Path(f"/proc/{server.pid}/task") / str(replica.own_tid)).is_dir()
        run_window(length_s, *replica.parts)
        found = replica.collect()
    assert found is not None
    return found


def _first(server: PrivateServer, statements: tuple[str, ...]) -> None:
    with server.connect() as connection:
        sql.run_first_known(lambda statement: sql.fetch_rows(connection, statement), *statements)


@contextmanager
def logged(server: PrivateServer) -> Iterator[list[str]]:
    """Yield a list that then holds the statements of all clients except powerprof, by the server's general log."""
    found: list[str] = []
    with server.connect() as connection:
        sql.execute(connection, "SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON")
        try:
            yield found
        finally:
            sql.execute(connection, "SET GLOBAL general_log = OFF")
        rows = sql.fetch_rows(
            connection,
            "SELECT thread_id, argument FROM mysql.general_log WHERE command_type IN ('Query', 'Execute') "
            "AND thread_id <> CONNECTION_ID()",
        )
    statements: dict[str, list[str]] = {}
    for thread, text in rows:
        statements.setdefault(str(thread), []).append(str(text))
    assert any(map(_is_powerprof, statements.values())), statements
    found += [text for texts in statements.values() if not _is_powerprof(texts) for text in texts]


def _is_powerprof(statements: list[str]) -> bool:
    """Return whether a connection is that of the sampler or changes the setting."""
    return any(OWN_STATEMENTS.match(text.encode()) or "max_connect_errors" in text for text in statements)


def replicas_are_measured(server: PrivateServer, options: Path, source: str) -> None:
    healthy = looked(server, options, 3.0)
    assert healthy.looks_count >= 8
    assert healthy.stopped_count == 0
    assert healthy.lag_s is not None
    assert healthy.lag_s < 1.5
    assert healthy.delay_source == source
    assert healthy.delay_ms is not None
    with server.connect() as held:
        sql.execute(held, "FLUSH TABLES WITH READ LOCK")
        time.sleep(_HELD_S)
        behind = looked(server, options, 2.0)
        sql.execute(held, "UNLOCK TABLES")
    # What it holds up waits as long as it is held up; the reported seconds are whole.
    assert behind.lag_s is not None
    assert behind.lag_s >= _HELD_S - 1.5
    assert behind.backlog_bytes is not None
    assert behind.backlog_bytes > 50 * 30 * _HELD_S
    _first(server, _STOP)
    stopped = looked(server, options, 1.0)
    assert stopped.stopped_count == stopped.looks_count
    assert stopped.lag_s is None
    assert stopped.delay_ms is None
    _first(server, _START)


def test_a_replica_is_measured_in_both_arms(powerprof_cli: Cli, tmp_path: Path) -> None:
    with written(None) as server:
        options = options_of(server, tmp_path)
        replicas_are_measured(server, options, RECEIVED)
        words = ["cure", "--pid", str(server.pid), "--defaults-file", str(options), "--set", "max_connect_errors=101"]
        words += ["--duration", "1", "--pairs", "3", "--yes", "--meter", "none"]
        with logged(server) as others:
            result = powerprof_cli([*words, "--json", str(tmp_path / "a.json"), "-o", str(tmp_path / "a.html")])
        assert result.code == 0, result.err
        record = decode_record(tmp_path / "a.json", Cure)
        for name in ("replica_lag_s", "replica_backlog_bytes", "replica_delay_ms"):
            metric = metric_named(record.metrics, name)
            assert metric is not None, name
            assert metric.a.mean is not None
            assert metric.b.mean is not None
            assert metric.difference.ci95 is not None
        # Own statements are not those of clients. Another program that logs in here is a client.
        assert sum(block.statements_count or 0 for block in record.blocks) <= len(others), others
        said = " ".join(result.out.split())
        assert "Replication lag: by the replica's own report, in " in said
        assert "seconds behind" in said
        assert "replica's delay, ms" in said
        assert "<b>Replication lag:</b> by the replica" in (tmp_path / "a.html").read_text()
        _first(server, _STOP)
        result = powerprof_cli([*words, "--json", str(tmp_path / "b.json")])
        assert result.code == 0, result.err
        record = decode_record(tmp_path / "b.json", Cure)
        assert metric_named(record.metrics, "replica_lag_s") is None
        assert "of them its SQL thread was stopped" in " ".join(result.out.split())
        _first(server, _START)


@pytest.mark.nightly
@each_release("mysql-9.7", "mariadb-11.8")
def test_replicas_of_other_releases_are_measured(historical_build: ServerBuild, tmp_path: Path) -> None:
    source = COMMITTED if historical_build.family == "mysql" else RECEIVED
    with written(historical_build) as server:
        replicas_are_measured(server, options_of(server, tmp_path), source)
