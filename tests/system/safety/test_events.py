# SPDX-License-Identifier: Apache-2.0
"""Events of a real server that are disabled for a while: as before in everything, whatever they are called."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from powerprof.cure.remedies import lasting_login
from powerprof.database import sandbox, sql
from powerprof.database.base import Login
from powerprof.database.preparation import ServerOptions
from powerprof.database.private_server import PrivateServer
from powerprof.reversible.changed import ChangedSettings
from powerprof.reversible.events import DISABLED, ENABLED, Event, quote_name
from powerprof.reversible.journal import Journal, SavedSetting, restore_orphaned_settings
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.process_stat import read_process_stat
from tests.system.errors.hostile_server import handshake
from tests.system.safety.conftest import Attacker
from tests.system.safety.test_reversible import keeper_of, until

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
            sql.fetch_rows(connection, statement)


def make(server: PrivateServer, database: str, event: str) -> None:
    """An event of another definer, made in a session that is unlike ours."""
    execute(
        server,
        "CREATE USER IF NOT EXISTS owner@`10.%` IDENTIFIED BY 'x'",
        f"CREATE OR REPLACE DATABASE {quote_name(database)}",
        "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT', time_zone = '+05:00', "
        "collation_connection = utf8mb4_bin",
        f"CREATE DEFINER = owner@`10.%` EVENT {quote_name(database)}.{quote_name(event)} ON SCHEDULE EVERY 20 SECOND "
        "STARTS '2024-02-29 01:02:03' ON COMPLETION PRESERVE COMMENT 'it''s \"x\"' DO SELECT 'a' || 'b\\'",
    )


def event_row(server: PrivateServer, database: str, event: str) -> dict[str, Any]:
    with server.connect() as connection:
        rows = sql.fetch_records(connection, "SELECT * FROM information_schema.events")
    (found,) = [row for row in rows if (row["EVENT_SCHEMA"], row["EVENT_NAME"]) == (database, event)]
    return {name: value for name, value in found.items() if name not in _MOVES}


def log_end(server: PrivateServer) -> object:
    with server.connect() as connection:
        return sql.fetch_rows(connection, "SHOW MASTER STATUS", columns=2)[0][1]


@pytest.mark.parametrize(("database", "event"), [PLAIN, HOSTILE], ids=["plain", "hostile"])
def test_an_event_is_disabled_in_the_block_and_as_before_after_it(
    server: PrivateServer, database: str, event: str
) -> None:
    execute(server, "CREATE DATABASE IF NOT EXISTS keep")
    make(server, database, event)
    before, logged = event_row(server, database, event), log_end(server)
    setting = Event.find(server.login, database, event)
    assert setting.parts["definer"] == "`owner`@`10.%`"
    with ChangedSettings([setting]) as held:
        assert event_row(server, database, event) == before | {"STATUS": DISABLED}
        assert held.since == [DISABLED]
    assert held.notes == []
    assert event_row(server, database, event) == before
    assert log_end(server) == logged, "nothing of it is replicated"
    with server.connect() as connection:
        assert sql.fetch_rows(connection, "SHOW DATABASES LIKE 'keep'")
    # What a person is told to type leaves it to its definer, and out of the binary log.
    if (database, event) == PLAIN:
        typed = setting.by_hand(DISABLED).split("; ", 1)
        with pytest.raises(PowerprofError, match="syntax"):
            execute(server, *typed)  # without a look at the body
        assert event_row(server, database, event) == before
        execute(server, typed[0], typed[1].partition(" BODY")[0] + " SELECT 'a' || 'b\\'")
        after = event_row(server, database, event)
        assert (after["STATUS"], after["DEFINER"], log_end(server)) == (DISABLED, before["DEFINER"], logged)
    execute(server, f"DROP DATABASE {quote_name(database)}")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ALTER EVENT shop.refresh ON SCHEDULE EVERY 1 SECOND ENDS NOW() + INTERVAL 1 HOUR", "ends within two days"),
        ("ALTER DATABASE shop COLLATE latin1_bin", "collation of its schema"),
        ("ALTER EVENT shop.refresh DISABLE ON SLAVE", "SLAVESIDE_DISABLED"),
        ("SET GLOBAL server_id = 8", "was made on server 7"),
    ],
)
def test_one_that_would_not_be_as_before_is_refused(server: PrivateServer, statement: str, said: str) -> None:
    make(server, *PLAIN)
    execute(server, statement)
    try:
        with pytest.raises(PowerprofError, match=said):
            Event.find(server.login, *PLAIN)
    finally:
        execute(server, "SET GLOBAL server_id = 7")


@pytest.mark.parametrize("grant", ["SELECT ON *.*", "EVENT ON shop.*"])
def test_an_account_that_may_not_changes_nothing(server: PrivateServer, grant: str) -> None:
    make(server, *PLAIN)
    before = event_row(server, *PLAIN)
    execute(server, "CREATE OR REPLACE USER looker@localhost IDENTIFIED BY 'two'", f"GRANT {grant} TO looker@localhost")
    with pytest.raises(PowerprofError) as refused:  # noqa: SIM117
        with ChangedSettings([Event.find(server.login.with_account("looker", "two"), *PLAIN)]):
            pass
    assert "denied" in refused.value.message
    assert event_row(server, *PLAIN) == before


def test_one_that_cannot_be_seen_any_more_is_not_taken_for_gone(server: PrivateServer) -> None:
    make(server, *PLAIN)
    execute(server, "CREATE OR REPLACE USER admin@localhost IDENTIFIED BY 'two'", "GRANT ALL ON *.* TO admin@localhost")
    setting = Event.find(server.login.with_account("admin", "two"), *PLAIN)
    assert setting.read() == ENABLED
    execute(server, "REVOKE EVENT ON *.* FROM admin@localhost")
    with pytest.raises(PowerprofError, match="denied"):
        setting.read()
    execute(server, "GRANT EVENT ON *.* TO admin@localhost", "DROP EVENT shop.refresh")
    assert setting.read() is None
    execute(server, "DROP DATABASE shop")
    assert setting.read() is None


def held(server: PrivateServer, setting: Event) -> SavedSetting:
    stat = read_process_stat(server.pid)
    return SavedSetting(setting, ENABLED, server.pid, stat.started_ticks)


def restarted(server: PrivateServer) -> None:
    """Another process with the same data."""
    old = server.pid
    os.kill(old, signal.SIGKILL)
    server._process.wait()
    (server.directory / "init.sql").touch(mode=0o644)  # its accounts are made
    server._launch()
    server.wait_ready()
    assert server.pid != old


def test_it_is_put_back_in_a_server_that_was_restarted_meanwhile(server: PrivateServer) -> None:
    make(server, *PLAIN)
    before = event_row(server, *PLAIN)
    setting = Event.find(lasting_login(server.login, server.pid), *PLAIN)
    with ChangedSettings([setting]) as changed:
        assert event_row(server, *PLAIN)["STATUS"] == DISABLED
        restarted(server)
        assert event_row(server, *PLAIN)["STATUS"] == DISABLED, "an event outlasts its server"
    assert changed.notes == []
    assert event_row(server, *PLAIN) == before


def killed_with_its_keeper(server: PrivateServer, setting: Event) -> None:
    """A powerprof that has the event disabled."""
    if (pid := os.fork()) == 0:
        try:
            journal = Journal([held(server, setting)])
            journal._open()
            ChangedSettings([setting], journal)._open()
            os.kill(keeper_of(os.getpid()).pid, signal.SIGKILL)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_next_start_puts_back_what_both_left_also_after_a_restart(
    server: PrivateServer, folders: list[Path]
) -> None:
    make(server, *PLAIN)
    before = event_row(server, *PLAIN)
    execute(server, "CREATE OR REPLACE USER free@localhost", "GRANT ALL ON *.* TO free@localhost")
    killed_with_its_keeper(server, Event.find(lasting_login(server.login.with_account("free", ""), server.pid), *PLAIN))
    assert event_row(server, *PLAIN)["STATUS"] == DISABLED
    restarted(server)
    assert not folders[0].exists(), "a boot empties that one"
    assert len(os.listdir(folders[1])) == 1
    (said,) = restore_orphaned_settings()
    assert said.startswith("event `shop`.`refresh` is ENABLED again")
    assert until(lambda: event_row(server, *PLAIN) == before)
    assert os.listdir(folders[1]) == []


EVES = "GRANT ALL PRIVILEGES ON *.* TO eve@localhost WITH GRANT OPTION"


@pytest.fixture
def eve(server: PrivateServer) -> Login:
    """An account with all rights on its schema, EVENT among them, and none elsewhere."""
    make(server, *PLAIN)
    execute(
        server,
        "CREATE OR REPLACE USER eve@localhost IDENTIFIED BY 'two'",
        "GRANT ALL PRIVILEGES ON shop.* TO eve@localhost",
        "ALTER DEFINER = powerprof@localhost EVENT shop.refresh ON SCHEDULE EVERY 1 HOUR DO SELECT 1",
    )
    return server.login.with_account("eve", "two")


@pytest.mark.parametrize("moment", [DISABLED, ENABLED])
def test_a_body_that_is_exchanged_between_look_and_write_never_gets_the_definer(
    server: PrivateServer, eve: Login, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eve alters the event when the owner of the rule has looked at it, and before it writes."""
    looked = Event._find_obstacle

    def exchanging(event: Event, *seen: Any) -> str | None:
        reason = looked(event, *seen)
        with sql.connect(eve) as connection:
            sql.fetch_rows(connection, f"ALTER EVENT shop.refresh DO {EVES}")
        return reason

    setting = Event.find(server.login, *PLAIN)
    for value in (DISABLED, ENABLED):
        with monkeypatch.context() as patched:
            if value == moment:
                patched.setattr(Event, "_find_obstacle", exchanging)
            with suppress(PowerprofError):  # that it is another now may be reported
                setting.write(value)
        row = event_row(server, *PLAIN)
        owned = (row["DEFINER"], row["EVENT_DEFINITION"])
        assert owned in (("powerprof@localhost", "SELECT 1"), ("eve@localhost", EVES)), owned


