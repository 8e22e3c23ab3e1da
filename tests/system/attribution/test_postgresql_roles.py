# SPDX-License-Identifier: Apache-2.0
"""Roles of PostgreSQL's processes in the rows of the server and of the whole host."""

from __future__ import annotations

import json

import pytest

from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.waiting import wait_until
from tests.programs.working_client import working

pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.mark.parametrize("is_host", [True, False])
def test_rows_have_the_roles_of_processes(powerprof_cli: Cli, postgresql_server: PrivateServer, is_host: bool) -> None:
    server = postgresql_server
    target = ["--system"] if is_host else ["--pid", str(server.pid)]
    words = [
        "attribute",
        *target,
        "--duration",
        "1",
        "--max-cost",
        "100%",
        "--meter",
        "none",
        "--no-save",
        "--json",
        "-",
    ]

    def read_names() -> set[str]:
        """Return the names of the server's processes in a window."""
        result = powerprof_cli(words, timeout=120)
        assert result.code == 0, result.err
        roles, record = server.thread_names(), json.loads(result.out)
        threads = [row["thread"] for row in record["wakeups"] + record["wakings_without_exit"]]
        found = {thread["pid"]: thread["server_name"] for thread in threads if thread["pid"] in roles}
        assert found == {pid: roles[pid] for pid in found}
        return set(found.values())

    # On a busy host a process can sleep through a window, or be one of many in a row of the rest.
    with working(server, 0.005):
        expected = f"backend of postgres for {server.login.user}"
        wait_until(lambda: expected in read_names(), f"no row of a {expected}")
