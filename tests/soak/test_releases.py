# SPDX-License-Identifier: Apache-2.0
"""What docs/studies/releases.md says, on a short run of servers that were fetched."""

from __future__ import annotations

import json

import pytest

from powerprof import paths
from tests.conftest import Cli

_QUICK = ["--duration", "2", "--energy-source", "none", "--quiet", "--json", "-"]


def _cache() -> dict[str, str]:
    """Where this host has the servers that were fetched."""
    return {"XDG_CACHE_HOME": str(paths.cache_dir().parent)}


@pytest.mark.soak
@pytest.mark.historical("mysql-9.7", "mariadb-10.11")
def test_an_idle_mysql_9_is_woken_a_hundred_times_a_second_and_mariadb_a_few(powerprof_cli: Cli) -> None:
    servers = "server=mysql-9.7,mariadb-10.11"
    asked = ["sweep", "idle-connections:no-clients", "--set", servers, "--attribute", "4", "--repeat", "3", *_QUICK]
    done = powerprof_cli(asked, _cache(), timeout=600)
    assert done.code == 0, done.err
    mysql, mariadb = json.loads(done.out)["points"]
    governor = next(pace for pace in mysql["paces"] if pace["thread"] == "innodb/log_files_governor_thread")
    assert governor == mysql["paces"][0]
    # It waits for 10 ms at most; on a host without room it comes later.
    assert 60 < governor["wakings"]["mean"] <= 101
    woken = [{one["name"]: one["estimate"]["mean"] for one in point["metrics"]} for point in (mysql, mariadb)]
    assert woken[0]["server_wakings_hz"] > 80
    assert 1 < woken[1]["server_wakings_hz"] < 12


@pytest.mark.soak
@pytest.mark.historical("mysql-9.7", "mysql-5.5.9")
def test_a_transaction_costs_mysql_9_more_cpu_time_than_the_mysql_of_2011(powerprof_cli: Cli) -> None:
    servers = "server=mysql-5.5.9,mysql-9.7"
    asked = ["sweep", "oltp-read-only", "--set", servers, "--rate", "40", "--repeat", "4", *_QUICK]
    done = powerprof_cli(asked, _cache(), timeout=600)
    assert done.code == 0, done.err
    cost = [
        next(one["estimate"] for one in point["metrics"] if one["name"] == "c0_ms_per_query_server")
        for point in json.loads(done.out)["points"]
    ]
    assert cost[1]["mean"] > 1.3 * cost[0]["mean"]
    assert cost[1]["low"] > cost[0]["high"]
