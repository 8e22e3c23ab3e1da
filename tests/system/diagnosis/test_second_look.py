# SPDX-License-Identifier: Apache-2.0
"""A load that begins or ends between the two windows of `diagnose`: it measures the statements again, for longer."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.announced import Announced

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf", "counts_statements")

_STATEMENT = "SELECT BENCHMARK(100000, SHA2('second look', 256))"


@pytest.mark.parametrize("begins", [True, False], ids=["begins", "ends"])
def test_a_load_that_changes_between_the_windows_is_measured_again(
    powerprof_cli: Cli, pooled_server: Callable[..., PrivateServer], begins: bool
) -> None:
    server = pooled_server()
    running, over = threading.Event(), threading.Event()

    def work() -> None:
        with server.connect() as connection:
            while not over.is_set():
                if running.wait(0.05):
                    sql.fetch_rows(connection, _STATEMENT)

    client = threading.Thread(target=work)
    client.start()
    if not begins:
        running.set()
    try:
        words = ["diagnose", "--pid", str(server.pid), "--duration", "2", "--no-save"]
        diagnosis = Announced(words, powerprof_cli.environment())
        diagnosis.until_window(pattern=re.compile(rb"measuring statements"))
        (running.set if begins else running.clear)()
        done = diagnosis.end()
    finally:
        over.set()
        client.join()
    assert done.code == 0, done.err
    assert "measuring statements again, for longer: the CPU use changed" in done.err
    printed = " ".join(done.out.split())
    assert "BENCHMARK" in printed[:200]
    # The evidence of a load that is over contains both windows.
    both = re.search(r"used ([\d.]+) % of one CPU for [\d.]+ s seen and ([\d.]+) % of one CPU in the 8", printed)
    assert begins or (both is not None and float(both[1]) > 3 > float(both[2])), printed
