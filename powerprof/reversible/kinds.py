# SPDX-License-Identifier: Apache-2.0
"""Kinds of settings that can be changed and restored. The keeper receives them as data, not as code.

A kind has these members; `read` and `write` raise PowerprofError:
    name: a name for people.
    value: the temporary value.
    read: return the present value; None if the owner of the setting has ended. Raise FileAway if it may come back.
    write: set a value, and return the value read back at once. Later another user may have changed it.
    by_hand: return the command that sets a value.
    lasts: the end of its value without a restoration.
A new kind is a class in this package and a name in `Setting`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.reversible.host_settings import HostFile, HostSetting, Lasting
from powerprof.system import files, paths
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.foreign_text import printable
from powerprof.system.process_stat import read_process_stat

if TYPE_CHECKING:
    from powerprof.database.base import Sql


# Variables that change when another one is set: innodb_io_capacity raises innodb_io_capacity_max, and lowering that one
# lowers the first.

# These change with the work of the server.
_STATE_PREFIXES = ("gtid_", "wsrep_", "timestamp", "rpl_semi_sync_")


class OtherVariablesMoved(UsageError):
    """An error: setting variable `name` changes other variables permanently, to the values `moved`."""

    def __init__(self, message: str, hint: str | None, name: str, moved: Mapping[str, str]) -> None:
        super().__init__(message, hint)
        self.name = name
        self.moved = dict(moved)


def read_global_variables(connection: Sql) -> dict[str, str]:
    """Return all global variables as the server shows them."""
    return {str(name): str(value) for name, value in sql.fetch_rows(connection, "SHOW GLOBAL VARIABLES", columns=2)}


def find_moved_variables(before: Mapping[str, str], after: Mapping[str, str], but: str) -> dict[str, tuple[str, str]]:
    """Return the old and new value of each variable that changed, except variable `but`, which was set."""
    return {
        name: (was, after[name])
        for name, was in before.items()
        if after.get(name, was) != was and name.casefold() != but.casefold() and not name.startswith(_STATE_PREFIXES)
    }


# Session copies of global variables.
#
# A server copies many global variables into each new connection (`sql_mode`, `autocommit`, `long_query_time`). SET
# GLOBAL does not reach existing copies, so restoring the global value leaves the changed value in every connection that
# opened in between, for as long as a connection pool keeps it.

# ER_INCORRECT_GLOBAL_LOCAL_VAR: "Variable '%s' is a GLOBAL variable"; ER_SPECIFIC_ACCESS_DENIED_ERROR
_GLOBAL_ONLY, _DENIED = 1238, 1227
_READ_ONLY = "SELECT read_only FROM information_schema.system_variables WHERE variable_name = %s"
# Global variables without session scope. The server runs their statements in each new session.
_RUN_IN_SESSIONS = ("init_connect", "init_slave", "init_replica")
_MAX_LISTED = 20
_SESSIONS_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=20_000, answer_bytes=4 << 20)


def is_read_only(connection: Sql, name: str) -> bool:
    """Return whether MariaDB lists a global variable as read-only; False on servers without the list (MySQL)."""
    try:
        rows = sql.fetch_rows(connection, _READ_ONLY, (name,))
    except StatementError:
        return False
    return bool(rows) and rows[0][0] == "YES"


def has_session_copies(connection: Sql, name: str) -> bool:
    """Return whether connections keep a copy of global variable `name`, a valid name. Raise StatementError."""
    if name.casefold() in _RUN_IN_SESSIONS:
        return True
    try:
        sql.fetch_rows(connection, f"SELECT @@SESSION.{name}")
    except StatementError as error:
        if error.number == _GLOBAL_ONLY:
            return False
        raise
    return True


class OpenConnection(msgspec.Struct, frozen=True):
    """A client's connection from the process list of the server."""

    id: int
    user: str
    host: str


