# SPDX-License-Identifier: Apache-2.0
"""Global variables of MariaDB and MySQL: a kind of setting.

Variables may change when another one is set: innodb_io_capacity raises innodb_io_capacity_max, and lowering that one
lowers the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from powerprof.database import sql
from powerprof.database.base import Limits, Login, StatementError
from powerprof.reversible.host_settings import Lasting
from powerprof.reversible.session_copies import has_session_copies
from powerprof.reversible.timer_slack import read_start_ticks
from powerprof.system.errors import PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.database.base import Sql


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


_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=5000, answer_bytes=1 << 20)
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}(\.[A-Za-z][A-Za-z0-9_]{0,63})?")
_LITERAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")
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
