# SPDX-License-Identifier: Apache-2.0
"""Settings of a real server that are changed for a while: as before, whoever is killed and whenever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from powerprof.database import sql
from powerprof.database.base import Login
from powerprof.database.private_server import PrivateServer
from powerprof.reversible import changed
from powerprof.reversible.changed import ChangedSettings
from powerprof.reversible.kinds import Setting
from powerprof.reversible.session_copies import NewConnections, has_session_copies, is_read_only, kept_text
from powerprof.reversible.variables import Variable
from powerprof.system.errors import PowerprofError

pytestmark = pytest.mark.usefixtures("root", "mariadbd")
# A number, a text with quotes, and a switch, which reads otherwise than it is written.
SETTINGS = {"max_connect_errors": "777", "init_connect": "SET @x = 'a''b'", "log_queries_not_using_indexes": "ON"}
_HOLDER = """
import json, os, sys, time
from powerprof.reversible.changed import ChangedSettings
from powerprof.reversible.variables import Variable
fields = json.loads(sys.stdin.readline())
with ChangedSettings([Variable(fields, *word.split('=', 1), keeps_copies=True) for word in sys.argv[1:]]):
    if os.fork() == 0:  # a child of ours that holds our end of the pipe
        time.sleep(600)
    print("changed", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer() as started:
        yield started


def values(server: PrivateServer) -> list[object]:
    """The settings now."""
    with server.connect() as connection:
        return list(sql.fetch_rows(connection, f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in SETTINGS)}")[0])


BEFORE, MEANWHILE = [100, "", 0], [777, "SET @x = 'a''b'", 1]


def until(condition: Callable[[], bool]) -> bool:
    """Whether it holds within a minute."""
    end_s = time.monotonic() + 60
    while not (held := condition()) and time.monotonic() < end_s:
        time.sleep(0.05)
    return held


def settings(login: Login) -> list[Setting]:
    return [Variable(login.to_fields(), name, value, keeps_copies=True) for name, value in SETTINGS.items()]


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more: an orphan stays listed until init, or a container's first process, waits for it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def keeper_of(pid: int) -> psutil.Process:
    children = [one for one in psutil.Process(pid).children() if not has_ended(one)]
    (keeper,) = [one for one in children if "powerprof.reversible.keeper" in one.cmdline()]
    return keeper


def test_settings_last_as_long_as_the_block(server: PrivateServer) -> None:
    with ChangedSettings(settings(server.login)) as held:
        assert values(server) == MEANWHILE
        keeper = keeper_of(os.getpid())
        assert server.login.password not in " ".join(keeper.cmdline()) + str(keeper.environ())
    assert values(server) == BEFORE
    assert held.notes == []
    assert has_ended(keeper)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_they_are_put_back_where_powerprof_is_killed(server: PrivateServer, ending: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, *(f"{name}={value}" for name, value in SETTINGS.items())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(server.login.to_fields()) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "changed\n"
        assert values(server) == MEANWHILE
        keeper = keeper_of(process.pid)
        children = [one for one in psutil.Process(process.pid).children() if one.pid != keeper.pid]
        # What a terminal or a service manager sends to all of them is not for the keeper.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            keeper.send_signal(number)
        process.send_signal(ending)
        process.wait()
        assert until(lambda: values(server) == BEFORE)
        assert until(lambda: has_ended(keeper))
        for one in children:
            one.kill()


@pytest.mark.parametrize(
    ("wrong", "said"), [(("no_such_variable", "1"), "no_such_variable"), (("version", "1"), "version")]
)
def test_where_one_cannot_be_changed_none_is(server: PrivateServer, wrong: tuple[str, str], said: str) -> None:
    asked = [*settings(server.login), Variable(server.login.to_fields(), *wrong)]
    with pytest.raises(PowerprofError, match=said), ChangedSettings(asked):
        pass
    assert values(server) == BEFORE


def test_an_account_that_may_not_changes_nothing(server: PrivateServer) -> None:
    with server.connect() as connection:
        sql.execute(connection, "CREATE USER looker@localhost IDENTIFIED BY 'two'")
    with (
        pytest.raises(PowerprofError, match="SUPER"),
        ChangedSettings(settings(server.login.with_account("looker", "two"))),
    ):
        pass
    assert values(server) == BEFORE


def test_what_cannot_be_put_back_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "_BACK_S", 0.5)
    with PrivateServer() as lost:
        with ChangedSettings(settings(lost.login)) as held:
            keeper = keeper_of(os.getpid())
            lost.pause()
        lost.resume()
        assert [note.split(" could")[0] for note in held.notes] == list(SETTINGS)
        assert held.notes[0].endswith("to '100': SET GLOBAL max_connect_errors = 100")
        # It goes on without us.
        assert until(lambda: values(lost) == BEFORE)
        keeper.wait(60)


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("innodb_io_capacity", "50000", "innodb_io_capacity_max"),
        ("INNODB_IO_CAPACITY_MAX", "150", "innodb_io_capacity"),
    ],
)
def test_a_value_that_changes_another_variable_for_good_is_refused(
    server: PrivateServer, name: str, value: str, other: str
) -> None:
    query = "SHOW GLOBAL VARIABLES WHERE VARIABLE_NAME <> 'timestamp'"
    with server.connect() as connection:
        before = sql.fetch_rows(connection, query)
        asked = Variable(server.login.to_fields(), name, value)
        with pytest.raises(PowerprofError, match=rf"changes {other} \(.*\) as well"), ChangedSettings([asked]):
            pass
        assert sql.fetch_rows(connection, query) == before


