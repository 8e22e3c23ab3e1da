# SPDX-License-Identifier: Apache-2.0
"""Global variables of a server: set, restored, and moved by others."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database.base import StatementError
from powerprof.reversible import variables
from powerprof.reversible.variables import OtherVariablesMoved, Variable, find_moved_variables
from powerprof.system.errors import PowerprofError, UsageError
from tests.conftest import Tree
from tests.unit.reversible.conftest import VariableServer, thread_files

_VALUES = st.dictionaries(st.sampled_from(["a", "b", "A", "set", "SET", "gtid_x"]), st.sampled_from("012"))


@given(_VALUES, _VALUES)
def test_moved_variables_are_the_others_that_differ(before: dict[str, str], after: dict[str, str]) -> None:
    moved = find_moved_variables(before, after, "Set")
    common = [name for name in before if name in after and name not in ("set", "SET", "gtid_x")]
    assert moved == {name: (before[name], after[name]) for name in common if before[name] != after[name]}
    back = find_moved_variables(after, before, "Set")
    assert back == {name: (now, was) for name, (was, now) in moved.items()}


@pytest.mark.parametrize("name", ["gtid_slave_pos", "wsrep_local_index", "timestamp", "rpl_semi_sync_master_clients"])
def test_variables_of_the_servers_work_have_not_moved(name: str) -> None:
    assert find_moved_variables({name: "1", "x": "1"}, {name: "2", "x": "2"}, "y") == {"x": ("1", "2")}


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
    with pytest.raises(OtherVariablesMoved, match=r"io_capacity_max \(2000 to 6000\) as well") as error:
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
        Variable({}, "x", value).check_type(before)


def test_a_statement_refused_by_an_ended_server_names_the_end(
    server: VariableServer, fake_tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = server.variable("max_connections", "200")

    def lose(*_: object) -> None:
        fake_tree(thread_files(77, 4243))
        raise StatementError("lost", None, 2013)

    monkeypatch.setattr(variables, "_read_value", lose)
    with pytest.raises(PowerprofError, match="the server has ended"):
        setting.read()
