# SPDX-License-Identifier: Apache-2.0
"""Connections that keep a copy of a variable."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.reversible.session_copies import (
    NewConnections,
    OpenConnection,
    has_session_copies,
    is_read_only,
    kept_text,
)
from powerprof.system.errors import PowerprofError
from tests.programs.answers import Answers


def test_session_scope_and_write_protection_are_the_servers_words() -> None:
    assert has_session_copies(Answers({"@@SESSION.x": [("1",)]}), "x")
    assert not has_session_copies(Answers({"@@SESSION": StatementError("global", None, 1238)}), "x")
    assert has_session_copies(Answers({"@@SESSION": StatementError("global", None, 1238)}), "Init_Connect")
    with pytest.raises(StatementError, match="lost"):
        has_session_copies(Answers({"@@SESSION": StatementError("lost", None, 2013)}), "x")
    assert is_read_only(Answers({"read_only": [("YES",)]}), "x")
    assert not is_read_only(Answers({"read_only": [("NO",)]}), "x")
    assert not is_read_only(Answers({}), "x")
    assert not is_read_only(Answers({"read_only": StatementError("no table", None, 1109)}), "x")


def _connections(monkeypatch: pytest.MonkeyPatch, numbers: list[Any], answers: dict[str, Any]) -> NewConnections:
    """Return the connections of a server that numbers its own ones so; an error instead of a number ends it."""

    def number(*_: object) -> list[tuple[Any]]:
        following = numbers.pop(0)
        if isinstance(following, Exception):
            raise following
        return [(following,)]

    connection = Answers({"CONNECTION_ID": number, **answers})
    monkeypatch.setattr(sql, "connect", lambda *_, **__: nullcontext(connection))
    return NewConnections(Login(user="u"))


_LISTED = [{"ID": number, "USER": f"u{number}", "HOST": "h"} for number in (40, 15, 10, 11, 20, 30, 31)]


def test_connections_between_the_numbers_of_a_change_opened_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    new = _connections(monkeypatch, [10, "20", 30, 40], {"PROCESSLIST": _LISTED})
    for _ in range(2):
        with new.counted():
            pass
    opened = new.still_open()
    assert opened == [OpenConnection(number, f"u{number}", "h") for number in (11, 15, 31)]


def test_connections_after_an_unknown_end_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    new = _connections(monkeypatch, [12, StatementError("it is full", None, 1040)], {"PROCESSLIST": _LISTED})
    with new.counted():
        pass
    assert [each.id for each in new.still_open() or []] == [15, 20, 30, 31, 40]
    ended = _connections(monkeypatch, [StatementError("it has ended", None, 2013)], {})
    with pytest.raises(PowerprofError, match="it has ended"), ended.counted():
        pass


def test_connections_that_an_account_may_not_see_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = {"InnoDB MUTEX": StatementError("denied", None, 1227), "PROCESSLIST": _LISTED}
    assert _connections(monkeypatch, [], denied).still_open() is None
    lost = {"InnoDB MUTEX": StatementError("lost", None, 2013)}
    with pytest.raises(StatementError, match="lost"):
        _connections(monkeypatch, [], lost).still_open()


@pytest.mark.parametrize(
    ("count", "start", "more"),
    [
        (1, "1 open connection ", ""),
        (20, "20 open connections ", ""),
        (21, "21 ", "and 1 more;"),
        (27, "27 ", "and 7 more;"),
    ],
)
def test_twenty_connections_are_listed(count: int, start: str, more: str) -> None:
    text = kept_text("x", "7", [OpenConnection(number, "u", "h") for number in range(100, 100 + count)])
    assert text.startswith(start) and ("more" in text) == bool(more) and more in text
    assert text.count("u@h") == min(count, 20)
    assert kept_text("x", "7", []) == ""
    assert "it needs the right PROCESS" in kept_text("x", "7", None)