class NewConnections(msgspec.Struct):
    """The connections that open while a variable is changed, with `counted` around each change.

    Servers number connections in order, so the connection numbers before and after a change enclose them. An older
    connection that is reset during the change (COM_RESET_CONNECTION) has a new copy too, and is not found.
    """

    login: Login
    _spans: list[tuple[int, int]] = msgspec.field(default_factory=list)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Note the connection numbers before and after the block. Raise PowerprofError if the first is unknown."""
        first = self._next_number()
        try:
            yield
        finally:
            try:
                last = self._next_number()
            except PowerprofError:  # The server ended, and its connections with it, or it is full.
                last = 1 << 64
            self._spans.append((first, last))

    def still_open(self) -> list[OpenConnection] | None:
        """Return the connections that are open now, by number; None if the account has no right to see them.

        Raise PowerprofError.
        """
        with sql.connect(self.login, limits=_SESSIONS_LIMITS) as connection:
            try:
                # Without the right PROCESS the list below contains only the connections of this account, and no error.
                sql.fetch_rows(connection, "SHOW ENGINE InnoDB MUTEX")
            except StatementError as error:
                if error.number == _DENIED:
                    return None
                raise
            rows = sql.fetch_rows(connection, "SELECT ID, USER, HOST FROM information_schema.PROCESSLIST", columns=3)
        connections = [OpenConnection(sql.parse_count(id_) or 0, str(user), str(host)) for id_, user, host in rows]
        return sorted(
            (each for each in connections if any(first < each.id < last for first, last in self._spans)),
            key=lambda each: each.id,
        )

    def _next_number(self) -> int:
        with sql.connect(self.login, limits=_SESSIONS_LIMITS) as connection:
            return sql.parse_count(sql.fetch_scalar(connection, "SELECT CONNECTION_ID()")) or 0


def kept_text(name: str, value: str, connections: list[OpenConnection] | None) -> str:
    """Return a sentence about the connections that keep `value` of variable `name`; empty without such connections."""
    advice = "close and open them again, or restart the pools of their clients"
    if connections is None:
        return (
            f"connections that opened while {name} was {value} keep that value, and this account cannot list them "
            f"(it needs the right PROCESS): {advice}"
        )
    if not connections:
        return ""
    shown = ", ".join(f"{each.id} {printable(f'{each.user}@{each.host}')[:80]}" for each in connections[:_MAX_LISTED])
    more = len(connections) - _MAX_LISTED
    number = "1 open connection" if len(connections) == 1 else f"{len(connections)} open connections"
    return (
        f"{number} started while {name} was {value} and may keep that value: {shown}"
        f"{f' and {more} more' if more > 0 else ''}; {advice}"
    )


_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=5000, answer_bytes=1 << 20)
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}(\.[A-Za-z][A-Za-z0-9_]{0,63})?")
_LITERAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")
_PF_EXITING = 0x4  # include/linux/sched.h
_WRITE = "SET GLOBAL {} = {}"


class Variable(msgspec.Struct, frozen=True, tag="variable"):
    """A global variable of a MariaDB or MySQL server.

    Attributes:
        login: the fields of the login to the server (`Login.to_fields`).
        pid: the process of the server, whose end is the end of the setting; None if unknown.
        started_ticks: the start of the process.
        keeps_copies: connections keep a copy of it (`has_session_copies`), and the user has agreed to that. Without
            consent, a change of such a variable is refused.
    """

    login: dict[str, Any]
    name: str
    value: str
    pid: int | None = None
    started_ticks: int | None = None
    keeps_copies: bool = False
    lasts: ClassVar[Lasting] = "process"  # SET GLOBAL ends with the server

    def read(self) -> str | None:
        """Return the present value; None if the server has ended. Raise PowerprofError."""
        self._check_name()
        if self._has_ended():
            return None
        with self._connect() as connection, self._named(self.name):
            value = _read_value(connection, self.name)
        if value is None:
            raise PowerprofError(f"{self.name} is NULL, which cannot be set", "choose another variable")
        return value

    def write(self, value: str) -> str | None:
        """Set the variable and return its value; None if the server has ended.

        Raise UsageError if the temporary value would stay in connections or change other variables permanently. Then
        everything is as before. Raise PowerprofError for other failures.
        """
        self._check_name()
        if self._has_ended():
            return None
        with self._connect() as connection, self._named(f"{self.name}={value}"):
            if value != self.value:
                return _set_value(connection, self.name, value)
            if not self.keeps_copies and has_session_copies(connection, self.name):
                raise UsageError(
                    f"{self.name}={value}: new connections copy it during the trial and keep it after it is restored",
                    "a variable without session scope",
                )
            before = read_global_variables(connection)
            now = _set_value(connection, self.name, value)
            if not find_moved_variables(before, read_global_variables(connection), self.name):
                return now
            # Restore the old value: an alias returns with it, but other variables may keep their new values.
            old = next((now for name, now in before.items() if name.casefold() == self.name.casefold()), None)
            if old is None or _read_value(connection, self.name) != now:
                return now
            _set_value(connection, self.name, old)
            stayed, values = [], {}
            for name, (was, now) in find_moved_variables(before, read_global_variables(connection), self.name).items():
                with suppress(StatementError):  # a variable that cannot be set changed independently
                    _set_value(connection, name, was)
                    stayed.append(f"{name} ({was} to {now})")
                    values[name] = now
            if stayed:
                also = ", ".join(stayed[:4])
                raise OtherVariablesMoved(
                    f"--set {self.name}={value}: it changes {also} as well, which putting it back does not put back",
                    "a value that leaves the others as they are",
                    self.name,
                    values,
                )
            return _set_value(connection, self.name, value)

    def moved_since(self, before: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Return the other global variables that differ from `before`: old and present value. Raise PowerprofError."""
        if self._has_ended():
            return {}
        with sql.connect(Login.from_fields(self.login), limits=_LIMITS) as connection:
            return find_moved_variables(before, read_global_variables(connection), self.name)

    def check_type(self, before: str) -> None:
        """Raise UsageError if the variable is a number and the new value is not. ON and OFF read as 1 and 0."""
        is_switch = before in ("0", "1") and self.value.casefold() in ("on", "off", "true", "false")
        if _LITERAL.fullmatch(before) and not is_switch and not _LITERAL.fullmatch(self.value):
            raise UsageError(
                f"--set {self.name}={self.value}: {self.name} is a number ({before}), and that is none",
                f"--set {self.name}=NUMBER",
            )

    def by_hand(self, value: str) -> str:
        """Return the statement that sets a value."""
        return _WRITE.format(self.name, value if _LITERAL.fullmatch(value) else repr(value))

    def _connect(self) -> Sql:
        """Return a connection to the process with the variable. Another account may listen at its address by now."""
        login = Login.from_fields(self.login)
        return sql.connect(login if self.pid is None else login.for_process(self.pid), limits=_LIMITS)

    def _has_ended(self) -> bool:
        return self.pid is not None and read_start_ticks(self.pid) != self.started_ticks

    @contextmanager
    def _named(self, subject: str) -> Iterator[None]:
        """Begin the server's error messages in the block with `subject`."""
        try:
            yield
        except StatementError as error:
            if self._has_ended():
                raise PowerprofError(f"{subject}: the server has ended", "try again when it runs") from error
            hint = "name a global variable that SET GLOBAL changes: SHOW GLOBAL VARIABLES lists them"
            raise StatementError(f"{subject}: {error.message}", error.hint or hint, error.number) from error

    def _check_name(self) -> None:
        if not _VARIABLE.fullmatch(self.name):
            raise UsageError(f"{self.name!r} is not the name of a variable", "SHOW GLOBAL VARIABLES lists them")


