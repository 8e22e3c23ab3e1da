# SPDX-License-Identifier: Apache-2.0
"""Events of a server that are disabled temporarily: their parts, obstacles, and the process of their server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.reversible import events
from powerprof.reversible.events import Event, EventAltered, ServerProcess
from powerprof.system.errors import PowerprofError
from tests.conftest import Tree
from tests.programs.answers import Answers
from tests.unit.reversible.conftest import thread_files

PROGRAM = "/usr/sbin/mariadbd"


class EventServer:
    """A server with the event `refresh` in schema `shop`, which ALTER EVENT changes as a real server does.

    Attributes:
        event: the parts of the event in the words of SHOW CREATE EVENT; None without the event.
    """

    def __init__(self) -> None:
        self.settings = {"datadir": "/data/", "server_id": "31", "log_bin": "ON", "wsrep_on": "OFF"}
        self.event: dict[str, str] | None = {
            "definer": "`owner`@`10.%`",
            "schedule": "EVERY 20 SECOND STARTS '2024-02-29 01:02:03'",
            "completion": "NOT PRESERVE",
            "status": "ENABLE",
            "comment": "'it''s \"x\"'",
            "body": "BEGIN SELECT 'a;b'; END",
        }
        self.session = {"sql_mode": "ANSI_QUOTES", "time_zone": "+05:00", "charset": "latin1", "collation": "c_bin"}
        self.schema_collation = "utf8mb4_bin"
        self.default_collation: str | None = self.schema_collation
        self.listed: list[tuple[Any, ...]] = [("31", 0)]
        self.shown_twice: set[str] = set()
        self.altered_meanwhile: dict[str, str] = {}
        self.connection = Answers(
            {
                "SHOW CREATE EVENT": lambda _: self._show(),
                "SHOW GLOBAL VARIABLES": lambda _: list(self.settings.items()),
                "information_schema.schemata": lambda *_: self._schemata(),
                "information_schema.events": lambda *_: self.listed,
                "UNIX_TIMESTAMP": lambda _, at, __: [(int(at in self.shown_twice),)],
                "ALTER DEFINER": self._alter,
            }
        )

    def _show(self) -> list[tuple[str, ...]]:
        if self.event is None:
            raise StatementError("Unknown event", None, 1539)
        parts = self.event
        comment = f" COMMENT {parts['comment']}" if parts["comment"] else ""
        text = (
            f"CREATE DEFINER={parts['definer']} EVENT `refresh` ON SCHEDULE {parts['schedule']} ON COMPLETION "
            f"{parts['completion']} {parts['status']}{comment} DO {parts['body']}"
        )
        session = self.session
        shown = (session["sql_mode"], session["time_zone"], text, session["charset"], session["collation"])
        return [("refresh", *shown, self.schema_collation)]

    def _schemata(self) -> list[tuple[str, str]]:
        """Return the schemata that compare equal in the server's collation."""
        return [("Shop", "odd"), *([("shop", self.default_collation)] if self.default_collation else [])]

    def _alter(self, text: str) -> list[tuple[Any, ...]]:
        parts = self.event
        head = (
            f"ALTER DEFINER = {parts['definer']} EVENT `shop`.`refresh` ON SCHEDULE {parts['schedule']} ON COMPLETION "
        )
        tail = f" COMMENT {parts['comment'] or repr('')} DO {parts['body']}"
        assert text.startswith(head) and text.endswith(tail), "everything else is as before"
        completion, status = text.removeprefix(head).removesuffix(tail).rsplit(" ", 1)
        assert completion == parts["completion"]
        parts["status"] = status
        parts |= self.altered_meanwhile
        return []

    def find(self) -> Event:
        """Return the event."""
        return Event.find(Login(user="root", socket=Path("/run/s.sock")), "shop", "refresh")


def _server_files(pid: int, uid: int = 112, started_ticks: int = 4242) -> dict[str, str]:
    status = f"Name:\tmariadbd\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
    return {**thread_files(pid, started_ticks), f"proc/{pid}/status": status, f"proc/{pid}/comm": "mariadbd\n"}


def _start(fake_tree: Tree, pid: int, program: str = PROGRAM, uid: int = 112, started_ticks: int = 4242) -> Path:
    host = fake_tree(_server_files(pid, uid, started_ticks))
    exe = host / f"proc/{pid}/exe"
    exe.unlink(missing_ok=True)
    exe.symlink_to(program)
    return host


