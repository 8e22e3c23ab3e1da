# SPDX-License-Identifier: Apache-2.0
"""A recurring event of MariaDB's or MySQL's event scheduler that is disabled temporarily: a kind of setting.

ALTER EVENT DEFINER = root EVENT e DISABLE keeps the body that the event has at that moment. An account with the right
EVENT on the schema may have exchanged the body, which would then run as root. So one statement (SHOW CREATE EVENT)
reads the whole event: definer, schedule, body and the rest. One ALTER EVENT writes all of it. A definer is written only
with the body that was read together with it. An event that was altered since then is not written.

ALTER EVENT also stores the SQL mode, character set, time zone and server id of its session, and is replicated. So the
session gets the values of the event, and the binary log is switched off. The server stores events in its tables: they
stay after its end, unlike the values of SET GLOBAL.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.database.given import find_server_pid
from powerprof.database.wire import read_process_account
from powerprof.reversible.host_settings import Lasting
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.files import printable, try_text
from powerprof.system.process_stat import read_process_stat
from powerprof.system.processes import list_pids
from powerprof.system.reader_process import link_of
from powerprof.system.tasks import has_ended, process_folder

if TYPE_CHECKING:
    from powerprof.database.base import Sql


# The process of a server with settings that outlast it, and its next process.
#
# After a restart, any account may listen at the old address. A connection sends a password, so powerprof connects only
# to a process of the recorded account and program.

_MAX_TRIED = 16


class ServerProcess(msgspec.Struct, frozen=True):
    """The identity of a process.

    Attributes:
        started_ticks: its start in clock ticks since boot.
        program: the path of its file; its comm if this user may not read the link to the file.
    """

    pid: int
    started_ticks: int
    uid: int
    program: str

    @classmethod
    def of(cls, pid: int) -> ServerProcess | None:
        """Return the identity of a running process; None if it has ended."""
        stat, uid = read_process_stat(pid), read_process_account(pid)
        if stat is None or uid is None or has_ended(pid):
            return None
        link = link_of(process_folder(pid) / "exe")
        comm = try_text(paths.procfs() / str(pid) / "comm") or ""
        program = link.removesuffix(" (deleted)") if link is not None else comm.strip()
        return cls(pid, stat.started_ticks, uid, program)

    def connect(self, login: Login, limits: Limits) -> Sql:
        """Return a connection to this process, or to the next one of its account and program. Raise PowerprofError."""
        refused, until_s = None, time.monotonic() + limits.waiting_s
        for pid in self._find_pids():
            try:
                return sql.connect(login.for_process(pid), limits=limits)
            except PowerprofError as error:
                refused = error
            if login.socket is None or time.monotonic() > until_s:
                break  # The account of a port is the same for all of them.
        raise refused or PowerprofError(
            f"no process of account {self.uid} runs {self.program}", "start the server again"
        )

    def _find_pids(self) -> list[int]:
        """Return this process, or else the processes of its account and program."""
        if ServerProcess.of(self.pid) == self:
            return [self.pid]
        servers = [server for pid in list_pids() if (server := ServerProcess.of(pid)) is not None]
        return [each.pid for each in servers if (each.uid, each.program) == (self.uid, self.program)][:_MAX_TRIED]


ENABLED, DISABLED = "ENABLED", "DISABLED"
_WORDS = {ENABLED: "ENABLE", DISABLED: "DISABLE"}
_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=100, answer_bytes=1 << 20)
_MAX_BODY = 64 << 10
# Servers with the same data agree in these. MariaDB 10.11 has no uuid.
_IDENTITY = ("datadir", "server_uuid")
# ER_BAD_DB_ERROR, ER_EVENT_DOES_NOT_EXIST
_GONE = (1049, 1539)
# Facts that SHOW CREATE EVENT lacks.
_LISTED = (
    "SELECT ORIGINATOR, ENDS IS NOT NULL AND ENDS < NOW() + INTERVAL 2 DAY FROM information_schema.events "
    "WHERE EVENT_SCHEMA = %s AND EVENT_NAME = %s"
)
# In autumn the clock shows one hour twice, and the text of a statement does not distinguish the two.
_SHOWN_TWICE = (
    "SELECT COUNT(*) FROM (SELECT UNIX_TIMESTAMP(%s) AS t) AS moment "
    "WHERE %s IN (FROM_UNIXTIME(t + 3600), FROM_UNIXTIME(t - 3600), FROM_UNIXTIME(t + 1800), FROM_UNIXTIME(t - 1800))"
)
_NAME, _TEXT = r"`(?:[^`]|``)*`", r"'(?:[^'\\]|''|\\.)*'"
_SHOWN = re.compile(
    rf"CREATE DEFINER=(?P<user>{_NAME})(?:@(?P<host>{_NAME}))? EVENT {_NAME} ON SCHEDULE "
    rf"(?P<schedule>EVERY (?:[0-9]+|{_TEXT}) [A-Z_]+ STARTS {_TEXT}(?: ENDS {_TEXT})?|AT {_TEXT}) "
    rf"ON COMPLETION (?P<completion>(?:NOT )?PRESERVE) (?P<status>ENABLE|DISABLE(?: ON \w+)?)"
    rf"(?: COMMENT (?P<comment>{_TEXT}))? DO (?P<body>.+)",
    re.DOTALL,
)
# Character sets in which powerprof's statements, or ASCII statements only, have the same bytes as in UTF-8.
_UNICODE = re.compile(r"utf8(mb[34])?")
_ASCII_SUPERSET = re.compile(
    r"latin[12579]|ascii|cp125[0167]|cp85[02]|koi8[ru]|greek|hebrew|macroman|binary|gbk|gb2312|sjis"
)


class EventAltered(PowerprofError):
    """An error: another account has altered the event, so powerprof does not write it again."""


def quote_name(name: str) -> str:
    """Return a name as an SQL identifier, with any characters."""
    return "`" + name.replace("`", "``") + "`"


def printable_name(database: str, event: str) -> str:
    """Return the quoted name of an event for a statement that a person may paste."""
    return printable(f"{quote_name(database)}.{quote_name(event)}")


class _Definition(msgspec.Struct, frozen=True):
    """An event as one SHOW CREATE EVENT shows it, with SQL texts as the server quotes them.

    Attributes:
        host: the host of the definer; None if the definer is a role.
    """

    user: str
    host: str | None
    schedule: str
    completion: str
    status: str
    comment: str
    body: str
    sql_mode: str
    time_zone: str
    charset: str
    collation: str
    database_collation: str

    @property
    def definer(self) -> str:
        """The account or role, quoted."""
        return self.user if self.host is None else f"{self.user}@{self.host}"

    def parts(self) -> dict[str, str]:
        """Return everything except the status, by name. Journals contain this, so clients' texts are digests."""
        return {
            "definer": self.definer,
            "schedule": self.schedule,
            "completion": self.completion,
            "comment": _digest(self.comment),
            "body": _digest(self.body),
            "SQL mode": self.sql_mode,
            "time zone": self.time_zone,
            "character set": self.charset,
            "collation": self.collation,
            "collation of its schema": self.database_collation,
        }