def test_one_that_is_altered_while_it_is_disabled_stays_disabled_with_a_message(
    server: PrivateServer, eve: Login
) -> None:
    began_s = time.monotonic()
    with ChangedSettings([Event.find(server.login, *PLAIN)]) as changed, sql.connect(eve) as connection:
        sql.fetch_rows(connection, f"ALTER EVENT shop.refresh DO {EVES}")
    (note,) = changed.notes
    assert "has another definer, body" in note
    assert "so it is left DISABLED" in note
    assert note.endswith("DO BODY, with the BODY that you have checked in SHOW CREATE EVENT `shop`.`refresh`")
    assert EVES not in note
    row = event_row(server, *PLAIN)
    assert (row["STATUS"], row["DEFINER"]) == (DISABLED, "eve@localhost")
    assert time.monotonic() - began_s < 40, "it does not try on for a minute"


def test_the_next_start_does_not_enable_one_that_was_altered(
    server: PrivateServer, eve: Login, folders: list[Path]
) -> None:
    execute(server, "CREATE OR REPLACE USER free@localhost", "GRANT ALL ON *.* TO free@localhost")
    setting = Event.find(lasting_login(server.login.with_account("free", ""), server.pid), *PLAIN)
    killed_with_its_keeper(server, setting)
    with sql.connect(eve) as connection:
        sql.fetch_rows(connection, f"ALTER EVENT shop.refresh DO {EVES}")
    (said,) = restore_orphaned_settings()
    (name,) = os.listdir(folders[1])
    assert "has another definer, body" in said
    assert said.endswith(f"then remove {folders[1] / name}")
    assert EVES not in (folders[1] / name).read_text()
    assert event_row(server, *PLAIN)["STATUS"] == DISABLED
    execute(server, "DROP EVENT shop.refresh")
    assert restore_orphaned_settings() == []
    assert os.listdir(folders[1]) == []


