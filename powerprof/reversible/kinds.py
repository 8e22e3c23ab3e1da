# SPDX-License-Identifier: Apache-2.0
"""Kinds of settings that can be changed and put back. Each travels to the keeper as data, never as code.

A kind has `name`, for people; `value`, which it has for the while; `read`, None where what has the setting is gone for
good, and `write`, which gives what it reads at once then (later somebody else may have set it); both raise
PowerprofError; `by_hand`, what a person types to write a value; and `outlasts`, whether it stays when the process ends
that has it. A new kind is a class in this package and a name in `Setting`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof import files, paths
from powerprof.database.clients import sql
from powerprof.database.clients.base import Limits, Login, StatementError
from powerprof.errors import PowerprofError, UsageError
from powerprof.processes.stat import process_stat
from powerprof.reversible import others
from powerprof.reversible.events import Event
from powerprof.reversible.sessions import has_session_copies

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_LIMITS = Limits(answer_s=5.0, waiting_s=8.0, rows=5000, answer_bytes=1 << 20)
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}(\.[A-Za-z][A-Za-z0-9_]{0,63})?")
_LITERAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")
_PF_EXITING = 0x4  # include/linux/sched.h
_WRITE = "SET GLOBAL {} = {}"


class Variable(msgspec.Struct, frozen=True, tag="variable"):
    """A global variable of the MariaDB or MySQL server that `login` (`Login.fields`) leads to, which is process `pid`
    with that start, where it is known: what is set ends with it.

    `keeps_copies`: connections keep a copy of it (`sessions.has_session_copies`), and the user has agreed to that. A
    change of such a variable is refused otherwise.
    """

    login: dict[str, Any]
    name: str
    value: str
    pid: int | None = None
    started_ticks: int | None = None
    keeps_copies: bool = False

    @property
    def outlasts(self) -> bool:
        """SET GLOBAL ends with the server."""
        return False

    def read(self) -> str | None:
        """What it is now; None where the server has ended."""
        self._check()
        if self._has_ended():
            return None
        with self._connect() as connection, self._named(self.name):
            found = _value(connection, self.name)
        if found is None:
            raise PowerprofError(f"{self.name} is NULL, which cannot be set", "choose another variable")
        return found

    def write(self, value: str) -> str | None:
        """Change it; of a server that has ended nothing. A value of ours that changes other variables for good is taken
        back, and refused."""
        self._check()
        if self._has_ended():
            return None
        with self._connect() as connection, self._named(f"{self.name}={value}"):
            if value != self.value:
                return _set(connection, self.name, value)
            if not self.keeps_copies and has_session_copies(connection, self.name):
                raise UsageError(
                    f"{self.name}={value}: connections that open meanwhile copy it and keep it after it is put back",
                    "a variable without session scope",
                )
            before = others.all_of(connection)
            now = _set(connection, self.name, value)
            if not others.moved(before, others.all_of(connection), self.name):
                return now
            # An alias moves along, and back; what stays is not put back by putting this one back.
            old = next((now for name, now in before.items() if name.casefold() == self.name.casefold()), None)
            if old is None or _value(connection, self.name) != now:
                return now
            _set(connection, self.name, old)
            stayed, values = [], {}
            for name, (was, now) in others.moved(before, others.all_of(connection), self.name).items():
                with suppress(StatementError):  # one that cannot be set moved by itself
                    _set(connection, name, was)
                    stayed.append(f"{name} ({was} to {now})")
                    values[name] = now
            if stayed:
                also = ", ".join(stayed[:4])
                raise others.OtherVariablesMoved(
                    f"--set {self.name}={value}: it changes {also} as well, which putting it back does not put back",
                    "a value that leaves the others as they are",
                    self.name,
                    values,
                )
            return _set(connection, self.name, value)

    def moved_since(self, before: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Return the other global variables that differ from `before`: old and present value. Raise PowerprofError."""
        if self._has_ended():
            return {}
        with sql.connect(Login.of_fields(self.login), limits=_LIMITS) as connection:
            return others.moved(before, others.all_of(connection), self.name)

    def check_suits(self, before: str) -> None:
        """That what is a number stays one, before anything is planned; ON and OFF read as 1 and 0. Raises
        UsageError."""
        is_switch = before in ("0", "1") and self.value.casefold() in ("on", "off", "true", "false")
        if _LITERAL.fullmatch(before) and not is_switch and not _LITERAL.fullmatch(self.value):
            raise UsageError(
                f"--set {self.name}={self.value}: {self.name} is a number ({before}), and that is none",
                f"--set {self.name}=NUMBER",
            )

    def by_hand(self, value: str) -> str:
        """The statement."""
        return _WRITE.format(self.name, value if _LITERAL.fullmatch(value) else repr(value))

    def _connect(self) -> Sql:
        """A connection to the process that has the variable: another account may listen there by now."""
        login = Login.of_fields(self.login)
        return sql.connect(login if self.pid is None else login.at(self.pid), limits=_LIMITS)

    def _has_ended(self) -> bool:
        return self.pid is not None and started_ticks(self.pid) != self.started_ticks

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """What the server refuses is reported with its name."""
        try:
            yield
        except StatementError as error:
            if self._has_ended():
                raise PowerprofError(f"{what}: the server has ended", "try again when it runs") from error
            hint = "name a global variable that SET GLOBAL changes: SHOW GLOBAL VARIABLES lists them"
            raise StatementError(f"{what}: {error.message}", error.hint or hint, error.number) from error

    def _check(self) -> None:
        if not _VARIABLE.fullmatch(self.name):
            raise UsageError(f"{self.name!r} is not the name of a variable", "SHOW GLOBAL VARIABLES lists them")


