# SPDX-License-Identifier: Apache-2.0
"""A connection with recorded answers, for the readers of servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from powerprof.database.base import StatementError

# A selected column with or without its table, or the start of one: `t.NAME`, `LEFT(t.NAME, 10)`.
_COLUMN = re.compile(r"(?:LEFT\()?(?:\w+\.)?(\w+)(?:, [0-9]+\))?(?:,|$)")

Answer = Sequence[Any] | StatementError | Callable[..., Sequence[Any]]


class Answers:
    """A connection that answers a statement by the first key that it contains.

    A row is a tuple, or a record by column names. A SELECT gets the columns that it names from the records, so that a
    statement with swapped columns gets swapped figures. A list of answers gives one answer to each statement. A
    function gets the statement and its arguments, and returns the rows.

    Attributes:
        sent: the statements, with their arguments in place of `%s`.
        patience_s: the limits in seconds that the statements had, in their order.
    """

    def __init__(self, answers: Mapping[str, Answer], family: str = "mysql") -> None:
        self.family = family
        self.sent: list[str] = []
        self.closed = 0
        self.limits_s: list[float] = []
        self.patience_s = 8.0
        self.description: list[tuple[str]] = []
        self._answers = {key: list(rows) if isinstance(rows, list) else rows for key, rows in answers.items()}
        self._rows: list[tuple[Any, ...]] = []

    def cursor(self) -> Answers:
        return self

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        self.closed += 1

    def execute(self, statement: str, arguments: Sequence[Any] | None = None) -> None:
        """Prepare the rows of the answer. Raise StatementError for a refused statement."""
        shown = statement % tuple(map(repr, arguments)) if arguments else statement
        self.sent.append(shown)
        self.limits_s.append(self.patience_s)
        answer = next((rows for key, rows in self._answers.items() if key in shown), ())
        if isinstance(answer, list) and answer and not isinstance(answer[0], (tuple, Mapping)):
            answer = answer.pop(0)
        if callable(answer):
            answer = answer(statement, *(arguments or ()))
        if isinstance(answer, StatementError):
            raise answer
        rows = list(answer)
        if rows and isinstance(rows[0], Mapping):
            selected = re.match(r"SELECT (.*?) FROM ", statement)
            names = _COLUMN.findall(selected[1]) if selected else list(rows[0])
            self._rows = [tuple(row.get(name) for name in names) for row in rows]
        else:
            names = [f"c{number}" for number in range(len(rows[0]))] if rows else ["c0"]
            self._rows = [tuple(row) for row in rows]
        self.description = [(name,) for name in names]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return self._rows
