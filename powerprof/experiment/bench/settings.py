# SPDX-License-Identifier: Apache-2.0
"""Settings of a running server that are put back to what they were, however the experiment ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from powerprof.closeable import Closeable
from powerprof.database.clients import sql
from powerprof.errors import PowerprofError, UsageError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}(\.[A-Za-z][A-Za-z0-9_]{0,63})?")


def literal(value: Any) -> str:
    """A value for SET GLOBAL. A string is quoted: the server takes 'ON' and '16777216' alike for names."""
    if value is None:
        return "DEFAULT"
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    if isinstance(value, int | float):
        return repr(value)
    text = value.decode() if isinstance(value, bytes) else str(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


class GlobalSettings(Closeable):
    """`with GlobalSettings(server.connect) as settings:` changes global variables, and restores them at the end.

    The original value is read before the first change of each. A connection of its own is opened for every
    call, since the server may have been restarted in between. `restore` raises PowerprofError that lists
    what could not be restored.
    """

    def __init__(self, connect: Callable[[], Sql]) -> None:
        self._connect = connect
        self._original: dict[str, Any] = {}

    def close(self) -> None:
        self.restore()

    def apply(self, values: Mapping[str, Any]) -> None:
        """Set these, and put the others that were changed before back. Raises PowerprofError, UsageError."""
        wanted = {_checked(name): value for name, value in values.items()}
        others = {name: value for name, value in self._original.items() if name not in wanted}
        if not wanted and not others:
            return
        with self._connect() as connection:
            for name in wanted:
                if name not in self._original:
                    self._original[name] = sql.scalar(connection, f"SELECT @@GLOBAL.{name}")
            for name, value in {**others, **wanted}.items():
                sql.execute(connection, f"SET GLOBAL {name} = {literal(value)}")

    def restore(self) -> None:
        """Put everything back, trying each even where another failed, and not to be interrupted in between."""
        if not self._original:
            return
        failed = []
        # The main thread alone may set handlers; another one is not interrupted by signals anyway.
        previous: dict[int, Any] = {}
        try:
            for number in (int(signal.SIGINT), int(signal.SIGTERM)):
                previous[number] = signal.signal(number, signal.SIG_IGN)
        except ValueError:
            pass
        try:
            with self._connect() as connection:
                for name, value in self._original.items():
                    try:
                        sql.execute(connection, f"SET GLOBAL {name} = {literal(value)}")
                    except PowerprofError as error:
                        failed.append(f"{name} = {literal(value)} ({error.message})")
            self._original.clear()
        except PowerprofError as error:
            failed = [f"{name} = {literal(value)}" for name, value in self._original.items()]
            failed.append(error.message)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if failed:
            raise PowerprofError(
                "could not restore the server's settings: " + "; ".join(failed), "set them with SET GLOBAL"
            )


def _checked(name: str) -> str:
    plain = name.replace("-", "_")
    if not _VARIABLE.fullmatch(plain):
        raise UsageError(f"{name!r} is not the name of a server variable", "SHOW VARIABLES lists those that there are")
    return plain
