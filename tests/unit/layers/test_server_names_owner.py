# SPDX-License-Identifier: Apache-2.0
"""One rule decides whether a program is a database server: every user of the rule agrees about every name."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Sequence

import pytest

from powerprof.cure import remedies
from powerprof.database import local_login, server_process, servers_here
from powerprof.live import monitor
from powerprof.live.servers import WatchedServers
from powerprof.queries import target as queries_target
from powerprof.system import targets
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.processes import label_of
from powerprof.system.server_names import is_mysql_program, is_postgres_program, is_server_program
from powerprof.system.targets import Target
from tests.conftest import Tree
from tests.unit.layers import sources
from tests.unit.system.conftest import add_process

_STEMS = ("mysqld", "mariadbd", "mysql", "mariadb", "postgres", "postmaster", "redis-server")
_ENDS = ("", "-debug", "-max", "-10.6-valgrind", "-safe", "_safe", "-safe-helper", "_multi", "_exporter", "ump")
_PROGRAMS = [stem + end for stem, end in itertools.product(_STEMS, _ENDS)]
_PID = 7
_STATUS = "Name:\tx\nState:\tS (sleeping)\nPPid:\t0\nUid:\t0\t0\t0\t0\n"
_Rule = Callable[[int], bool]


def _succeeds(check: Callable[[int], object]) -> _Rule:
    """Return a function that reports whether `check` raises no error."""

    def is_accepted(pid: int) -> bool:
        try:
            check(pid)
        except PowerprofError:
            return False
        return True

    return is_accepted


def _is_watched(pid: int) -> bool:
    servers = WatchedServers([pid])
    servers._find()
    return list(servers._servers) == [pid]


def _has_statements(pid: int) -> bool:
    try:
        return queries_target.find_server(str(pid), None, None, None).pid == pid
    except UsageError:
        return False


_POSTGRES_USERS: dict[str, _Rule] = {
    "server_process": lambda pid: server_process._is_server(pid, "postgresql"),
    "label": lambda pid: is_postgres_program(label_of(pid)),
}
_MYSQL_USERS: dict[str, _Rule] = {
    "server_process": lambda pid: server_process._is_server(pid, "mysql"),
    "local_login": _succeeds(local_login.require_server_program),
    "label": lambda pid: is_mysql_program(label_of(pid)),
}
_USERS: dict[str, _Rule] = {
    "targets": targets.is_server,
    "list": lambda pid: targets.list_servers() == [pid],
    "rows": lambda pid: bool(servers_here._title(pid, is_trusted=False)),
    "monitor": lambda pid: monitor._find_database_server(Target((pid,), "x")) == pid,
    "queries": _has_statements,
    "watched": _is_watched,
    "label": lambda pid: is_server_program(label_of(pid)),
    "remedies": _succeeds(remedies._family_of),
}


def _find_dissenters(users: dict[str, _Rule], is_server: bool) -> Sequence[str]:
    return [name for name, rule in users.items() if rule(_PID) is not is_server]


@pytest.fixture(autouse=True)
def _target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `queries` take the process: in a made-up /proc no process can be traced."""
    monkeypatch.setattr(queries_target, "resolve_server", lambda *_: Target((_PID,), "x"))


@pytest.mark.parametrize("comm", ["", "mysqld", "postgres", "worker"])
@pytest.mark.parametrize("program", _PROGRAMS)
def test_every_user_agrees_about_a_program(fake_tree: Tree, program: str, comm: str) -> None:
    add_process(fake_tree, _PID, f"/usr/sbin/{program}", comm=comm, files={"cmdline": program, "status": _STATUS})
    assert _find_dissenters(_MYSQL_USERS, is_mysql_program(program)) == []
    assert _find_dissenters(_POSTGRES_USERS, is_postgres_program(program)) == []
    assert _find_dissenters(_USERS, is_server_program(program)) == []


def test_a_program_is_judged_by_its_comm_if_its_link_is_unreadable(fake_tree: Tree) -> None:
    add_process(fake_tree, _PID, "", comm="mariadbd-debug", files={"cmdline": "", "status": _STATUS})
    assert _find_dissenters(_MYSQL_USERS, True) == _find_dissenters(_USERS, True) == []


# The modules that look for a program to start, and need a name of a file.
_STARTING = ("database/mysql.py", "host/program_probes.py", "host/survey.py")


def test_no_other_module_knows_the_names() -> None:
    places = {
        name
        for name, source in sources.modules().items()
        for node in sources.walk(source)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_mysql_program(node.value)
    }
    assert places == {"system/server_names.py", *_STARTING}
