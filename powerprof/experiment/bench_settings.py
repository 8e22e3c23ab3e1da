# SPDX-License-Identifier: Apache-2.0
"""Set the global variables of a condition (`set_global`), and restore them for the next condition.

A private server is removed at the end, so plain SET GLOBAL is enough. A given server is changed through `reversible`: a
separate process restores it if powerprof is killed, and the next start of powerprof if both are killed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from powerprof.database import sql
from powerprof.model.statement_strings import replace_strings
from powerprof.reversible.changed import ChangedSettings, change_temporarily
from powerprof.reversible.journal import SavedSetting
from powerprof.reversible.kinds import AppliedChange
from powerprof.reversible.session_copies import NewConnections, has_session_copies, kept_text
from powerprof.reversible.timer_slack import read_start_ticks
from powerprof.reversible.variables import OtherVariablesMoved, Variable, find_moved_variables, read_global_variables
from powerprof.system import signals
from powerprof.system.errors import PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.database.base import Server, Sql


_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}(\.[A-Za-z][A-Za-z0-9_]{0,63})?")
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")
_GLOBAL = re.compile(r"global|persist", re.IGNORECASE)
_EXECUTED_COMMENT = re.compile(r"/\*M?!\d*|\*/")
_DYNAMIC = re.compile(r"\b(?:PREPARE\b.*\bFROM|EXECUTE\s+IMMEDIATE)\b", re.IGNORECASE | re.DOTALL)
# SET GLOBAL a = 1, SET b = 1, @@global.a = 1; not a column called global, CHARACTER SET or SET('a').
_SETS_GLOBAL = re.compile(
    r"\bRESET\s+PERSIST\b|(?<!\bCHARACTER\s)\bSET\b(?!\s*\()(?:[^;]*?,)?\s*"
    r"(?:(?:GLOBAL|PERSIST|PERSIST_ONLY)\s+[\w`]|@@\s*(?:GLOBAL|PERSIST|PERSIST_ONLY)\s*\.[^=,;]*=)",
    re.IGNORECASE,
)
# Variables that are set explicitly because another one moves them. MariaDB has pairs, no longer chains.
_MOST_MOVED = 16


class ServerSettings(Protocol):
    """The global variables of one server, changed during a condition."""

    def apply(self, values: Mapping[str, Any]) -> None:
        """Set these variables and restore all others. Raise PowerprofError, UsageError."""

    def close(self) -> list[str]:
        """Restore all variables. Return notes for the run. Raise PowerprofError with the variables that stay."""


class PrivateSettings:
    """The global variables of a private server, whose only user is powerprof."""

    def __init__(self, connect: Callable[[], Sql]) -> None:
        self._connect = connect
        self._original: dict[str, Any] = {}
        self._looked: set[tuple[str, Any]] = set()

    def apply(self, values: Mapping[str, Any]) -> None:
        """Set these variables and restore all others that were changed, or that moved with them."""
        wanted = {_checked(name): value for name, value in values.items()}
        if not wanted and not self._original:
            return
        with self._connect() as connection:
            # The second pass restores variables that moved when another one was restored.
            for name, value in 2 * [pair for pair in self._original.items() if pair[0] not in wanted]:
                _set_global(connection, name, value)
            for name, value in wanted.items():
                if name not in self._original:
                    self._original[name] = sql.fetch_scalar(connection, f"SELECT @@GLOBAL.{name}")
                # Look up the moved variables once per value: this can precede every window.
                before = {} if (name, value) in self._looked else read_global_variables(connection)
                _set_global(connection, name, value)
                for other in find_moved_variables(before, read_global_variables(connection), name) if before else ():
                    self._original.setdefault(other, _number(before[other]))
                self._looked.add((name, value))

    def close(self) -> list[str]:
        """Leave all variables: the server is removed."""
        return []


class NoSettings:
    """The variables of a given PostgreSQL: workloads for it set none (`workloads.definition.FOREIGN`)."""

    def apply(self, values: Mapping[str, Any]) -> None:
        """Set no variable."""

    def close(self) -> list[str]:
        """Leave all variables."""
        return []


class GivenSettings:
    """The global variables of a given server.

    A value that another person sets stays, and ends the run with an error that names it.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ticks = None if server.pid is None else read_start_ticks(server.pid)
        self._first = self._all()
        self._before: dict[str, str] = {}
        # The order that works for a set of values, including variables that one of them moves.
        self._plans: dict[tuple[tuple[str, str], ...], list[tuple[str, str]]] = {}
        self._wanted: dict[str, str] = {}
        self._changed: ChangedSettings | None = None
        self._held: list[Variable] = []
        # New connections copy a changed variable with session scope: (name, value) → the connections.
        self._copies: dict[tuple[str, str], NewConnections | None] = {}
        self._stack = ExitStack()

    def apply(self, values: Mapping[str, Any]) -> None:
        """Set these variables and restore all others.

        Raise PowerprofError if the server refuses one, if one cannot be restored, or if another person has set one.
        """
        wanted = {_checked(name): _text(value) for name, value in values.items()}
        with signals.uninterrupted():
            if self._has_restarted():
                raise PowerprofError(
                    "the server was restarted during the run", "try again when it runs without restarts"
                )
            foreign = self._foreign() if wanted == self._wanted else self._restore()
            if foreign:
                raise PowerprofError(foreign[0], "coordinate with whoever changes the server's settings")
            if wanted != self._wanted:
                self._set(wanted)

    def close(self) -> list[str]:
        """Restore all variables. Return notes about variables that changed and are not restored.

        Raise PowerprofError with the variables that stay.
        """
        with signals.uninterrupted():
            notes = self._restore()
            if self._has_restarted():
                return notes
            notes += [
                f"the server's {name} was {was} when the run began and is {now} now: set_global did not change it"
                for name, (was, now) in find_moved_variables(self._first, self._all(), "").items()
                if name not in self._before
            ]
            return notes + self._kept()

    def _has_restarted(self) -> bool:
        return self._server.pid is not None and read_start_ticks(self._server.pid) != self._ticks

    def _kept(self) -> list[str]:
        """Return a line for each variable that open connections keep a copy of."""
        lines = []
        for (name, value), connections in self._copies.items():
            if connections is not None:
                try:
                    still_open = connections.still_open()
                except PowerprofError:
                    still_open = None
                lines.append(kept_text(name, value, still_open))
        return [line for line in lines if line]

    def _all(self) -> dict[str, str]:
        with self._server.connect() as connection:
            return read_global_variables(connection)

    def _set(self, wanted: dict[str, str]) -> None:
        key = tuple(wanted.items())
        plan = self._plans.get(key, list(key))
        while wanted:
            try:
                self._change([self._variable(name, value) for name, value in plan])
            except OtherVariablesMoved as error:
                plan = _with_moved(plan, error, wanted)
            except PowerprofError as error:
                hint = error.hint or "SHOW GLOBAL VARIABLES lists the variables"
                raise PowerprofError(f"set_global: {error.message}", hint) from error
            else:
                break
        self._plans[key] = plan
        self._wanted = wanted

    def _variable(self, name: str, value: str) -> Variable:
        if (name, value) not in self._copies:
            with self._server.connect() as connection:
                copied = has_session_copies(connection, name)
            self._copies[name, value] = NewConnections(self._server.login) if copied else None
        # The user's workload requests it. The run lists the connections that keep it.
        copied = self._copies[name, value] is not None
        return Variable(self._server.login.to_fields(), name, value, self._server.pid, self._ticks, copied)

    def _change(self, variables: Sequence[Variable]) -> None:
        for variable in variables:
            if variable.name not in self._before:
                before = variable.read()
                if before is None:
                    raise PowerprofError("the server has ended", "try again when it runs")
                self._before[variable.name] = before
        file = self._server.login.options
        options = None if file is None else str(file)
        befores = [self._before[variable.name] for variable in variables]
        held = [
            SavedSetting(variable, before, variable.pid, variable.started_ticks, options)
            for variable, before in zip(variables, befores, strict=True)
        ]
        # Once is enough: a kill can come before the moved variables are recorded.
        held[0] = msgspec.structs.replace(held[0], others=self._first)
        all_before = self._all()
        with ExitStack() as stack:
            for variable in variables:
                if (connections := self._copies[variable.name, variable.value]) is not None:
                    stack.enter_context(connections.counted())
            try:
                self._changed = stack.enter_context(change_temporarily(held))
            except PowerprofError:
                self._restore_moved(all_before)
                raise
            self._held, self._stack = list(variables), stack.pop_all()

    def _restore_moved(self, before: Mapping[str, str]) -> None:
        """Restore the variables that a killed keeper had moved without a report of their names."""
        for name, (was, now) in find_moved_variables(before, self._all(), "").items():
            AppliedChange(self._variable(name, now), was).put_back()

    def _restore(self) -> list[str]:
        """Restore the variables. Return a line for each that another person has set. Raise PowerprofError."""
        if self._changed is None:
            return []
        held = self._held
        self._changed, self._held, self._wanted = None, [], {}
        self._stack.close()
        if self._has_restarted():
            return []
        return self._other_than({variable.name: self._before[variable.name] for variable in held})

    def _foreign(self) -> list[str]:
        """Return a line for each wanted variable that another person has set since we set it."""
        if self._changed is None:
            return []
        since = {variable.name: now for variable, now in zip(self._held, self._changed.since, strict=True)}
        return self._other_than({name: now for name in self._wanted if (now := since[name]) is not None})

    def _other_than(self, expected: Mapping[str, str]) -> list[str]:
        values = self._values(list(expected))
        return [
            f"{name} was set to {now} by another person during the run and stays so: it was {self._before[name]} before"
            for (name, value), now in zip(expected.items(), values, strict=True)
            if now != value
        ]

    def _values(self, names: Sequence[str]) -> list[str]:
        with self._server.connect() as connection:
            row = sql.fetch_rows(
                connection, f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in names)}", columns=len(names)
            )
        return [str(value) for value in row[0]]