class TimerSlack(msgspec.Struct, frozen=True, tag="timer_slack"):
    """The timer slack of a thread in ns (proc_pid_timerslack_ns(5)): the longest extra delay of its wake-ups.

    Attributes:
        started_ticks: the start of the thread (field 22 of stat), since a later thread may have its number.
    """

    tid: int
    started_ticks: int
    value: str
    lasts: ClassVar[Lasting] = "process"  # slack ends with its thread

    @property
    def name(self) -> str:
        """The name for people."""
        return f"the timer slack of thread {self.tid}"

    def read(self) -> str | None:
        """Return the present slack; None if the thread has ended. Raise PowerprofError."""
        if read_start_ticks(self.tid) != self.started_ticks:
            return None
        return files.read_text(paths.procfs() / str(self.tid) / "timerslack_ns")

    def write(self, value: str) -> str | None:
        """Set the slack and return it as read back; None if the thread has ended. Raise PowerprofError."""
        if read_start_ticks(self.tid) != self.started_ticks:
            return None
        try:
            (paths.procfs() / str(self.tid) / "timerslack_ns").write_text(value)
        except OSError as error:
            raise PowerprofError(
                f"cannot change {self.name} ({files.reason_of(error)})", "run as root, with CAP_SYS_NICE"
            ) from error
        return self.read()

    def by_hand(self, value: str) -> str:
        """Return the command that sets a value."""
        return f"echo {value} > /proc/{self.tid}/timerslack_ns"


Setting = Variable | TimerSlack | HostSetting


def _read_value(connection: Sql, name: str) -> str | None:
    value = sql.fetch_scalar(connection, f"SELECT @@GLOBAL.{name}")
    return None if value is None else str(value)


def _set_value(connection: Sql, name: str, value: str) -> str | None:
    """Set a variable, and return its value as the server shows it."""
    if _LITERAL.fullmatch(value):
        sql.fetch_rows(connection, _WRITE.format(name, value))
    else:
        sql.fetch_rows(connection, _WRITE.format(name, "%s"), (value,))
    return _read_value(connection, name)


def read_start_ticks(tid: int) -> int | None:
    """Return the start of a thread in clock ticks since boot; None if it has ended or is a zombie."""
    stat = read_process_stat(tid)
    return None if stat is None or stat.flags & _PF_EXITING else stat.started_ticks


class AppliedChange(msgspec.Struct):
    """A setting that was changed, with its old value.

    Attributes:
        since: its value as it reads after the change (ON may read 1); None if unknown.
    """

    setting: Setting
    before: str
    since: str | None = None

    def put_back(self) -> None:
        """Restore the old value, unless another user has changed it. Raise FileAway, and PowerprofError if it fails."""
        now = self.setting.read()
        if now in (None, self.before) or not self._is_ours(now):
            return
        self.setting.write(self.before)
        if (now := self.setting.read()) not in (self.before, None):
            raise PowerprofError(f"{self.setting.name} is {now} still", self.setting.by_hand(self.before))

    def _is_ours(self, now: str | None) -> bool:
        if self.since is None and isinstance(self.setting, HostFile):  # It was away when it was to be read.
            return is_same_value(now or "", self.setting.value)
        return self.since in (None, now)


_FALSE, _TRUE = ("off", "false", "no"), ("on", "true", "yes")


def is_same_value(one: str, other: str) -> bool:
    """Return whether two texts are the same value of a setting: ON is 1, 0.5 is 0.500000, and case is ignored."""
    return _parse_value(one) == _parse_value(other)


def _parse_value(value: str) -> str | float:
    text = value.strip().casefold()
    if text in _FALSE or text in _TRUE:
        return float(text in _TRUE)
    try:
        return float(text)
    except ValueError:
        return text
