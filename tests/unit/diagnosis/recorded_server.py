# SPDX-License-Identifier: Apache-2.0
"""A connection with recorded answers, for the parts of a diagnosis that read a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql

from powerprof.model.identities import Family

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]


class RecordedServer:
    """Answers a statement with the table of the first phrase in it. Several tables of a phrase answer in order."""

    family: Family = "mysql"

    def __init__(self, **tables: Table | list[Table] | int) -> None:
        self.tables: dict[str, Table | list[Table] | int] = {
            phrase.replace("_", " "): table for phrase, table in tables.items()
        }
        self.statements: list[str] = []
        self.description: list[tuple[str]] = []
        self._rows: Sequence[Sequence[Any]] = []

    def set(self, phrase: str, table: Table | list[Table] | int) -> RecordedServer:
        """Record a table, or the number of the error that refuses the statement."""
        self.tables[phrase] = table
        return self

    def cursor(self) -> RecordedServer:
        return self

    def execute(self, statement: str, arguments: object = None) -> None:
        self.statements.append(statement)
        answer = next((table for phrase, table in self.tables.items() if phrase in statement), ((), ()))
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, int):
            raise pymysql.err.ProgrammingError(answer, "refused")
        names, self._rows = answer
        self.description = [(name,) for name in names]

    def fetchall(self) -> Sequence[Sequence[Any]]:
        return self._rows

    def close(self) -> None: ...

    def fileno(self) -> int:
        return -1

    def detach(self) -> None:
        return None

    def __enter__(self) -> RecordedServer:
        return self

    def __exit__(self, *_: object) -> None: ...