def _with_moved(
    plan: Sequence[tuple[str, str]], error: OtherVariablesMoved, wanted: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the plan with the moved variables set before the one that moves them.

    So each is recorded before it changes, and is restored after its mover. Raise UsageError if there is no such order.
    """
    names = [name for name, _ in plan]
    place = names.index(error.name)
    in_conflict = next((name for name in error.moved if name in names[:place]), None)
    if in_conflict is not None or len(plan) + len(error.moved) > len(wanted) + _MOST_MOVED:
        other = in_conflict or next(iter(error.moved))
        raise UsageError(
            f"set_global: {error.name} = {dict(plan)[error.name]} changes {other} to {error.moved[other]}",
            "choose values that the server takes together, or name them in another order",
        )
    first = [(name, wanted.get(name, value)) for name, value in error.moved.items()]
    rest = [pair for pair in plan[place:] if pair[0] not in error.moved]
    return [*plan[:place], *first, *rest]


def find_global_change(text: str) -> str | None:
    """Return the start of the first SQL part that sets a global variable of MariaDB or MySQL; else None.

    Stored programs and literal prepared statements are searched too. SQL that is composed at run time, or stored in the
    server, cannot be found here.
    """
    if not _GLOBAL.search(text):
        return None
    plain = replace_strings(text, "mysql")
    if _DYNAMIC.search(plain):
        plain = re.sub(r"['\"]", " ", text)
    plain = _EXECUTED_COMMENT.sub(" ", plain)
    found = _SETS_GLOBAL.search(plain)
    return None if found is None else " ".join(plain[found.start() : found.start() + 80].split())


def _set_global(connection: Sql, name: str, value: Any) -> None:
    sql.execute(connection, f"SET GLOBAL {name} = {literal(value)}")


def literal(value: Any) -> str:
    """Return a value as SET GLOBAL takes it. A string is quoted: the server reads 'ON' as it reads ON."""
    if value is None:
        return "DEFAULT"
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    if isinstance(value, int | float):
        return repr(value)
    text = value.decode() if isinstance(value, bytes) else str(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _number(text: str) -> int | float | str:
    """Return a value that the server shows as text: SET takes no quoted number."""
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)


def _text(value: Any) -> str:
    """Return a value of a workload as `Variable` takes it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) else str(value)


def _checked(name: str) -> str:
    plain = name.replace("-", "_").lower()
    if not _VARIABLE.fullmatch(plain):
        raise UsageError(f"{name!r} is not the name of a server variable", "SHOW VARIABLES lists those that there are")
    return plain