class Event(msgspec.Struct, frozen=True, tag="event"):
    """The status (ENABLED, DISABLED) of an event of schema `database`.

    Attributes:
        login: the fields of the login to the server (`Login.to_fields`).
        process: the process of the server, to recognise its next process.
        server: its data directory, uuid and id, to recognise the same server.
        parts: the parts of the event, to recognise an altered event.
    """

    login: dict[str, Any]
    database: str
    event: str
    value: str
    process: ServerProcess
    server: dict[str, str]
    parts: dict[str, str]
    lasts: ClassVar[Lasting] = "always"  # in a table of the server

    @classmethod
    def find(cls, login: Login, database: str, event: str, value: str = DISABLED) -> Event:
        """Return the event of a server. Raise PowerprofError if it is missing, or could not be restored."""
        name = f"event {printable_name(database, event)}"
        with sql.connect(login, limits=_LIMITS) as connection:
            pid = find_server_pid(connection, login)
            process = None if pid is None else ServerProcess.of(pid)
            if process is None:
                raise PowerprofError(
                    f"{name} cannot be disabled for a while (its server is not a process of this host, so it "
                    "could not be recognised later)",
                    "run powerprof on the server's host",
                )
            settings = _read_settings(connection)
            setting = cls(login.to_fields(), database, event, value, process, _identify(settings), {})
            now = setting._read_definition(connection)
            if now is None:
                raise PowerprofError(f"there is no {name}", "SHOW EVENTS lists those that there are")
            reason = setting._find_obstacle(connection, now, settings) or setting._find_later_obstacle(
                connection, now, settings
            )
        if reason is not None:
            raise PowerprofError(f"{name} cannot be disabled for a while ({reason})", "choose another remedy")
        return msgspec.structs.replace(setting, parts=now.parts())

    @property
    def name(self) -> str:
        """The name for people."""
        return f"event {printable_name(self.database, self.event)}"

    def read(self) -> str | None:
        """Return the status, such as ENABLED or DISABLED; None if the event is gone. Raise PowerprofError."""
        with self._connect() as connection:
            now = self._read_definition(connection)
        return None if now is None else now.status

    def write(self, value: str) -> str | None:
        """Set the status and return it; None if the event is gone.

        Raise EventAltered if anything else of the event has changed, and PowerprofError if it cannot be written.
        """
        with self._connect() as connection:
            settings = _read_settings(connection)
            now = self._read_definition(connection)
            if now is None or now.status == value:
                return None if now is None else now.status
            self._check_same(now)
            reason = self._find_obstacle(connection, now, settings)
            if reason is not None or value not in _WORDS:
                raise PowerprofError(f"cannot change {self.name} ({reason or value})", self.by_hand(value))
            if _is_on(settings.get("log_bin")):
                _execute(connection, "SET SESSION sql_log_bin = 0")
            # Less than the time for an answer: the server must not alter the event after powerprof has given up.
            _execute(connection, "SET SESSION lock_wait_timeout = 3")
            _execute(
                connection,
                "SET SESSION character_set_client = %s, collation_connection = %s, sql_mode = %s, time_zone = %s",
                *(now.charset, now.collation, now.sql_mode, now.time_zone),
            )
            _execute(
                connection,
                f"ALTER DEFINER = {now.definer} EVENT {quote_name(self.database)}.{quote_name(self.event)} "
                f"ON SCHEDULE {now.schedule} ON COMPLETION {now.completion} {_WORDS[value]} "
                f"COMMENT {now.comment} DO {now.body}",
            )
            after = self._read_definition(connection)
        if after is not None:
            self._check_same(after)
        return None if after is None else after.status

    def by_hand(self, value: str) -> str:
        """Return the statements that set a status, without the body.

        The body may contain secrets, and a person must check it before it gets the rights of the definer.
        """
        name = printable_name(self.database, self.event)
        return (
            f"SET SESSION sql_log_bin = 0, sql_mode = '{self.parts['SQL mode']}'; "
            f"ALTER DEFINER = {printable(self.parts['definer'])} EVENT {name} {_WORDS.get(value, 'ENABLE')} "
            f"DO BODY, with the BODY that you have checked in SHOW CREATE EVENT {name}"
        )

    def _check_same(self, now: _Definition) -> None:
        changed = [part for part, text in now.parts().items() if text != self.parts[part]]
        if changed:
            raise EventAltered(
                f"{self.name} has another {', '.join(changed)} than when it was found, so it is left {now.status}",
                self.by_hand(ENABLED),
            )

    def _connect(self) -> Sql:
        connection = self.process.connect(Login.from_fields(self.login), _LIMITS)
        try:
            identity = _identify(_read_settings(connection))
            if any(identity.get(name) != self.server.get(name) for name in _IDENTITY):
                raise PowerprofError(
                    f"another server listens where that of {self.name} did: its data lie in "
                    f"{printable(identity.get('datadir', ''))[:200]}",
                    f"on the server of {self.server.get('datadir')}: {self.by_hand(ENABLED)}",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _read_definition(self, connection: Sql) -> _Definition | None:
        """Return the event as it is now; None if it is gone. Raise PowerprofError if it cannot be read."""
        _execute(connection, "SET NAMES utf8mb4")
        _execute(connection, "SET SESSION sql_mode = '', sql_quote_show_create = 1")
        row = self._fetch_row(connection)
        if row is not None and row[4] != "utf8mb4":
            # Read without conversion, which replaces invalid bytes: a body may contain them.
            _execute(connection, "SET SESSION character_set_results = %s", str(row[4]))
            row = self._fetch_row(connection)
            _execute(connection, "SET NAMES utf8mb4")
        if row is None:
            return None
        _, sql_mode, time_zone, text, charset, collation, database_collation = map(str, row)
        match = _SHOWN.fullmatch(text)
        if match is None or len(match["body"]) > _MAX_BODY:
            raise PowerprofError(
                f"{self.name} is not understood, or longer than {_MAX_BODY >> 10} KiB", "choose another remedy"
            )
        status = {word: name for name, word in _WORDS.items()}.get(match["status"], "SLAVESIDE_DISABLED")
        return _Definition(
            user=match["user"],
            host=match["host"],
            schedule=match["schedule"],
            completion=match["completion"],
            status=status,
            comment=match["comment"] or "''",
            body=match["body"],
            sql_mode=sql_mode,
            time_zone=time_zone,
            charset=charset,
            collation=collation,
            database_collation=database_collation,
        )

    def _fetch_row(self, connection: Sql) -> sql.Row | None:
        try:
            name = f"{quote_name(self.database)}.{quote_name(self.event)}"
            return next(iter(sql.fetch_rows(connection, f"SHOW CREATE EVENT {name}", columns=7)), None)
        except StatementError as error:
            if error.number in _GONE:
                return None
            if error.number == 0:
                raise PowerprofError(
                    f"{self.name} cannot be read exactly (its text is not UTF-8, nor ASCII in another character set)",
                    "choose another remedy",
                ) from error
            raise

    def _find_obstacle(self, connection: Sql, now: _Definition, settings: dict[str, str]) -> str | None:
        """Return the reason that the event could not be written exactly as it is; None if it can."""
        texts = self.database + self.event + now.definer + now.comment + now.body
        plain = texts.isascii() and _ASCII_SUPERSET.fullmatch(now.charset)
        collations = sql.fetch_rows(
            connection,
            "SELECT SCHEMA_NAME, DEFAULT_COLLATION_NAME FROM information_schema.schemata WHERE SCHEMA_NAME = %s",
            (self.database,),
            columns=2,
        )
        collation = next((str(default) for name, default in collations if str(name) == self.database), None)
        reasons = {
            f"it is {now.status}": now.status not in _WORDS,
            "it is executed once only": not now.schedule.startswith("EVERY"),
            "the server's id has changed": settings.get("server_id") != self.server.get("server_id"),
            "its definer is a role": now.host in (None, "``"),
            "the nodes of a cluster change events together": _is_on(settings.get("wsrep_on")),
            f"its character set is {now.charset}": not (_UNICODE.fullmatch(now.charset) or plain),
            "the collation of its schema has changed since it was made": collation != now.database_collation,
            "its comment has a backslash, which its SQL mode does not escape": "NO_BACKSLASH_ESCAPES" in now.sql_mode
            and "\\" in now.comment,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _find_later_obstacle(self, connection: Sql, now: _Definition, settings: dict[str, str]) -> str | None:
        """Return the reason that a later ALTER EVENT could not restore the event; None if it can."""
        listed = sql.fetch_rows(connection, _LISTED, (self.database, self.event), columns=2)
        if len(listed) != 1:
            return "it is not listed: the account needs the right EVENT on its schema"
        originator, soon = str(listed[0][0]), listed[0][1] in (1, "1")
        _execute(connection, "SET SESSION time_zone = %s", now.time_zone)
        moments = re.findall(r"'([0-9: -]{19})'", now.schedule)
        twice = any(sql.fetch_rows(connection, _SHOWN_TWICE, (at, at), columns=1)[0][0] for at in moments)
        reasons = {
            "it ends within two days": soon,
            f"it was made on server {originator}": originator != settings.get("server_id"),
            f"its schedule has an hour that {now.time_zone} has twice": twice,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _identify(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings that identify a server, and the id that its events have."""
    return {name: settings[name] for name in (*_IDENTITY, "server_id") if name in settings}


def _read_settings(connection: Sql) -> dict[str, str]:
    answer = sql.fetch_rows(
        connection,
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('datadir', 'server_uuid', 'server_id', 'log_bin', 'wsrep_on')",
        columns=2,
    )
    return {str(name).lower(): str(value) for name, value in answer}


def _execute(connection: Sql, statement: str, *arguments: str) -> None:
    sql.fetch_rows(connection, statement, arguments or None)


def _is_on(value: str | None) -> bool:
    return (value or "").upper() in ("ON", "1")
