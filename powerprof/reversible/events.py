# SPDX-License-Identifier: Apache-2.0
"""A recurring event of MariaDB's or MySQL's event scheduler that is disabled for a while: a kind of setting.

ALTER EVENT changes more than it says: it makes who alters the event its definer, whose rights it has from then on; it
stores the session's SQL mode, character set and server id with it; and it is replicated. So each of these is given as
it was, or the event is refused; the binary log is switched off; and the whole row is compared after each change. An
event lies in the server's tables: unlike SET GLOBAL it stays when the server ends.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login, StatementError
from powerprof.errors import PowerprofError
from powerprof.untrusted import printable

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

ENABLED, DISABLED = "ENABLED", "DISABLED"
_WORDS = {ENABLED: "ENABLE", DISABLED: "DISABLE"}
_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=100, answer_bytes=1 << 20)
# ER_BAD_DB_ERROR, ER_EVENT_DOES_NOT_EXIST
_GONE = (1049, 1539)
# Everything that ALTER EVENT could change; not when it was altered and executed last.
_KEPT = (
    *("DEFINER", "TIME_ZONE", "EVENT_TYPE", "EXECUTE_AT", "INTERVAL_VALUE", "INTERVAL_FIELD", "SQL_MODE"),
    *("STARTS", "ENDS", "ON_COMPLETION", "EVENT_COMMENT", "ORIGINATOR"),
    *("CHARACTER_SET_CLIENT", "COLLATION_CONNECTION", "DATABASE_COLLATION"),
)
_SOON = "ENDS IS NOT NULL AND ENDS < NOW() + INTERVAL 2 DAY"
_LOOK = (
    f"SELECT EVENT_SCHEMA, EVENT_NAME, STATUS, MD5(EVENT_DEFINITION), {_SOON}, {', '.join(_KEPT)} "  # noqa: S608 - ours
    "FROM information_schema.events WHERE EVENT_SCHEMA = %s AND EVENT_NAME = %s"
)
# Character sets in which a statement of ours, or one of ASCII alone, reads as in UTF-8.
_UNICODE = re.compile(r"utf8(mb[34])?")
_OF_ASCII = re.compile(r"latin[12579]|ascii|cp125[0167]|cp85[02]|koi8[ru]|greek|hebrew|macroman|binary|gbk|gb2312|sjis")


def quoted(name: str) -> str:
    """A name as an identifier of SQL, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def shown(database: str, event: str) -> str:
    """As it stands in a statement that a person may paste."""
    return printable(f"{quoted(database)}.{quoted(event)}")


class _Row(msgspec.Struct, frozen=True):
    """An event as it is: `kept` is what must stay, by name."""

    status: str
    ends_soon: bool
    kept: dict[str, str | None]

    @property
    def definer(self) -> tuple[str, str]:
        """User and host."""
        user, _, host = (self.kept["DEFINER"] or "").rpartition("@")
        return user, host


