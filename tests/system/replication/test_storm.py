# SPDX-License-Identifier: Apache-2.0
"""A storm that ends is seen, started again, and its share of the time is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.experiment.storm_watch import StormWatch
from powerprof.system.errors import PowerprofError
from powerprof.workloads.definition import Storm

pytestmark = pytest.mark.usefixtures("mariadbd")


class Gusts:
    """A client that asks a hundred times a second until it is told to stop."""

    def __init__(self, server: PrivateServer) -> None:
        self.stop = threading.Event()
        self.asked = 0
        self._server = server
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        with self._server.connect() as connection:
            while not self.stop.wait(0.01):
                sql.fetch_rows(connection, "SELECT 1")
                self.asked += 1

    def end(self) -> None:
        self.stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def server(pooled_server: Callable[..., PrivateServer]) -> PrivateServer:
    """A server without clients."""
    return pooled_server()


def test_a_storm_that_ends_in_the_window(server: PrivateServer) -> None:
    storm = Storm(counter="Com_select", least_hz=20, trigger={"server": ["DO 1"]})
    gusts = Gusts(server)
    with StormWatch(storm, {"server": server}) as watch:
        watch.watch()
        began_s, before = time.monotonic(), gusts.asked
        time.sleep(1.1)
        gusts.end()
        time.sleep(1.5)
        share = watch.finish()
        mean_hz = (gusts.asked - before) / (time.monotonic() - began_s)
    assert share.began
    assert 10 < share.raged_percent < 80  # 1.1 s of 2.6 s, read every 0.5 s
    assert share.restarts_count >= 2
    assert share.counter_hz > 0.5 * mean_hz  # a full host lets the client ask less than a hundred times a second


def test_a_storm_that_does_not_begin_leaves_the_servers_alone(server: PrivateServer) -> None:
    storm = Storm(counter="Com_select", least_hz=20, trigger={"server": ["DO 1"]})
    with StormWatch(storm, {"server": server}) as watch:
        watch.watch()
        time.sleep(0.2)
        share = watch.finish()
    assert (share.began, share.raged_percent, share.restarts_count) == (False, 0.0, 0)


def test_a_trigger_for_an_unknown_server_is_refused(server: PrivateServer) -> None:
    storm = Storm(trigger={"replica-9": ["START SLAVE"]})
    with pytest.raises(PowerprofError, match="replica-9: this server does not exist"):
        StormWatch(storm, {"server": server}).__enter__()
