# SPDX-License-Identifier: Apache-2.0
"""The times at which the servers of a host are queried."""

from __future__ import annotations

import pytest

from powerprof.live.servers import WatchedServers


def looks(
    servers: WatchedServers, monkeypatch: pytest.MonkeyPatch, hurried: list[bool], *, every_s: float = 5.0
) -> int:
    """How many windows of so many seconds, one after the other, begin with a look."""
    found: list[float] = []
    at_s = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: at_s[0])
    monkeypatch.setattr(servers, "_find", lambda: found.append(at_s[0]))
    for hurry in hurried:
        servers.begin_window()
        at_s[0] += 5.0
        if hurry:
            servers.query_early()
    return len(found)


def test_servers_are_queried_once_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(WatchedServers(None, 60.0), monkeypatch, [False] * 120) == 10


def test_an_early_query_is_made_at_the_next_window(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(WatchedServers(None, 60.0), monkeypatch, [True, False, False]) == 2


def test_early_queries_are_bounded_by_the_regular_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    # In ten minutes: three saved early queries, and one for each regular query.
    assert looks(WatchedServers(None, 60.0), monkeypatch, [True] * 120) <= 3 + 2 * 10
