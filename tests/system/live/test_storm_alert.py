# SPDX-License-Identifier: Apache-2.0
"""A storm from end to end: real servers, the exporter, Prometheus, Alertmanager; and the cure ends the alert."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from powerprof.database import sql
from tests.conftest import Cli
from tests.programs.orphans import ORPHAN_ID, orphan, ring
from tests.system.diagnosis.test_diagnose import account
from tests.system.live.engines import alertmanager, prometheus, wait_for
from tests.system.live.test_export import exporter

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "asks_every_server")


def test_an_orphan_in_a_ring_is_an_alert_until_it_is_cured(powerprof_cli: Cli, tmp_path: Path) -> None:
    with ring() as topology:
        server = topology["node-1"].server
        file = account(server, tmp_path)
        words = ("--interval", "2", "--ask-every", "2", "--defaults-file", str(file), "--pid", str(server.pid))
        with (
            exporter(powerprof_cli, *words) as (exported, _),
            alertmanager(tmp_path) as (port, messages),
            prometheus(tmp_path, [f"127.0.0.1:{exported}"], port) as db,
        ):
            wait_for("the server is seen", lambda: db.value("powerprof_server_up"))
            assert messages.received == []
            orphan(server)
            began = time.monotonic()
            wait_for("the ring's alert", lambda: messages.of("firing", "OrphanRing"))
            # Two intervals and the questions around them, a scrape, an evaluation, a message; and a loaded machine.
            assert time.monotonic() - began < 40
            rows = db.query('topk(3, rate(powerprof_wakeups_total{function!="other"}[1m]))')
            assert rows
            for node in ("node-1", "node-2"):
                with topology[node].server.connect() as connection:
                    sql.execute(
                        connection, "STOP SLAVE", f"CHANGE MASTER TO IGNORE_SERVER_IDS=({ORPHAN_ID})", "START SLAVE"
                    )
            wait_for("the alert is resolved", lambda: messages.of("resolved", "OrphanRing"))