@pytest.mark.parametrize("gone", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_the_next_start_sends_no_password_to_another_account_at_that_address(
    server: PrivateServer, folders: list[Path], attacker: Attacker, family: socket.AddressFamily, gone: bool
) -> None:
    (heard, hears), (ready, says) = os.pipe(), os.pipe()
    place = attacker.home / "mysqld.sock"

    def listen() -> None:
        signal.alarm(60)
        with socket.socket(family) as listener:
            listener.bind(("127.0.0.1", 0) if family == socket.AF_INET else str(place))
            listener.listen()
            os.write(says, str(listener.getsockname()[1]).encode())
            channel, _ = listener.accept()
            length = b"%c\0\0\0" % len(handshake("mysql_native_password"))
            channel.sendall(length + handshake("mysql_native_password"))
            os.write(hears, channel.recv(4096))

    make(server, *PLAIN)
    pid = attacker._fork(listen)
    os.close(hears)
    port = os.read(ready, 100)
    where = {"socket": str(place)} if family == socket.AF_UNIX else {"socket": None, "port": int(port)}
    setting = Event.find(lasting_login(server.login, server.pid), *PLAIN)
    setting = msgspec.structs.replace(setting, login={**setting.login, "host": "127.0.0.1", **where})
    if gone:  # The one that is found instead has the same account and program.
        setting = msgspec.structs.replace(setting, process=msgspec.structs.replace(setting.process, started_ticks=1))
    options = folders[0].parent / "my.cnf"
    options.touch(mode=0o600)
    options.write_text("[client]\nuser=root\npassword=secret-word\n")
    if (killed := os.fork()) == 0:
        try:
            Journal([msgspec.structs.replace(held(server, setting), options=str(options))])._open()
        finally:
            os._exit(9)
    os.waitpid(killed, 0)
    (said,) = restore_orphaned_settings()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(heard, "rb") as file:
        assert file.read() == b""
    assert "what it is now cannot be read" in said
    # It ends after the first connection, which tells it nothing.
    assert re.search(f"account 65534 answers there, not that|process {pid} listens there, not|refused", said)


def test_an_event_of_a_server_that_is_reached_by_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server of this test listens at the host's own address.
    monkeypatch.setattr(sandbox, "has_namespaces", lambda: False)
    with PrivateServer(ServerOptions(settings={"server-id": "7"}), port="ephemeral") as listening:
        make(listening, *PLAIN)
        execute(listening, "CREATE USER far@`127.0.0.1` IDENTIFIED BY 'two'", "GRANT ALL ON *.* TO far@`127.0.0.1`")
        before = event_row(listening, *PLAIN)
        login = Login(user="far", password="two", host="127.0.0.1", port=listening.port)
        with ChangedSettings([Event.find(login, *PLAIN)]) as changed:
            assert event_row(listening, *PLAIN) == before | {"STATUS": DISABLED}
        assert changed.notes == []
        assert event_row(listening, *PLAIN) == before


BODIES = {
    "block": 'BEGIN\n  DECLARE x INT DEFAULT 1; -- it\'s "x"\n  SET x = x + 1;\r\nEND',
    "introducers": "SELECT _latin1'ä', _utf8mb4'é', N'ü', x'41', '%s %% \\\\' /* DO ' */",
    "percent": "SELECT 'ENABLE COMMENT ''a'' DO SELECT 2', 5 % 2",
}
SCHEDULES = {
    "composite": "EVERY '1:30' HOUR_MINUTE STARTS '2024-02-29 01:02:03' ENDS '2037-01-01 00:00:00'",
    "future": "EVERY 3 WEEK STARTS '2037-01-01 00:00:00' ON COMPLETION PRESERVE",
    "comment": "EVERY 2 MONTH COMMENT 'it''s \\\\ \" \n DO SELECT 3'",
}


@pytest.mark.parametrize("charset", ["utf8mb4", "utf8mb3"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("body", BODIES)
def test_every_byte_of_an_event_is_as_before(server: PrivateServer, body: str, schedule: str, charset: str) -> None:
    def stored() -> tuple[Any, ...]:
        with server.connect() as connection:
            (row,) = sql.fetch_rows(connection, "SELECT * FROM mysql.event WHERE name = 'exact'")
            return (*row[:8], *row[9:])  # without the time of its last change

    with server.connect() as connection:
        sql.execute(connection, "CREATE OR REPLACE DATABASE shop", "SET SESSION time_zone = '-03:30'")
        sql.execute(connection, "SET SESSION collation_connection = utf8mb4_unicode_ci, sql_mode = 'IGNORE_SPACE'")
        if charset == "utf8mb3":
            sql.execute(connection, "SET NAMES utf8mb3")
        sql.execute(connection, f"CREATE EVENT shop.exact ON SCHEDULE {SCHEDULES[schedule]} DO {BODIES[body]}")
    before = stored()
    with ChangedSettings([Event.find(server.login, "shop", "exact")]) as changed:
        during = stored()
        assert during != before
    assert changed.notes == []
    assert stored() == before
    assert sum(one != other for one, other in zip(before, during, strict=True)) == 1, "the status alone"


@pytest.mark.parametrize(
    ("charset", "text", "said"),
    [
        ("latin1", "SELECT 'a'", None),
        ("latin1", "SELECT 'é'", "nor ASCII in another character set"),
        ("utf8mb3", b"SELECT _binary'\xff'", "its text is not UTF-8"),
    ],
)
def test_a_body_that_cannot_be_read_exactly_is_refused(
    server: PrivateServer, charset: str, text: str | bytes, said: str | None
) -> None:
    with server.connect() as connection:
        sql.execute(connection, "CREATE OR REPLACE DATABASE shop", f"SET NAMES {charset}")
        body = text if isinstance(text, bytes) else text.encode("latin1")
        connection.query(b"CREATE EVENT shop.odd ON SCHEDULE EVERY 1 DAY DO " + body)  # type: ignore[attr-defined]
    if said is None:
        with ChangedSettings([Event.find(server.login, "shop", "odd")]) as changed:
            assert changed.since == [DISABLED]
    else:
        with pytest.raises(PowerprofError, match=said):
            Event.find(server.login, "shop", "odd")


def test_a_start_in_an_hour_that_the_clock_shows_twice_is_refused(server: PrivateServer) -> None:
    execute(
        server,
        "CREATE OR REPLACE DATABASE shop",
        "INSERT IGNORE INTO mysql.time_zone VALUES (77, 'N')",
        "INSERT IGNORE INTO mysql.time_zone_name VALUES ('Test/Autumn', 77)",
        "INSERT IGNORE INTO mysql.time_zone_transition_type VALUES (77, 0, 7200, 1, 'S'), (77, 1, 3600, 0, 'W')",
        # 2031-10-26 01:00 UTC
        "INSERT IGNORE INTO mysql.time_zone_transition VALUES (77, 0, 0), (77, 1950742800, 1)",
        "SET SESSION time_zone = 'Test/Autumn'",
        "CREATE EVENT shop.twice ON SCHEDULE EVERY 1 DAY STARTS '2031-10-26 02:30:00' DO SELECT 1",
        "CREATE EVENT shop.once ON SCHEDULE EVERY 1 DAY STARTS '2031-10-26 03:30:00' DO SELECT 1",
    )
    with pytest.raises(PowerprofError, match="an hour that Test/Autumn has twice"):
        Event.find(server.login, "shop", "twice")
    before = event_row(server, "shop", "once")
    with ChangedSettings([Event.find(server.login, "shop", "once")]):
        pass
    assert event_row(server, "shop", "once") == before


def test_the_login_of_an_event_leads_to_the_next_process_of_its_server(server: PrivateServer) -> None:
    socket = server.login.socket
    assert socket is not None
    entered = Login(user="u", socket=Path(f"/proc/{server.pid}/root{socket}"), pid=server.pid)
    lasting = lasting_login(entered, server.pid)
    assert (lasting.socket, lasting.pid, lasting.user) == (socket, None, "u")
