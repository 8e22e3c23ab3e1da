# SPDX-License-Identifier: Apache-2.0
"""Events of a real server that are disabled for a while: as before in everything, whatever they are called."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from powerprof import paths
from powerprof.cure.remedies import _lasting_login
from powerprof.database.clients import sql
from powerprof.database.clients.base import Login
from powerprof.database.private.server import PrivateServer
from powerprof.database.products.options import ServerOptions
from powerprof.errors import PowerprofError
from powerprof.processes.stat import process_stat
from powerprof.reversible.changed import ChangedSettings
from powerprof.reversible.events import DISABLED, ENABLED, Event, quoted
from powerprof.reversible.journal import Held, Journal, put_back_left_behind
from tests.integration.safety.test_reversible import keeper_of, until

pytestmark = pytest.mark.usefixtures("root", "mariadbd")
HOSTILE = ("a`; DROP DATABASE keep; -- x", "e`' ENABLE; DROP EVENT `x\"\\%s\n…é")
PLAIN = ("shop", "refresh")
_MOVES = ("LAST_ALTERED", "LAST_EXECUTED")


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with PrivateServer(ServerOptions(settings={"log-bin": "binlog", "server-id": "7"})) as started:
        yield started


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Folders of root's own instead of the host's: what a boot empties, and what it does not."""
    import shutil
    import tempfile

    place = Path(tempfile.mkdtemp(dir="/run"))
    monkeypatch.setattr(paths, "ROOT_CHANGED", place / "changed")
    monkeypatch.setattr(paths, "ROOT_CHANGED_FOR_GOOD", place / "for-good")
    yield [place / "changed", place / "for-good"]
    shutil.rmtree(place)


def execute(server: PrivateServer, *statements: str) -> None:
    with server.connect() as connection:
        for statement in statements:
            sql.rows(connection, statement)


def make(server: PrivateServer, database: str, event: str) -> None:
    """An event of another definer, made in a session that is unlike ours."""
    execute(
        server,
        "CREATE USER IF NOT EXISTS owner@`10.%` IDENTIFIED BY 'x'",
        f"CREATE OR REPLACE DATABASE {quoted(database)}",
        "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT', time_zone = '+05:00', "
        "collation_connection = utf8mb4_bin",
        f"CREATE DEFINER = owner@`10.%` EVENT {quoted(database)}.{quoted(event)} ON SCHEDULE EVERY 20 SECOND "
        "STARTS '2024-02-29 01:02:03' ON COMPLETION PRESERVE COMMENT 'it''s \"x\"' DO SELECT 'a' || 'b\\'",
    )


def event_row(server: PrivateServer, database: str, event: str) -> dict[str, Any]:
    with server.connect() as connection:
        rows = sql.records(connection, "SELECT * FROM information_schema.events")
    (found,) = [row for row in rows if (row["EVENT_SCHEMA"], row["EVENT_NAME"]) == (database, event)]
    return {name: value for name, value in found.items() if name not in _MOVES}


def log_end(server: PrivateServer) -> object:
    with server.connect() as connection:
        return sql.rows(connection, "SHOW MASTER STATUS", columns=2)[0][1]


@pytest.mark.parametrize(("database", "event"), [PLAIN, HOSTILE], ids=["plain", "hostile"])
def test_an_event_is_disabled_in_the_block_and_as_before_after_it(
    server: PrivateServer, database: str, event: str
) -> None:
    execute(server, "CREATE DATABASE IF NOT EXISTS keep")
    make(server, database, event)
    before, logged = event_row(server, database, event), log_end(server)
    setting = Event.found(server.login, database, event)
    assert setting.definer == ("owner", "10.%")
    with ChangedSettings([setting]) as held:
        assert event_row(server, database, event) == before | {"STATUS": DISABLED}
        assert held.since == [DISABLED]
    assert held.notes == []
    assert event_row(server, database, event) == before
    assert log_end(server) == logged, "nothing of it is replicated"
    with server.connect() as connection:
        assert sql.rows(connection, "SHOW DATABASES LIKE 'keep'")
    # What a person is told to type leaves it to its definer, and out of the binary log.
    if (database, event) == PLAIN:
        execute(server, *setting.by_hand(DISABLED).split("; ", 1))
        after = event_row(server, database, event)
        assert (after["STATUS"], after["DEFINER"], log_end(server)) == (DISABLED, before["DEFINER"], logged)
    execute(server, f"DROP DATABASE {quoted(database)}")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ALTER DEFINER = owner@`10.%` EVENT shop.refresh ON SCHEDULE AT NOW() + INTERVAL 1 YEAR", "once only"),
        ("ALTER EVENT shop.refresh ON SCHEDULE EVERY 1 SECOND ENDS NOW() + INTERVAL 1 HOUR", "ends within two days"),
        ("ALTER DATABASE shop COLLATE latin1_bin", "collation of its schema"),
        ("ALTER EVENT shop.refresh DISABLE ON SLAVE", "SLAVESIDE_DISABLED"),
        ("DROP EVENT shop.refresh", "there is no event"),
        ("SET GLOBAL server_id = 8", "was made on server 7"),
    ],
)
def test_one_that_would_not_be_as_before_is_refused(server: PrivateServer, statement: str, said: str) -> None:
    make(server, *PLAIN)
    execute(server, statement)
    try:
        with pytest.raises(PowerprofError, match=said):
            Event.found(server.login, *PLAIN)
    finally:
        execute(server, "SET GLOBAL server_id = 7")


