# SPDX-License-Identifier: Apache-2.0
"""The command `queries` on a stripped MariaDB: what it says and saves, and that the server outlives it."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from powerprof.database.private_server import PrivateServer
from powerprof.database.runtree import RunTree
from powerprof.workloads.reading import read_workload
from tests.conftest import Cli
from tests.system.queries.mariadb_work import BURN, BURN_TEXT, asking, execute, prepare, server_status

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "counts_statements")
_PERFORMANCE_SCHEMA_OFF = {"performance_schema": "OFF"}


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer(settings=_PERFORMANCE_SCHEMA_OFF) as started:
        yield started


def test_the_command_says_that_it_adds_up(powerprof_cli: Cli, server: PrivateServer) -> None:
    with asking(server, BURN.format(20_000), pause_s=0.002):
        result = powerprof_cli(
            ["queries", "--socket", str(server.socket), "--duration", "1", "--no-save", "--json", "-"]
        )
    assert result.code == 0, result.err
    found = json.loads(result.out)
    first = found["statements"][0]
    assert first["text"] == BURN_TEXT
    parts = sum(one["c0_s"] for one in [*found["statements"], *found["background"]]) + found["other_c0_s"]
    assert parts == pytest.approx(found["server_c0_s"], rel=1e-9)
    assert abs(found["residual_c0_s"]) <= max(0.01 * found["server_c0_s"], 0.002)
    if found["joules"] is not None:
        joules = sum(one["joules"] for one in [*found["statements"], *found["background"], found["connections"]])
        assert joules == pytest.approx(found["joules"], rel=0.02)
        assert first["kind"] in ("measured", "estimated")


def test_slices_stand_for_the_statements_of_a_window(powerprof_cli: Cli, server: PrivateServer) -> None:
    """A client executes three statements as often as each other; together they cost more than the bound."""
    texts = "SELECT 1", "SELECT 2 + 2", "SELECT 'x' LIKE 'y'"
    with asking(server, *texts), asking(server, *texts), server.connect() as connection:
        before = server_status(connection, "Questions")
        words = ["--method", "probes", "--max-cost", "0.2%", "--duration", "6", "--no-save", "--json", "-"]
        result = powerprof_cli(["queries", "--socket", str(server.socket), *words])
        after = server_status(connection, "Questions")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    slicing = found["slicing"]
    assert 0 < slicing["traced_percent"] < 90
    assert slicing["calls_by"] in ("server", "cpu") and found["tool"]["max_cost_percent"] == 0.2
    # Most statements were executed before and after the window, while powerprof started and ended.
    assert 1000 < found["calls_count"] <= 1.1 * (after - before)
    calls = [one["calls_count"] for one in found["statements"] if one["text"] in ("SELECT ?", "SELECT ? + ?")]
    assert len(calls) == 2 and max(calls) < 1.2 * min(calls)
    parts = sum(one["c0_s"] for one in [*found["statements"], *found["background"]]) + found["other_c0_s"]
    assert parts == pytest.approx(found["server_c0_s"], rel=1e-9)
    for one in found["statements"]:
        assert one["low_percent"] <= one["c0_percent"] * 1.001 and one["c0_percent"] <= one["high_percent"] * 1.001


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_survives_every_ending_of_ours(
    server: PrivateServer, ending: signal.Signals, tmp_path: Path
) -> None:
    command = [str(Path(sys.executable).with_name("powerprof")), "queries", "--pid", str(server.pid)]
    terminal, side = os.openpty()
    process = subprocess.Popen(
        [*command, "--duration", "60", "--no-save"],
        stdout=subprocess.PIPE,
        stderr=side,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    os.close(side)
    with server.connect() as connection, connection.cursor() as cursor:
        said = b""
        while b"tracing the statements" not in said:
            said += os.read(terminal, 1000)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            cursor.execute("SELECT 1")
            time.sleep(0.01)
        process.send_signal(ending)
        out, _ = process.communicate(timeout=60)
        for _ in range(100):
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)
    os.close(terminal)
    if ending != signal.SIGKILL:
        assert process.returncode == 130
        assert b"Interrupted" in out
    server.check()


def test_plans_and_a_workload_are_made_of_what_clients_sent(
    powerprof_cli: Cli, server: PrivateServer, tmp_path: Path
) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS q")
        cursor.execute("CREATE TABLE IF NOT EXISTS q.t (id INT PRIMARY KEY, n INT)")
        cursor.execute("REPLACE INTO q.t SELECT seq, seq % 97 FROM q.seq_1_to_2000")
    folder = tmp_path / "by-n"
    options = ["--explain", "--save-workload", str(folder), "--duration", "1", "--no-save", "--json", "-"]
    with asking(server, "SELECT COUNT(*) FROM t WHERE n = 42", database="q"):
        asked = powerprof_cli(["queries", "--socket", str(server.socket), *options])
        found = powerprof_cli(["queries", "--socket", str(server.socket), *options, "--yes"])
    assert (asked.code, "confirmation needs a terminal" in asked.err) == (2, True)
    assert found.code == 0, found.err
    first = json.loads(found.out)["statements"][0]
    assert (first["text"], first["schema_name"]) == ("SELECT COUNT(*) FROM t WHERE n = ?", "q")
    assert (first["plan"][0]["table"], first["plan"][0]["access"]) == ("t", "ALL")
    assert "n = 42" not in found.out
    workload = read_workload(folder)
    assert workload.definition.load.sql == ["SELECT COUNT(*) FROM t WHERE n = 42"]
    assert workload.definition.load.database == "q"


def test_a_prepared_statement_has_the_reason_why_it_has_no_plan(
    powerprof_cli: Cli, server: PrivateServer, tmp_path: Path
) -> None:
    """It is not explained with other values. Its own value, of ten digits that no figure contains, is in no output."""
    value = 2_042_424_242
    folder, stop = tmp_path / "prepared", threading.Event()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS q")
        cursor.execute("CREATE TABLE IF NOT EXISTS q.p (id INT PRIMARY KEY, n INT)")
        cursor.execute("REPLACE INTO q.p SELECT seq, seq % 97 FROM q.seq_1_to_2000")

    def client() -> None:
        with server.connect(database="q") as connection:
            while not stop.is_set():
                execute(connection, prepare(connection, "SELECT COUNT(*) FROM p WHERE n = ?"), value)

    worker = threading.Thread(target=client)
    worker.start()
    try:
        with asking(server, "SELECT COUNT(*) FROM p WHERE id > 4343", database="q"):
            options = ["--explain", "--save-workload", str(folder), "--yes", "--duration", "1", "--json", "-"]
            found = powerprof_cli(["queries", "--socket", str(server.socket), *options])
    finally:
        stop.set()
        worker.join()
    assert found.code == 0, found.err
    record = json.loads(found.out)
    by_text = {one["text"]: one for one in record["statements"]}
    prepared = by_text["SELECT COUNT(*) FROM p WHERE n = ?"]
    assert prepared["plan"] == []
    assert by_text["SELECT COUNT(*) FROM p WHERE id > ?"]["plan"]
    (note,) = [note for note in record["notes"] if "its values are not in its text" in note]
    assert f"#{prepared['id']}" in note
    text = (folder / "workload.toml").read_text(encoding="utf-8")
    assert "# left out: SELECT COUNT(*) FROM p WHERE n = ? (#" in text
    assert str(value) not in found.out + text


def test_stacks_are_told_by_statement(powerprof_cli: Cli, server: PrivateServer, tmp_path: Path) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS q")
    page = tmp_path / "page.html"
    statements = BURN.format(50_000), "SELECT COUNT(*) FROM q.seq_1_to_200000 WHERE seq % 7 = 3"
    sampled: list[dict[str, Any]] = []
    with asking(server, *statements):
        # On a busy host the statements have little CPU time: the window is longer if it has too few samples.
        for duration in ("2", "8", "30"):
            words = ["queries", "--socket", str(server.socket), "--stacks", "--duration", duration, "-o", str(page)]
            words += ["--max-cost", "none"]
            result = powerprof_cli([*words, "--no-save", "--meter", "none", "--json", "-"])
            assert result.code == 0, result.err
            rows = json.loads(result.out)["statements"]
            sampled = [next(row for row in rows if name in row["text"]) for name in ("BENCHMARK", "COUNT")]
            if all(row["c0_s"] > 0.3 for row in sampled):
                break
    benchmark, scan = sampled
    for row, function, other in ((benchmark, "Item_func_sha2", "Item_func_mod"), (scan, "Item_func_mod", "func_sha2")):
        # 99 samples a second of CPU time, with the scatter of a count: a busy host leaves little time to a statement.
        count, expected = sum(stack["count"] for stack in row["stacks"]), 99 * row["c0_s"]
        assert count == pytest.approx(expected, rel=0.2, abs=5 * math.sqrt(expected))
        labels = [" ".join(stack["frames"]) for stack in row["stacks"]]
        assert any(function in one for one in labels), (row["c0_s"], count, labels[:12])
        assert not any(other in one for one in labels)
    assert page.read_text().count('class="flame"') >= 2


def test_watch_goes_on_when_the_server_comes_back(powerprof_cli: Cli, tmp_path: Path) -> None:
    with ExitStack() as stack:
        tree = stack.enter_context(RunTree())
        watched = stack.enter_context(PrivateServer(tree=tree, settings=_PERFORMANCE_SCHEMA_OFF))
        words = ["queries", "--socket", str(watched.socket), "--watch", "--json-lines", "--duration", "0.5"]
        process = powerprof_cli.start([*words, "--meter", "none"])
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)  # it would wait for the server for ever

        def window_with(text: str) -> dict[str, Any]:
            """The first window in which clients were seen; each beginning is a statement of theirs."""
            assert process.stdout is not None
            for _ in range(60):
                time.sleep(0.3)  # what comes right after a line may lie between two windows
                with watched.connect() as connection, connection.cursor() as cursor:
                    cursor.execute(text)
                record = json.loads(process.stdout.readline())
                if any("answer" in one["text"] for one in record["statements"]):
                    return record
            raise AssertionError("no window with a statement of ours")

        first = window_with("SELECT 42 AS answer")
        watched.stop()
        shutil.rmtree(watched.directory)
        watched.start()
        watched.wait_ready()
        second = window_with("SELECT 43 AS answer")
        assert first["server"]["pid"] != second["server"]["pid"] == watched.pid
        for record in (first, second):
            parts = sum(one["c0_s"] for one in [*record["statements"], *record["background"]])
            assert parts + record["other_c0_s"] == pytest.approx(record["server_c0_s"], abs=1e-9)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
    # Windows are printed, and none is saved.
    assert json.loads(powerprof_cli(["runs", "--json", "-"]).out)["runs"] == []