class Event(msgspec.Struct, frozen=True, tag="event"):
    """Whether an event of schema `database` is ENABLED or DISABLED, on the server that `login` (`Login.fields`) leads
    to and whose data lie in `datadir`: another one may listen there by the time it is put back. `definer` (user, host)
    is whose rights it has."""

    login: dict[str, Any]
    database: str
    event: str
    value: str
    datadir: str
    definer: tuple[str, str]

    @classmethod
    def found(cls, login: Login, database: str, event: str, value: str = DISABLED) -> Event:
        """The event as it is on that server, to be changed. Raises PowerprofError where it is not there, and for one
        that could not be put back as it was."""
        with sql.connect(login, limits=_LIMITS) as connection:
            settings = _settings(connection)
            bare = cls(login.fields(), database, event, value, settings.get("datadir", ""), ("", ""))
            row = bare._look(connection)
            if row is None:
                raise PowerprofError(f"there is no {bare.name}", "SHOW EVENTS lists those that there are")
            reason = bare._refusal(connection, row, settings)
        if reason is not None:
            raise PowerprofError(f"{bare.name} cannot be disabled for a while ({reason})", "choose another remedy")
        return msgspec.structs.replace(bare, definer=row.definer)

    @property
    def name(self) -> str:
        """As people read it."""
        return f"event {shown(self.database, self.event)}"

    @property
    def outlasts(self) -> bool:
        """It lies in a table of the server's."""
        return True

    def read(self) -> str | None:
        """ENABLED, DISABLED, or what else its status is; None where it is gone."""
        with self._connect() as connection:
            row = self._look(connection)
        return None if row is None else row.status

    def write(self, value: str) -> str | None:
        """Disable or enable it, and see that nothing else of it has changed."""
        with self._connect() as connection:
            settings = _settings(connection)
            before = self._look(connection)
            if before is None or before.status == value:
                return None if before is None else before.status
            reason = self._refusal(connection, before, settings)
            if reason is not None or value not in _WORDS:
                raise PowerprofError(f"cannot change {self.name} ({reason or value})", self.by_hand(value))
            if _on(settings.get("log_bin")):
                _statement(connection, "SET SESSION sql_log_bin = 0")
            _statement(
                connection,
                "SET SESSION character_set_client = %s, collation_connection = %s, sql_mode = %s",
                *(before.kept[name] or "" for name in ("CHARACTER_SET_CLIENT", "COLLATION_CONNECTION", "SQL_MODE")),
            )
            _statement(connection, self._alter(value, before.definer))
            _statement(connection, "SET NAMES utf8mb4")
            after = self._look(connection)
        changed = [] if after is None else [name for name, was in before.kept.items() if after.kept[name] != was]
        if changed:
            raise PowerprofError(
                f"{self.name} has another {', '.join(changed)} since it was changed", "SHOW CREATE EVENT shows it"
            )
        return None if after is None else after.status

    def by_hand(self, value: str) -> str:
        """The statements."""
        return printable(f"SET SESSION sql_log_bin = 0; {self._alter(value, self.definer)}")

    def _alter(self, value: str, definer: tuple[str, str]) -> str:
        user, host = definer
        return (
            f"ALTER DEFINER = {quoted(user)}@{quoted(host)} EVENT {quoted(self.database)}.{quoted(self.event)} "
            f"{_WORDS.get(value, 'ENABLE')}"
        )

    def _connect(self) -> Sql:
        connection = sql.connect(Login.of_fields(self.login), limits=_LIMITS)
        try:
            found = _settings(connection).get("datadir", "")
            if found != self.datadir:
                raise PowerprofError(
                    f"another server listens where that of {self.name} did: its data lie in {printable(found)[:200]}",
                    f"on the server of {self.datadir}: {self.by_hand(ENABLED)}",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _look(self, connection: Sql) -> _Row | None:
        """The row; None where the server says that there is none: to an account without rights it lists none."""
        answer = sql.rows(connection, _LOOK, (self.database, self.event), columns=5 + len(_KEPT))
        for database, event, status, digest, soon, *kept in answer:
            # Compared without case, and without accents, above.
            if (str(database), str(event)) == (self.database, self.event):
                values = {name: None if value is None else str(value) for name, value in zip(_KEPT, kept, strict=True)}
                return _Row(str(status), soon in (1, "1"), values | {"EVENT_DEFINITION": str(digest)})
        try:
            sql.rows(connection, f"SHOW CREATE EVENT {quoted(self.database)}.{quoted(self.event)}")
        except StatementError as error:
            if error.number in _GONE:
                return None
            raise
        raise PowerprofError(f"{self.name} is not listed", "the account needs the right EVENT on its schema")

    def _refusal(self, connection: Sql, row: _Row, settings: dict[str, str]) -> str | None:
        """Why it would not be as before once it was put back; None where it would."""
        charset = row.kept["CHARACTER_SET_CLIENT"] or ""
        plain = (self.database + self.event + "".join(row.definer)).isascii() and _OF_ASCII.fullmatch(charset)
        collations = sql.rows(
            connection,
            "SELECT SCHEMA_NAME, DEFAULT_COLLATION_NAME FROM information_schema.schemata WHERE SCHEMA_NAME = %s",
            (self.database,),
            columns=2,
        )
        collation = next((str(default) for name, default in collations if str(name) == self.database), None)
        reasons = {
            f"it is {row.status}": row.status not in _WORDS,
            "it is executed once only": row.kept["EVENT_TYPE"] != "RECURRING",
            "it ends within two days": row.ends_soon,
            f"it was made on server {row.kept['ORIGINATOR']}": row.kept["ORIGINATOR"] != settings.get("server_id"),
            "its definer is a role": not row.definer[1],
            "the nodes of a cluster change events together": _on(settings.get("wsrep_on")),
            f"its character set is {charset}": not (_UNICODE.fullmatch(charset) or plain),
            "the collation of its schema has changed since it was made": collation != row.kept["DATABASE_COLLATION"],
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


def _settings(connection: Sql) -> dict[str, str]:
    answer = sql.rows(
        connection,
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('datadir', 'log_bin', 'server_id', 'wsrep_on')",
        columns=2,
    )
    return {str(name).lower(): str(value) for name, value in answer}


def _statement(connection: Sql, statement: str, *arguments: str) -> None:
    sql.rows(connection, statement, arguments or None)


def _on(value: str | None) -> bool:
    return (value or "").upper() in ("ON", "1")