@pytest.fixture
def server(fake_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> EventServer:
    _start(fake_tree, 77)
    made = EventServer()
    monkeypatch.setattr(sql, "connect", lambda *_, **__: made.connection)
    monkeypatch.setattr(events, "find_server_pid", lambda *_: 77)
    return made


def test_an_event_is_disabled_and_enabled_with_all_its_parts(server: EventServer) -> None:
    event = server.find()
    assert (event.process, event.server) == (
        ServerProcess(77, 4242, 112, PROGRAM),
        {"datadir": "/data/", "server_id": "31"},
    )
    assert (event.read(), event.write("DISABLED"), event.read()) == ("ENABLED", "DISABLED", "DISABLED")
    sent = server.connection.sent
    assert "SET SESSION sql_log_bin = 0" in sent and "SET SESSION lock_wait_timeout = 3" in sent
    charset = "character_set_client = 'latin1', collation_connection = 'c_bin'"
    assert f"SET SESSION {charset}, sql_mode = 'ANSI_QUOTES', time_zone = '+05:00'" in sent
    assert event.write("DISABLED") == "DISABLED"
    assert event.write("ENABLED") == "ENABLED"
    server.event = None
    assert (event.read(), event.write("DISABLED")) == (None, None)
    assert event.by_hand("ENABLED").startswith(
        "SET SESSION sql_log_bin = 0, sql_mode = 'ANSI_QUOTES'; ALTER DEFINER = "
    )
    assert "SELECT" not in event.by_hand("ENABLED"), "the body may contain secrets"


def test_without_a_binary_log_none_is_switched_off(server: EventServer) -> None:
    event = server.find()
    server.settings["log_bin"] = "0"
    server.connection.sent.clear()
    assert event.write("DISABLED") == "DISABLED"
    assert not any("sql_log_bin" in statement for statement in server.connection.sent)


@pytest.mark.parametrize(
    ("part", "text", "name"),
    [
        ("definer", "`eve`@`10.%`", "definer"),
        ("schedule", "EVERY 21 SECOND STARTS '2024-02-29 01:02:03'", "schedule"),
        ("completion", "PRESERVE", "completion"),
        ("comment", "'other'", "comment"),
        ("body", "DROP DATABASE shop", "body"),
        ("sql_mode", "", "SQL mode"),
        ("time_zone", "other", "time zone"),
        ("charset", "other", "character set"),
        ("collation", "other", "collation"),
    ],
)
def test_an_altered_event_is_not_written(server: EventServer, part: str, text: str, name: str) -> None:
    event = server.find()
    changed = server.session if part in server.session else server.event
    changed[part] = text
    with pytest.raises(EventAltered, match=f"has another {name} than when it was found, so it is left ENABLED"):
        event.write("DISABLED")
    assert server.event["status"] == "ENABLE"


def test_an_event_that_is_altered_during_the_write_is_an_error(server: EventServer) -> None:
    event = server.find()
    server.altered_meanwhile = {"body": "DROP DATABASE shop"}
    with pytest.raises(EventAltered, match="has another body than when it was found, so it is left DISABLED"):
        event.write("DISABLED")


def _refuse(server: EventServer, reason: str) -> None:
    with pytest.raises(PowerprofError, match=rf"event `shop`.`refresh` cannot be disabled for a while \(.*{reason}"):
        server.find()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "DISABLE ON SLAVE"}, "it is SLAVESIDE_DISABLED"),
        ({"status": "DISABLE ON REPLICA"}, "it is SLAVESIDE_DISABLED"),
        ({"schedule": "AT '2027-02-28 01:02:03'"}, "it is executed once only"),
        ({"definer": "`admins`"}, "its definer is a role"),
        ({"definer": "`admins`@``"}, "its definer is a role"),
    ],
)
def test_an_event_that_could_not_be_restored_is_refused(
    server: EventServer, changes: dict[str, str], reason: str
) -> None:
    assert server.event is not None
    server.event |= changes
    _refuse(server, reason)


@pytest.mark.parametrize(
    ("charset", "body", "refused"),
    [
        ("latin1", "SELECT 1", False),
        ("latin1", "SELECT 'é'", True),
        ("utf8mb3", "SELECT 'é'", False),
        ("utf8mb4", "SELECT 'é'", False),
        ("ucs2", "SELECT 1", True),
        ("big5", "SELECT 1", True),
    ],
)
def test_an_event_is_written_in_the_same_bytes(server: EventServer, charset: str, body: str, refused: bool) -> None:
    server.session["charset"], server.event["body"] = charset, body
    if refused:
        _refuse(server, f"its character set is {charset}")
    else:
        assert server.find().write("DISABLED") == "DISABLED"


def test_servers_that_change_an_event_on_their_own_are_refused(server: EventServer) -> None:
    server.default_collation = "utf8mb4_general_ci"
    _refuse(server, "the collation of its schema has changed")
    server.default_collation = None
    _refuse(server, "the collation of its schema has changed")
    server.default_collation = server.schema_collation
    server.settings["wsrep_on"] = "ON"
    _refuse(server, "the nodes of a cluster change events together")
    server.settings["wsrep_on"] = "OFF"
    server.listed = [("32", 0)]
    _refuse(server, "it was made on server 32")
    server.listed = [("31", "1")]
    _refuse(server, "it ends within two days")
    server.listed = []
    _refuse(server, "it is not listed")
    server.listed = [("31", 0)]
    event = server.find()
    server.settings["server_id"] = "33"
    with pytest.raises(PowerprofError, match="the server's id has changed"):
        event.write("DISABLED")


