# SPDX-License-Identifier: Apache-2.0
"""Windows of `queries` on one unchanged server under one mixed load: no comparison of two has a verdict.

    .venv/bin/python -m pytest -m nightly -s tests/nightly/test_equal_windows.py

Twelve windows of 4 s make 66 comparisons per server. POWERPROF_WINDOWS: another number of windows. `-s` prints them.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import catalogue, sql
from powerprof.database.private_server import PrivateServer
from powerprof.energy.request import NO_METER
from powerprof.experiment.load import Context
from powerprof.experiment.sysbench import write_config
from powerprof.measure.clock import format_now
from powerprof.queries import session
from powerprof.queries.comparison import compare_queries, is_common_change, judge_change
from powerprof.queries.records import Queries
from powerprof.system.errors import CapabilityError
from powerprof.workloads.definition import Load

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "sysbench")
_WINDOWS, _WINDOW_S, _WARM_UP_S = int(os.environ.get("POWERPROF_WINDOWS", "12")), 4.0, 3.0
# By chance fewer calls than this are hardly halved.
_FEWEST_CALLS = 40
# Of three servers with 66 comparisons each, as few as of 70 comparisons.
_MOST_SHARE = 2 / 70
_LOADS = ("oltp_read_write", "select_random_ranges", "oltp_update_non_index")
_TABLES = ("--tables=2", "--table-size=5000")


def _build(name: str) -> Mapping[str, Any]:
    if name != "mysql-9.7":
        return {"family": name}
    try:
        return {"build": catalogue.load_build(name)}
    except CapabilityError as error:
        pytest.skip(f"no capability: {error.message}")


@contextmanager
def _mixed_load(server: PrivateServer, folder: Path) -> Iterator[None]:
    """Run three of sysbench's loads at a low rate, each on its own tables."""
    login = server.login.in_database("mixed" if server.login.family == "postgresql" else None)
    clients = []
    try:
        for name in _LOADS:
            database = f"mixed_{name}"
            with server.connect() as connection:
                sql.execute(connection, f"CREATE DATABASE {database}")
            config = folder / name
            config.write_text(write_config(Load(database=database), Context(server, login, folder)))
            words = ["sysbench", f"--config-file={config}", *_TABLES, name]
            subprocess.run([*words, "prepare"], check=True, stdout=subprocess.DEVNULL)
            how = ("--threads=2", "--rate=25", "--time=0", "run")
            clients.append(subprocess.Popen([*words, *how], stdout=subprocess.DEVNULL))
        time.sleep(_WARM_UP_S)
        yield
        assert all(client.poll() is None for client in clients)
    finally:
        for client in clients:
            client.kill()
            client.wait()


def _measure_windows(server: PrivateServer, method: str) -> list[Queries]:
    request = session.QueriesRequest(pid=str(server.pid), method=method, duration_s=_WINDOW_S, energy=NO_METER)
    return [session.run(request, lambda _: None, lambda _: None).record for _ in range(_WINDOWS)]


def _leave_out_stalls(windows: list[Queries]) -> list[Queries]:
    """Return the windows with the whole load: a client that stalled on a busy host is another mix of statements."""
    calls = [{one.text: one.calls_count or 0 for one in window.statements} for window in windows]
    usual = {text: statistics.median(each.get(text, 0) for each in calls) for text in calls[0]}
    usual = {text: count for text, count in usual.items() if count >= _FEWEST_CALLS}
    whole = [
        window
        for window, each in zip(windows, calls, strict=True)
        if all(each.get(text, 0) > count / 2 for text, count in usual.items())
    ]
    assert len(whole) >= 0.7 * len(windows), "the host is too busy for a steady load"
    return whole


@pytest.mark.parametrize("method", ["probes", "samples"])
@pytest.mark.parametrize("name", ["mysql", "mysql-9.7", "postgresql"])
def test_two_windows_of_an_unchanged_server_have_no_verdict(name: str, method: str, tmp_path: Path) -> None:
    with PrivateServer(**_build(name)) as server, _mixed_load(server, tmp_path):
        windows = _leave_out_stalls(_measure_windows(server, method))
    wrong, common = [], 0
    for (first, a), (second, b) in itertools.combinations(enumerate(windows), 2):
        compared = compare_queries(a, b, format_now())
        common += is_common_change(compared)
        for change in compared.statements:
            verdict = judge_change(compared, change)
            if verdict in ("more expensive", "cheaper"):
                wrong.append((first, second, verdict, round(change.ratio or 0.0, 2), str(change.text)))
    comparisons = len({pair[:2] for pair in wrong})
    total = len(windows) * (len(windows) - 1) // 2
    statements = sum(len(each.statements) for each in windows) / len(windows)
    print(
        f"\n{name}, {method}: {comparisons} of {total} comparisons have a false verdict, {common} a common change; "
        f"{statements:.0f} statements, load {os.getloadavg()[0]:.1f}"
    )
    for each in wrong:
        print(each)
    assert comparisons <= _MOST_SHARE * total, wrong