class TimerSlack(msgspec.Struct, frozen=True, tag="timer_slack"):
    """How much later than asked the kernel may wake a thread, in ns (proc_pid_timerslack_ns(5)); 0: its default.

    `started_ticks` is the thread's start (field 22 of stat): its number may be another's by the time it is put back.
    """

    tid: int
    started_ticks: int
    value: str

    @property
    def name(self) -> str:
        """As people read it."""
        return f"the timer slack of thread {self.tid}"

    @property
    def outlasts(self) -> bool:
        """It ends with its thread."""
        return False

    def read(self) -> str | None:
        """What it is now; None where the thread has ended."""
        if started_ticks(self.tid) != self.started_ticks:
            return None
        return files.read_text(paths.procfs() / str(self.tid) / "timerslack_ns")

    def write(self, value: str) -> str | None:
        """Change it; of a thread that has ended nothing."""
        if started_ticks(self.tid) != self.started_ticks:
            return None
        try:
            (paths.procfs() / str(self.tid) / "timerslack_ns").write_text(value)
        except OSError as error:
            raise PowerprofError(
                f"cannot change {self.name} ({files.reason_of(error)})", "run as root, with CAP_SYS_NICE"
            ) from error
        return self.read()

    def by_hand(self, value: str) -> str:
        """The command."""
        return f"echo {value} > /proc/{self.tid}/timerslack_ns"


Setting = Variable | TimerSlack | Event


def _value(connection: Sql, name: str) -> str | None:
    found = sql.scalar(connection, f"SELECT @@GLOBAL.{name}")
    return None if found is None else str(found)


def _set(connection: Sql, name: str, value: str) -> str | None:
    """Set it, and say what it reads."""
    if _LITERAL.fullmatch(value):
        sql.rows(connection, _WRITE.format(name, value))
    else:
        sql.rows(connection, _WRITE.format(name, "%s"), (value,))
    return _value(connection, name)


def started_ticks(tid: int) -> int | None:
    """When a thread was started, in clock ticks since boot; None where it is gone, or a zombie."""
    stat = process_stat(tid)
    return None if stat is None or stat.flags & _PF_EXITING else stat.started_ticks


class Changed(msgspec.Struct):
    """A setting, what it was, and what it reads since it was changed (ON may read 1); None: not known."""

    setting: Setting
    before: str
    since: str | None = None

    def put_back(self) -> None:
        """The old value again, unless somebody else has changed it since. Raises PowerprofError where it stays."""
        now = self.setting.read()
        if now in (None, self.before) or self.since not in (None, now):
            return
        self.setting.write(self.before)
        if (now := self.setting.read()) not in (self.before, None):
            raise PowerprofError(f"{self.setting.name} is {now} still", self.setting.by_hand(self.before))
