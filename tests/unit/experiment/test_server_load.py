# SPDX-License-Identifier: Apache-2.0
"""The requests to a given PostgreSQL, by the wake-ups of its clients' processes."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.experiment import server_load
from powerprof.experiment.server_load import LoadMeter

_TITLES = {
    7: "postgres: walwriter",
    8: "postgres: app shop [local] idle",
    9: "postgres: app shop 10.0.0.7(5541) SELECT",
    10: "postgres: powerprof postgres [local] SELECT",
    11: "postgres: app shop [local] idle",
}


@pytest.mark.parametrize("pid", [5, None])
def test_requests_are_the_growth_of_each_client_but_this_one(monkeypatch: pytest.MonkeyPatch, pid: int | None) -> None:
    """Client 9 leaves, and 11 comes: its whole count is new. Without a process the server's transactions are read."""
    woken = [{7: 100, 8: 10, 9: 50, 10: 3}] * 3 + [{7: 200, 8: 17, 10: 90, 11: 4}]
    transactions = [1_000, 1_000, 1_000, 1_033]
    looks = iter(range(4))
    look = 0

    def fetch(connection: Any, statement: str, columns: int) -> list[tuple[str, str, str]]:
        nonlocal look
        look = next(looks)
        return [(str(transactions[look]), "2", "10")]

    monkeypatch.setattr(server_load.sql, "fetch_rows", fetch)
    monkeypatch.setattr(server_load, "read_titles", lambda pids: {one: _TITLES[one] for one in pids})
    monkeypatch.setattr(server_load, "read_switches", lambda one: {one: woken[look][one]})
    server = SimpleNamespace(
        pid=pid,
        connect=lambda limits: nullcontext(SimpleNamespace(family="postgresql")),
        list_processes=lambda: list(woken[look]),
    )
    meter = LoadMeter(server)  # type: ignore[arg-type]
    meter.add(2.0)
    assert meter.statements_hz == pytest.approx((7 + 4) / 2 if pid else 33 / 2)
