# SPDX-License-Identifier: Apache-2.0
"""From a real fault to a firing alert and back: servers of the host, the exporter, and a Prometheus."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.programs.host_servers import mariadb, postgresql
from tests.system.live.alert_faults import (
    Fault,
    fail_archiving,
    fail_subscription,
    hold_rows,
    kill,
    leak,
    make_subscription,
    poll,
    prove,
    shorten_interval,
    shortened_rules,
    stop,
)
from tests.system.live.engines import wait_for
from tests.system.live.test_export import exporter

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "asks_every_server")
_MARIADB, _POSTGRES = 33992, 33993
_SETTINGS = ("wal_level=logical", "archive_mode=on", "wal_retrieve_retry_interval=200ms")


def test_faults_of_servers_raise_their_alerts_until_they_end(
    powerprof_cli: Cli, server_folder: Path, tmp_path: Path
) -> None:
    with (
        mariadb(server_folder / "m", _MARIADB, "--max-connections=2000") as mine,
        postgresql(server_folder / "p", _POSTGRES, *_SETTINGS) as theirs,
        exporter(powerprof_cli, "--interval", "4", "--ask-every", "4", "--meter", "none") as (port, _),
        shortened_rules(tmp_path, [f"127.0.0.1:{port}"]) as db,
    ):
        make_subscription(theirs, _POSTGRES)
        m, p = f":{_MARIADB}", f":{_POSTGRES}"
        wait_for(
            "both servers are up", lambda: db.value(f'count(powerprof_server_up{{server=~".*({m}|{p})"}} == 1)') == 2
        )
        prove(
            db,
            [
                Fault(["Poller"], m, partial(poll, mine)),
                Fault(["ArchivingFails"], p, partial(fail_archiving, theirs)),
                Fault(["WorkersRestart"], p, partial(fail_subscription, theirs)),
            ],
        )
        # Next to a leak, a poller is not the main consumer.
        prove(
            db,
            [
                Fault(["ConnectionLeak"], m, partial(leak, mine)),
                Fault(["HeldRows"], p, partial(hold_rows, theirs)),
                Fault(["AvoidableWork"], p, partial(shorten_interval, theirs)),
            ],
        )
        prove(
            db,
            [
                Fault(["ServerStopped", "ServerDown"], m, partial(stop, mine)),
                Fault(["ServerDown"], p, partial(kill, theirs)),
            ],
        )
        prove(
            db,
            [
                Fault(["ServerStopped", "ServerDown"], p, partial(stop, theirs)),
                Fault(["ServerDown"], m, partial(kill, mine)),
            ],
        )
        roles = {one["metric"]["server"]: one["metric"]["role"] for one in db.query("powerprof_server_role")}
        assert roles[f"postgres{p}"] in ("primary", "standalone")
        assert db.value(f'increase(powerprof_server_queries_total{{server="postgres{p}"}}[5m])')
