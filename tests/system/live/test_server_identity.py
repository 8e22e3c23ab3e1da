# SPDX-License-Identifier: Apache-2.0
"""Two servers with one port in two network namespaces: two series of everything."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.programs.host_servers import mariadb
from tests.system.live.engines import wait_for
from tests.system.live.test_export import Samples, exporter, scrape

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "asks_every_server")
_PORT = 33991


def by_server(samples: Samples, name: str, **labels: str) -> dict[str, float]:
    """Return the values of the servers of this test by the label `server`."""
    return {
        dict(key)["server"]: value
        for (own, key), value in samples.items()
        if own == name and f":{_PORT}" in dict(key)["server"] and labels.items() <= dict(key).items()
    }


def test_servers_with_one_port_in_two_network_namespaces_are_two(powerprof_cli: Cli, server_folder: Path) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(mariadb(server_folder / name, _PORT, own_network=True)) for name in ("one", "two")
        ]
        port, _ = stack.enter_context(exporter(powerprof_cli, "--interval", "1", "--ask-every", "1"))

        def up(*values: float) -> dict[str, float] | None:
            found = by_server(scrape(port), "powerprof_server_up")
            return found if sorted(found.values()) == sorted(values) else None

        names = wait_for("both are up", lambda: up(1.0, 1.0))
        assert len(names) == 2
        assert [name.partition("@")[0] for name in names] == [f"mariadbd:{_PORT}"] * 2, names
        servers[0].signal(signal.SIGSTOP)
        stopped = wait_for("the stopped one is down", lambda: up(0.0, 1.0))
        found = by_server(scrape(port), "powerprof_finding", rule="stopped_server")
        assert found == {name: 1.0 for name, value in stopped.items() if value == 0.0}
        servers[1].signal(signal.SIGSTOP)
        wait_for("both are down", lambda: up(0.0, 0.0))
        assert set(by_server(scrape(port), "powerprof_finding", rule="stopped_server")) == set(names)
        for server in servers:
            server.signal(signal.SIGCONT)
        wait_for("both are up again", lambda: up(1.0, 1.0))
        servers[0].end()
        assert wait_for("the killed one is down", lambda: up(0.0, 1.0)).keys() == names.keys()
        servers[0].start()
        wait_for("it is up again", lambda: up(1.0, 1.0) or up(0.0, 1.0, 1.0))
