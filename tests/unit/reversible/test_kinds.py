# SPDX-License-Identifier: Apache-2.0
"""Global variables and timer slack: present values, changes, and what a change leaves in connections."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.reversible import kinds
from powerprof.reversible.host_settings import HostFile
from powerprof.system.errors import PowerprofError, UsageError
from tests.conftest import Tree
from tests.programs.answers import Answers
from tests.unit.reversible.conftest import VariableServer, thread_files


def test_slack_is_that_of_the_same_thread(fake_tree: Tree) -> None:
    host = fake_tree({**thread_files(77), **thread_files(78, 4243)})
    setting, other = kinds.TimerSlack(77, 4242, "60000"), kinds.TimerSlack(78, 4242, "60000")
    assert setting.read() == "50000"
    assert setting.write("60000") == "60000"
    assert (host / "proc/77/timerslack_ns").read_text() == "60000"
    assert other.read() is None and other.write("60000") is None
    assert (host / "proc/78/timerslack_ns").read_text() == "50000"
    assert kinds.TimerSlack(79, 4242, "1").write("1") is None
    assert setting.by_hand("7") == "echo 7 > /proc/77/timerslack_ns"


@pytest.mark.parametrize(("flags", "ticks"), [(0, 4242), (0x40, 4242), (0x400000, 4242), (0x4, None), (0x404, None)])
def test_an_exiting_thread_has_ended(fake_tree: Tree, flags: int, ticks: int | None) -> None:
    fake_tree(thread_files(77, flags=flags))
    assert kinds.read_start_ticks(77) == ticks
    assert kinds.read_start_ticks(78) is None


def _file(tmp_path: Path, text: str, value: str = "new") -> tuple[HostFile, Path]:
    place = tmp_path / "setting"
    place.write_text(text)
    return HostFile("a setting", str(place), value), place


@pytest.mark.parametrize(
    ("now", "since", "after"),
    [
        ("new", "new", "old"),
        ("new", None, "old"),
        ("rounded", "rounded", "old"),
        ("other", "new", "other"),
        ("NEW", None, "old"),
        ("other", None, "other"),
        ("old", "new", "old"),
    ],
)
def test_a_change_is_reverted_unless_somebody_else_changed_it(
    tmp_path: Path, now: str, since: str | None, after: str
) -> None:
    setting, place = _file(tmp_path, now)
    place.chmod(0o600)
    kinds.AppliedChange(setting, "old", since).put_back()
    assert place.read_text() == after


def test_a_value_that_was_never_read_is_ours_unless_it_is_a_file(fake_tree: Tree) -> None:
    host = fake_tree(thread_files(77, slack="60001"))
    kinds.AppliedChange(kinds.TimerSlack(77, 4242, "60000"), "50000").put_back()
    assert (host / "proc/77/timerslack_ns").read_text() == "50000", "the kernel may round"


def test_a_value_that_does_not_return_is_an_error(server: VariableServer) -> None:
    server.values["max_connections"] = "200"
    server.moves["max_connections", "151"] = {"max_connections": "160"}
    with pytest.raises(PowerprofError, match="max_connections is 160 still"):
        kinds.AppliedChange(server.variable("max_connections", "200"), "151", "200").put_back()


def test_a_setting_that_has_ended_needs_no_restoration(fake_tree: Tree) -> None:
    fake_tree(thread_files(78, 4243))
    kinds.AppliedChange(kinds.TimerSlack(78, 4242, "60000"), "1", "60000").put_back()
    kinds.AppliedChange(kinds.TimerSlack(79, 4242, "60000"), "1", "60000").put_back()


_VALUES = st.dictionaries(st.sampled_from(["a", "b", "A", "set", "SET", "gtid_x"]), st.sampled_from("012"))


@given(_VALUES, _VALUES)
def test_moved_variables_are_the_others_that_differ(before: dict[str, str], after: dict[str, str]) -> None:
    moved = kinds.find_moved_variables(before, after, "Set")
    common = [name for name in before if name in after and name not in ("set", "SET", "gtid_x")]
    assert moved == {name: (before[name], after[name]) for name in common if before[name] != after[name]}
    back = kinds.find_moved_variables(after, before, "Set")
    assert back == {name: (now, was) for name, (was, now) in moved.items()}


@pytest.mark.parametrize("name", ["gtid_slave_pos", "wsrep_local_index", "timestamp", "rpl_semi_sync_master_clients"])
def test_variables_of_the_servers_work_have_not_moved(name: str) -> None:
    assert kinds.find_moved_variables({name: "1", "x": "1"}, {name: "2", "x": "2"}, "y") == {"x": ("1", "2")}


def test_a_variable_is_set_and_read(server: VariableServer) -> None:
    setting = server.variable("max_connections", "200")
    assert setting.read() == "151"
    assert setting.write("200") == "200"
    assert setting.write("151") == "151"
    flush = server.variable("flush", "ON")
    assert flush.write("ON") == "1"
    assert "SET GLOBAL flush = 'ON'" in server.connection.sent
    assert "SET GLOBAL max_connections = 200" in server.connection.sent
    assert (setting.by_hand("-1.5"), setting.by_hand("ON")) == (
        "SET GLOBAL max_connections = -1.5",
        "SET GLOBAL max_connections = 'ON'",
    )
    with pytest.raises(UsageError, match="not the name of a variable"):
        server.variable("x; DROP", "1").read()


@pytest.mark.parametrize(("pid", "ticks", "runs"), [(77, 4242, True), (77, 4243, False), (79, 4242, False)])
def test_a_variable_ends_with_its_server(server: VariableServer, pid: int, ticks: int, runs: bool) -> None:
    setting = server.variable("sync_binlog", "7", pid=pid, started_ticks=ticks)
    assert setting.read() == ("1" if runs else None)
    assert setting.write("7") == ("7" if runs else None)
    assert setting.moved_since({"flush": "9"}) == ({"flush": ("9", "0")} if runs else {})
    assert server.values["sync_binlog"] == ("7" if runs else "1")


def test_a_server_of_another_host_has_no_process(server: VariableServer) -> None:
    setting = server.variable("sync_binlog", "7", pid=None)
    assert (setting.read(), setting.write("7")) == ("1", "7")


def test_a_variable_that_stays_in_connections_needs_consent(server: VariableServer) -> None:
    server.session.add("long_query_time")
    with pytest.raises(UsageError, match="new connections copy it"):
        server.variable("long_query_time", "3").write("3")
    assert server.values["long_query_time"] == "10.000000"
    assert server.variable("long_query_time", "3", keeps_copies=True).write("3") == "3"


def test_other_variables_that_stay_changed_refuse_the_change(server: VariableServer) -> None:
    server.values |= {"io_capacity": "200", "io_capacity_max": "2000", "fixed": "1"}
    server.moves["io_capacity", "3000"] = {"io_capacity_max": "6000", "fixed": "2"}
    server.refused.add("fixed")
    with pytest.raises(kinds.OtherVariablesMoved, match=r"io_capacity_max \(2000 to 6000\) as well") as error:
        server.variable("io_capacity", "3000").write("3000")
    assert (error.value.name, error.value.moved) == ("io_capacity", {"io_capacity_max": "6000"})
    assert (server.values["io_capacity"], server.values["io_capacity_max"]) == ("200", "2000")


def test_an_alias_that_returns_is_no_other_variable(server: VariableServer) -> None:
    server.values |= {"new_name": "5", "old_name": "5"}
    server.moves = {("new_name", "7"): {"old_name": "7"}, ("new_name", "5"): {"old_name": "5"}}
    assert server.variable("new_name", "7").write("7") == "7"
    assert server.values["old_name"] == "7"


@pytest.mark.parametrize(
    ("before", "value", "refused"),
    [
        ("151", "200", False),
        ("151", "-1", False),
        ("10.000000", "2.5", False),
        ("151", "many", True),
        ("151", "ON", True),
        ("1", "off", False),
        ("0", "TRUE", False),
        ("1", "maybe", True),
        ("ON", "maybe", False),
        ("-1", "x", True),
    ],
)
def test_a_number_is_set_to_a_number(before: str, value: str, refused: bool) -> None:
    with pytest.raises(UsageError, match="is a number") if refused else nullcontext():
        kinds.Variable({}, "x", value).check_type(before)


def test_session_scope_and_write_protection_are_the_servers_words() -> None:
    assert kinds.has_session_copies(Answers({"@@SESSION.x": [("1",)]}), "x")
    assert not kinds.has_session_copies(Answers({"@@SESSION": StatementError("global", None, 1238)}), "x")
    assert kinds.has_session_copies(Answers({"@@SESSION": StatementError("global", None, 1238)}), "Init_Connect")
    with pytest.raises(StatementError, match="lost"):
        kinds.has_session_copies(Answers({"@@SESSION": StatementError("lost", None, 2013)}), "x")
    assert kinds.is_read_only(Answers({"read_only": [("YES",)]}), "x")
    assert not kinds.is_read_only(Answers({"read_only": [("NO",)]}), "x")
    assert not kinds.is_read_only(Answers({}), "x")
    assert not kinds.is_read_only(Answers({"read_only": StatementError("no table", None, 1109)}), "x")


def _connections(monkeypatch: pytest.MonkeyPatch, numbers: list[Any], answers: dict[str, Any]) -> kinds.NewConnections:
    """Return the connections of a server that numbers its own ones so; an error instead of a number ends it."""

    def number(*_: object) -> list[tuple[Any]]:
        following = numbers.pop(0)
        if isinstance(following, Exception):
            raise following
        return [(following,)]

    connection = Answers({"CONNECTION_ID": number, **answers})
    monkeypatch.setattr(sql, "connect", lambda *_, **__: nullcontext(connection))
    return kinds.NewConnections(Login(user="u"))


_LISTED = [{"ID": number, "USER": f"u{number}", "HOST": "h"} for number in (40, 15, 10, 11, 20, 30, 31)]


def test_connections_between_the_numbers_of_a_change_opened_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    new = _connections(monkeypatch, [10, "20", 30, 40], {"PROCESSLIST": _LISTED})
    for _ in range(2):
        with new.counted():
            pass
    opened = new.still_open()
    assert opened == [kinds.OpenConnection(number, f"u{number}", "h") for number in (11, 15, 31)]


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
    text = kinds.kept_text("x", "7", [kinds.OpenConnection(number, "u", "h") for number in range(100, 100 + count)])
    assert text.startswith(start) and ("more" in text) == bool(more) and more in text
    assert text.count("u@h") == min(count, 20)
    assert kinds.kept_text("x", "7", []) == ""
    assert "it needs the right PROCESS" in kinds.kept_text("x", "7", None)


def test_a_statement_refused_by_an_ended_server_names_the_end(
    server: VariableServer, fake_tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = server.variable("max_connections", "200")

    def lose(*_: object) -> None:
        fake_tree(thread_files(77, 4243))
        raise StatementError("lost", None, 2013)

    monkeypatch.setattr(kinds, "_read_value", lose)
    with pytest.raises(PowerprofError, match="the server has ended"):
        setting.read()
