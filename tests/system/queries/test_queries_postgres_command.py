# SPDX-License-Identifier: Apache-2.0
"""The command `queries` on a stripped PostgreSQL: what it says, and that the server outlives it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import datetime

import pytest

from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.system.queries.postgres_work import BURN_TEXT, DATABASE, busy, client, run, shop

pytestmark = pytest.mark.usefixtures("root_bpf", "counts_statements")


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with shop() as started:
        yield started


def test_the_command_says_that_it_adds_up_whichever_process_is_named(powerprof_cli: Cli, server: PrivateServer) -> None:
    with busy(server) as backend:
        words = ["queries", "--pid", str(backend), "--duration", "1", "--no-save", "--json", "-"]
        result = powerprof_cli(words)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert (found["server"]["pid"], found["server"]["family"]) == (server.pid, "postgresql")
    assert found["server"]["version"] == server.version
    first = found["statements"][0]
    assert (first["text"], first["schema_name"]) == (BURN_TEXT, DATABASE)
    parts = sum(one["c0_s"] for one in [*found["statements"], *found["background"]]) + found["other_c0_s"]
    assert parts == pytest.approx(found["server_c0_s"], rel=1e-9)
    assert abs(found["residual_c0_s"]) <= max(0.01 * found["server_c0_s"], 0.002)
    assert "backend of" not in result.out
    assert any("PostgreSQL was not queried" in note for note in found["notes"])


def test_windows_follow_each_other_and_stacks_are_told_by_statement(powerprof_cli: Cli, server: PrivateServer) -> None:
    with busy(server):
        words = ["queries", "--pid", str(server.pid), "--duration", "1", "--meter", "none"]
        watched = powerprof_cli([*words, "--watch", "--json-lines", "--count", "2"])
        sampled = powerprof_cli([*words, "--stacks", "--no-save", "--json", "-"])
    assert watched.code == 0, watched.err
    windows = [json.loads(line) for line in watched.out.splitlines()]
    assert [window["statements"][0]["calls_count"] > 10 for window in windows] == [True, True]
    assert windows[0]["gap_before_s"] is None
    # Reading tables takes some 10 ms; a full host can make more than a second of it.
    starts = [datetime.fromisoformat(window["started_at"]) for window in windows]
    between_s = (starts[1] - starts[0]).total_seconds() - windows[0]["window_s"]
    assert 0 < windows[1]["gap_before_s"] == pytest.approx(between_s, abs=0.1)
    assert sampled.code == 0, sampled.err
    first = json.loads(sampled.out)["statements"][0]
    assert any(
        "ExecAgg" in " ".join(stack["frames"])
        or "agg_" in " ".join(stack["frames"])
        or "PortalRun" in " ".join(stack["frames"])
        for stack in first["stacks"]
    )


def test_the_server_survives_our_kill(powerprof_cli: Cli, server: PrivateServer) -> None:
    with busy(server):
        process = powerprof_cli.start(
            ["queries", "--pid", str(server.pid), "--watch", "--json-lines", "--duration", "0.3"]
        )
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["statements"]
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    with client(server) as handle:
        assert run(handle, "SELECT 1") == b"1"
    server.check()