def test_a_backslash_is_restored_if_its_mode_escapes_it(server: EventServer) -> None:
    server.event["comment"] = r"'a\\b'"
    assert server.find().write("DISABLED") == "DISABLED"
    server.session["sql_mode"] = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES"
    server.event["status"] = "ENABLE"
    _refuse(server, "its comment has a backslash")
    server.event["comment"] = "'plain'"
    assert server.find().write("DISABLED") == "DISABLED"


@pytest.mark.parametrize("twice", ["2024-02-29 01:02:03", "2030-10-27 02:30:00"])
def test_a_moment_that_the_clock_shows_twice_is_refused(server: EventServer, twice: str) -> None:
    server.event["schedule"] = "EVERY 20 SECOND STARTS '2024-02-29 01:02:03' ENDS '2030-10-27 02:30:00'"
    server.shown_twice = {"2031-01-01 00:00:00"}
    assert server.find().parts["schedule"] == server.event["schedule"]
    server.shown_twice = {twice}
    _refuse(server, r"its schedule has an hour that \+05:00 has twice")


def test_another_server_at_the_place_is_left(server: EventServer) -> None:
    server.settings["server_uuid"] = "u-1"
    event = server.find()
    for name, other in (("datadir", "/copy/"), ("server_uuid", "u-2")):
        before, server.settings[name] = server.settings[name], other
        closed = server.connection.closed
        with pytest.raises(PowerprofError, match="another server listens where that of event"):
            event.read()
        assert server.connection.closed == closed + 1
        server.settings[name] = before
    assert event.read() == "ENABLED"


@pytest.mark.parametrize("text", ["DO", "BEGIN " + "x" * (64 << 10)])
def test_an_event_that_is_not_understood_is_refused(server: EventServer, text: str) -> None:
    assert server.event is not None
    server.event |= {"body": text} if len(text) > 2 else {"schedule": "WHENEVER"}
    with pytest.raises(PowerprofError, match="is not understood, or longer than 64 KiB"):
        server.find()


def test_a_missing_event_is_an_error(server: EventServer) -> None:
    server.event = None
    with pytest.raises(PowerprofError, match=r"there is no event `shop`\.`refresh`"):
        server.find()


LOGIN, LIMITS = Login(user="u", socket=Path("/run/s.sock")), Limits(waiting_s=8.0)
OURS = ServerProcess(77, 4242, 112, PROGRAM)


@pytest.mark.parametrize(
    ("processes", "pids"),
    [
        ([(77, PROGRAM, 112, 4242), (90, PROGRAM, 112, 9000)], [77]),
        ([(77, PROGRAM, 112, 5000), (90, PROGRAM, 112, 9000)], [77, 90]),
        ([(77, "/bin/other", 112, 4242), (90, f"{PROGRAM} (deleted)", 112, 9000)], [90]),
        ([(90, PROGRAM, 1001, 9000), (91, "/home/eve/mariadbd", 112, 9000)], []),
        ([(91, PROGRAM, 112, 9001), (90, PROGRAM, 112, 9000)], [90, 91]),
        ([], []),
    ],
)
def test_the_next_process_has_the_same_account_and_program(
    fake_tree: Tree, processes: list[tuple[int, str, int, int]], pids: list[int]
) -> None:
    fake_tree({})
    for pid, program, uid, started_ticks in processes:
        _start(fake_tree, pid, program, uid, started_ticks)
    assert OURS._find_pids() == pids


def test_a_process_is_known_by_start_account_and_program(fake_tree: Tree) -> None:
    host = _start(fake_tree, 77)
    assert ServerProcess.of(77) == OURS
    assert ServerProcess.of(78) is None
    (host / "proc/77/exe").unlink()
    assert ServerProcess.of(77) == ServerProcess(77, 4242, 112, "mariadbd"), "its link may not be read"
    status = (host / "proc/77/status").read_text()
    for other in (status.replace("S (sleeping)", "Z (zombie)"), status.partition("Uid")[0]):
        (host / "proc/77/status").write_text(other)
        assert ServerProcess.of(77) is None


@pytest.mark.parametrize(
    ("login", "tried"), [(LOGIN, [90, 91, 92]), (Login(user="u", host="h", port=1), [90])], ids=["socket", "port"]
)
def test_each_process_is_tried_at_its_socket(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch, login: Login, tried: list[int]
) -> None:
    for pid in (90, 91, 92):
        _start(fake_tree, pid, started_ticks=pid)
    asked: list[int | None] = []

    def connect(there: Login, **_: object) -> Answers:
        asked.append(there.pid)
        if there.pid != 92:
            raise PowerprofError(f"{there.pid} refuses")
        return Answers({})

    monkeypatch.setattr(sql, "connect", connect)
    if login.socket is None:
        with pytest.raises(PowerprofError, match="90 refuses"):
            OURS.connect(login, LIMITS)
    else:
        OURS.connect(login, LIMITS)
    assert asked == tried
    with pytest.raises(PowerprofError, match="no process of account 113 runs"):
        ServerProcess(77, 1, 113, PROGRAM).connect(login, LIMITS)
