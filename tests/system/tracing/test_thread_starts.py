# SPDX-License-Identifier: Apache-2.0
"""Threads of a stripped server without performance_schema, the default of Debian's MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from powerprof.cure.records import Cure
from powerprof.cure.threads import find_thread, read_thread_names
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
from powerprof.model.attribution import Attribution
from powerprof.stacks.thread_starts import read_thread_starts
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("root_bpf")
_NAMES = {
    *("thread/mysys/statement_timer", "thread/innodb/page_cleaner_thread", "thread/innodb/thread_pool_thread"),
    *("thread/aria/checkpoint_background", "thread/sql/manager", "thread/sql/signal_handler"),
}


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    with PrivateServer(ServerOptions(settings={"performance-schema": "OFF"})) as server:
        assert server.pid is not None
        yield server.pid


def test_threads_have_the_names_of_performance_schema(pid: int) -> None:
    names = [start.name for start in read_thread_starts(pid).values()]
    assert {name for name in names if name in _NAMES} == _NAMES
    assert len([name for name in names if name in _NAMES - {"thread/innodb/thread_pool_thread"}]) == len(_NAMES) - 1


def test_names_agree_with_performance_schema(pooled_server: Callable[..., PrivateServer]) -> None:
    server = pooled_server()
    assert server.pid is not None
    reported = server.thread_names()
    starts = {tid: start.name for tid, start in read_thread_starts(server.pid).items()}
    known = {tid: name for tid, name in starts.items() if name is not None and name.startswith("thread/")}
    # The server keeps threads of closed connections, which performance_schema has no more.
    assert {name for _, name in known.items() - reported.items()} <= {"thread/sql/one_connection"}
    assert len({name for name in known.values() if name in _NAMES}) >= 4


@pytest.mark.parametrize("word", ["page_cleaner", "statement_timer", "manager", "innodb/page_cleaner_thread"])
def test_a_thread_is_found_by_its_name(pid: int, word: str) -> None:
    assert word in find_thread(pid, word, read_thread_names(pid)).label


def test_cure_and_attribute_name_the_threads(pid: int, powerprof_cli: Cli) -> None:
    words = ["cure", "--pid", str(pid), "--slack", "50us", "--yes", "--no-save", "--meter", "none"]
    result = powerprof_cli([*words, "--thread", "page_cleaner", "--json", "-"], timeout=60)
    assert result.code == 0, result.err
    thread = msgspec.json.decode(result.out, type=Cure).remedy.thread
    assert thread is not None and thread.label == "innodb/page_cleaner_thread"
    refused = powerprof_cli([*words, "--thread", "mariadbd"])
    assert refused.code == 2
    lines = [line for line in refused.err.splitlines() if line.startswith("  ")]
    assert all("wakes" in line or "more" in line or "without" in line for line in lines) and lines
    assert refused.err.endswith("hint: choose one by --thread ID\n")
    assert "performance_schema is off" in refused.err
    unknown = powerprof_cli([*words, "--thread", "1"])
    assert unknown.code == 2
    error, hint = unknown.err.splitlines()
    assert error == f"error: process {pid} has no thread '1'"
    assert hint.startswith("hint: its threads: ") and hint.endswith(f"ps -L -o tid,comm -p {pid} lists all")
    result = powerprof_cli(
        ["attribute", "--max-cost", "none", "--pid", str(pid), "--duration", "1.5", "--no-save", "--json", "-"],
        timeout=60,
    )
    assert result.code == 0, result.err
    record = msgspec.json.decode(result.out, type=Attribution)
    names = {row.thread.server_name for row in record.wakeups}
    names |= {row.thread.server_name for row in record.wakings_without_exit}
    assert "thread/mysys/statement_timer" in names
    assert "performance_schema is off" in result.out