@pytest.mark.parametrize("grant", ["SELECT ON *.*", "EVENT ON shop.*"])
def test_an_account_that_may_not_changes_nothing(server: PrivateServer, grant: str) -> None:
    make(server, *PLAIN)
    before = event_row(server, *PLAIN)
    execute(server, "CREATE OR REPLACE USER looker@localhost IDENTIFIED BY 'two'", f"GRANT {grant} TO looker@localhost")
    with pytest.raises(PowerprofError) as refused:  # noqa: SIM117
        with ChangedSettings([Event.found(server.login.of("looker", "two"), *PLAIN)]):
            pass
    assert "denied" in refused.value.message
    assert event_row(server, *PLAIN) == before


def test_one_that_cannot_be_seen_any_more_is_not_taken_for_gone(server: PrivateServer) -> None:
    make(server, *PLAIN)
    execute(server, "CREATE OR REPLACE USER admin@localhost IDENTIFIED BY 'two'", "GRANT ALL ON *.* TO admin@localhost")
    setting = Event.found(server.login.of("admin", "two"), *PLAIN)
    assert setting.read() == ENABLED
    execute(server, "REVOKE EVENT ON *.* FROM admin@localhost")
    with pytest.raises(PowerprofError, match="denied"):
        setting.read()
    execute(server, "GRANT EVENT ON *.* TO admin@localhost", "DROP EVENT shop.refresh")
    assert setting.read() is None
    execute(server, "DROP DATABASE shop")
    assert setting.read() is None


def test_what_somebody_else_drops_or_enables_meanwhile_stays(server: PrivateServer) -> None:
    make(server, *PLAIN)
    with ChangedSettings([Event.found(server.login, *PLAIN)]) as held:
        execute(server, "DROP EVENT shop.refresh")
    assert held.notes == []
    make(server, *PLAIN)
    with ChangedSettings([Event.found(server.login, *PLAIN)]) as held:
        execute(server, "ALTER EVENT shop.refresh ENABLE")
    assert held.notes == []
    assert event_row(server, *PLAIN)["STATUS"] == ENABLED


def held(server: PrivateServer, setting: Event) -> Held:
    stat = process_stat(server.pid)
    assert stat is not None
    return Held(setting, ENABLED, server.pid, stat.started_ticks)


def restarted(server: PrivateServer) -> None:
    """Another process with the same data."""
    old = server.pid
    os.kill(old, signal.SIGKILL)
    assert server._process is not None
    server._process.wait()
    (server.directory / "init.sql").touch(mode=0o644)  # its accounts are made
    server._launch()
    server.wait_ready()
    assert server.pid != old


def test_it_is_put_back_in_a_server_that_was_restarted_meanwhile(server: PrivateServer) -> None:
    make(server, *PLAIN)
    before = event_row(server, *PLAIN)
    setting = Event.found(_lasting_login(server.login, server.pid), *PLAIN)
    with ChangedSettings([setting]) as changed:
        assert event_row(server, *PLAIN)["STATUS"] == DISABLED
        restarted(server)
        assert event_row(server, *PLAIN)["STATUS"] == DISABLED, "an event outlasts its server"
    assert changed.notes == []
    assert event_row(server, *PLAIN) == before


def test_the_next_start_puts_back_what_both_left_also_after_a_restart(
    server: PrivateServer, folders: list[Path]
) -> None:
    make(server, *PLAIN)
    before = event_row(server, *PLAIN)
    execute(server, "CREATE OR REPLACE USER free@localhost", "GRANT ALL ON *.* TO free@localhost")
    login = _lasting_login(server.login.of("free", ""), server.pid)
    if (pid := os.fork()) == 0:
        try:
            setting = Event.found(login, *PLAIN)
            journal = Journal([held(server, setting)])
            journal._open()
            changed = ChangedSettings([setting], journal)
            changed._open()
            keeper = keeper_of(os.getpid())
            os.kill(keeper.pid, signal.SIGKILL)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert event_row(server, *PLAIN)["STATUS"] == DISABLED
    restarted(server)
    assert not folders[0].exists(), "a boot empties that one"
    assert len(os.listdir(folders[1])) == 1
    (said,) = put_back_left_behind()
    assert said.startswith("event `shop`.`refresh` is ENABLED again")
    assert until(lambda: event_row(server, *PLAIN) == before)
    assert os.listdir(folders[1]) == []


def test_another_server_at_that_address_is_not_touched(server: PrivateServer, folders: list[Path]) -> None:
    make(server, *PLAIN)
    setting = Event.found(server.login, *PLAIN)
    with PrivateServer(ServerOptions(settings={"server-id": "7"})) as other:
        make(other, *PLAIN)
        execute(other, "ALTER EVENT shop.refresh DISABLE")
        there = Event(other.login.fields(), *PLAIN, DISABLED, setting.datadir, setting.definer)
        with pytest.raises(PowerprofError, match="another server listens"):
            there.write(ENABLED)
        assert event_row(other, *PLAIN)["STATUS"] == DISABLED


def test_the_login_of_an_event_leads_to_the_next_process_of_its_server(server: PrivateServer) -> None:
    socket = server.login.socket
    assert socket is not None
    entered = Login(user="u", socket=Path(f"/proc/{server.pid}/root{socket}"), pid=server.pid)
    lasting = _lasting_login(entered, server.pid)
    assert (lasting.socket, lasting.pid, lasting.user) == (socket, None, "u")
