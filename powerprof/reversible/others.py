# SPDX-License-Identifier: Apache-2.0
"""Variables that move when another one is set: innodb_io_capacity raises innodb_io_capacity_max, and lowering that one
lowers the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from powerprof.database.clients import sql
from powerprof.errors import UsageError

if TYPE_CHECKING:
    from powerprof.database.clients.base import Sql

# They move with what the server does.
_BY_THEMSELVES = ("gtid_", "wsrep_", "timestamp", "rpl_semi_sync_")


class OtherVariablesMoved(UsageError):
    """Setting variable `name` changes other variables for good. `moved` are their new values."""

    def __init__(self, message: str, hint: str | None, name: str, moved: Mapping[str, str]) -> None:
        super().__init__(message, hint)
        self.name = name
        self.moved = dict(moved)


def all_of(connection: Sql) -> dict[str, str]:
    """All global variables as the server shows them."""
    return {str(name): str(value) for name, value in sql.rows(connection, "SHOW GLOBAL VARIABLES", columns=2)}


def moved(before: Mapping[str, str], after: Mapping[str, str], but: str) -> dict[str, tuple[str, str]]:
    """Those that differ, without the one that was set: what each was, and is now."""
    return {
        name: (was, after[name])
        for name, was in before.items()
        if after.get(name, was) != was and name.casefold() != but.casefold() and not name.startswith(_BY_THEMSELVES)
    }