def test_what_somebody_sets_at_once_is_not_taken_for_how_our_value_reads() -> None:
    """Whoever connects next sets 888 where 777 is: it was read back by a connection of its own, and undone as ours."""
    answer = "SET GLOBAL sync_binlog = IF(@@GLOBAL.sync_binlog = 777, 888, @@GLOBAL.sync_binlog)"
    # Of those who may set a variable, the only ones who are not spared it.
    account = ("CREATE USER changes@localhost IDENTIFIED BY 'p'", "GRANT BINLOG ADMIN ON *.* TO changes@localhost")
    with PrivateServer() as server:
        with server.connect() as connection:
            sql.execute(connection, *account)
            sql.fetch_rows(connection, "SET GLOBAL init_connect = %s", (answer,))
        changes = Login(user="changes", password="p", socket=server.login.socket)
        with ChangedSettings([Variable(changes.to_fields(), "sync_binlog", "777")]):
            pass
        with server.connect() as connection:
            assert sql.fetch_scalar(connection, "SELECT @@GLOBAL.sync_binlog") == 888


@pytest.mark.parametrize(
    ("name", "copied"), [("sql_mode", True), ("AUTOCOMMIT", True), ("init_connect", True), ("sync_binlog", False)]
)
def test_a_variable_that_connections_copy_changes_with_consent_only(
    server: PrivateServer, name: str, copied: bool
) -> None:
    with server.connect() as connection:
        assert has_session_copies(connection, name) is copied
        assert [is_read_only(connection, each) for each in (name, "DATADIR", "nosuch")] == [False, True, False]
        value = {"sql_mode": "ANSI", "AUTOCOMMIT": "0", "sync_binlog": "7"}.get(name, "SELECT 1")
        before = sql.fetch_scalar(connection, f"SELECT @@GLOBAL.{name}")
        setting = Variable(server.login.to_fields(), name, value)
        if copied:
            with pytest.raises(PowerprofError, match="new connections copy it"), ChangedSettings([setting]):
                pass
        else:
            with ChangedSettings([setting]):
                assert sql.fetch_scalar(connection, f"SELECT @@GLOBAL.{name}") == 7
        assert sql.fetch_scalar(connection, f"SELECT @@GLOBAL.{name}") == before


def test_connections_that_opened_meanwhile_are_listed_to_those_who_may_see_them(server: PrivateServer) -> None:
    new = NewConnections(server.login)
    with server.connect(), new.counted():
        meanwhile = server.connect()
    with meanwhile, server.connect() as late:
        number = int(sql.fetch_scalar(meanwhile, "SELECT CONNECTION_ID()"))
        assert [one.id for one in new.still_open() or []] == [number]
        assert f": {number} powerprof@localhost" in kept_text("sql_mode", "ANSI", new.still_open())
        sql.execute(late, "CREATE OR REPLACE USER blind@localhost IDENTIFIED BY 'two'")
        blind = NewConnections(server.login.with_account("blind", "two"))
        assert blind.still_open() is None
        assert "cannot list them" in kept_text("sql_mode", "ANSI", None)
    assert until(lambda: new.still_open() == [])
